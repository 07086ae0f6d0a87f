// SPDX-License-Identifier: Apache-2.0
//! A table as `iptables-save` prints it, and the `iptables-restore` lines that change it. Pure
//! functions.

use std::collections::BTreeSet;

/// A rule: its chain and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub chain: String,
    pub words: Vec<String>,
}

impl Rule {
    /// Creates a rule. `matches` is split at blanks; `comment` may contain blanks and quotes.
    pub(crate) fn new(chain: &str, matches: &str, comment: &str, target: &str) -> Self {
        let mut words: Vec<String> = matches.split_whitespace().map(str::to_owned).collect();
        if !comment.is_empty() {
            words.extend(["-m", "comment", "--comment", comment].map(str::to_owned));
        }
        words.push("-j".to_owned());
        words.extend(target.split_whitespace().map(str::to_owned));
        Self { chain: chain.to_owned(), words }
    }

    /// The target of the rule.
    pub(crate) fn target(&self) -> Option<&str> {
        self.after("-j")
    }

    /// The argument after an option.
    pub(crate) fn after(&self, option: &str) -> Option<&str> {
        let at = self.words.iter().position(|word| word == option)?;
        self.words.get(at + 1).map(String::as_str)
    }

    /// Compares without order: versions of iptables differ in the order of a rule's parts.
    fn is_same(&self, other: &Rule) -> bool {
        let sorted = |rule: &Rule| {
            let mut words = rule.words.clone();
            words.sort_unstable();
            words
        };
        self.chain == other.chain && sorted(self) == sorted(other)
    }

    fn write(&self, verb: &str) -> String {
        let words: Vec<String> = self.words.iter().map(|word| quote(word)).collect();
        format!("{verb} {} {}\n", self.chain, words.join(" "))
    }
}

/// The contents of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Saved {
    pub chains: BTreeSet<String>,
    pub rules: Vec<Rule>,
}

impl Saved {
    /// Parses the output of `iptables-save -t`; lines of other kinds are ignored.
    pub(crate) fn parse(text: &str) -> Self {
        let mut saved = Self::default();
        for line in text.lines() {
            if let Some(chain) = line.strip_prefix(':') {
                saved.chains.extend(chain.split(' ').next().map(str::to_owned));
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let mut words = split(rule).into_iter();
                let chain = words.next().unwrap_or_default();
                saved.rules.push(Rule { chain, words: words.collect() });
            }
        }
        saved
    }

    pub(crate) fn has(&self, rule: &Rule) -> bool {
        self.position(rule).is_some()
    }

    /// The position of a rule among all rules of the table.
    pub(crate) fn position(&self, rule: &Rule) -> Option<usize> {
        self.rules.iter().position(|other| other.is_same(rule))
    }

    /// The lines that create those of these chains that are missing.
    pub(crate) fn add_chains(&self, chains: &[&str]) -> String {
        let missing = chains.iter().filter(|chain| !self.chains.contains(**chain));
        missing.map(|chain| format!("-N {chain}\n")).collect()
    }

    /// The line that appends the rule to its chain; empty if the rule exists.
    pub(crate) fn append(&self, rule: &Rule) -> String {
        if self.has(rule) { String::new() } else { rule.write("-A") }
    }

    /// The line that inserts the rule at the head of its chain; empty if the rule exists.
    pub(crate) fn insert(&self, rule: &Rule) -> String {
        if self.has(rule) { String::new() } else { rule.write("-I") }
    }

    /// The lines that remove the selected rules.
    pub(crate) fn remove_rules(&self, is_removed: impl Fn(&Rule) -> bool) -> String {
        self.rules.iter().filter(|rule| is_removed(rule)).map(|rule| rule.write("-D")).collect()
    }

    /// The lines that flush and remove a chain; empty if the chain does not exist.
    pub(crate) fn remove_chain(&self, chain: &str) -> String {
        let exists = self.chains.contains(chain);
        if exists { format!("-F {chain}\n-X {chain}\n") } else { String::new() }
    }
}

/// Quotes a word for iptables-restore if necessary.
fn quote(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"'\\".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Splits a line into words and removes their quotes.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted, mut is_word) =
        (Vec::new(), String::new(), false, false);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => (is_quoted, is_word) = (!is_quoted, true),
            '\\' if is_quoted => word.extend(letters.next()),
            ' ' if !is_quoted => {
                if is_word {
                    words.push(std::mem::take(&mut word));
                }
                is_word = false;
            }
            other => {
                word.push(other);
                is_word = true;
            }
        }
    }
    if is_word {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAVED: &str = "# Generated by iptables-save v1.8.9 (nf_tables)
*nat
:POSTROUTING ACCEPT [0:0]
:CNI-abc - [0:0]
-A POSTROUTING -s 10.1.0.2/32 -m comment --comment \"name: \\\"net\\\" id: \\\"c1\\\"\" -j CNI-abc
-A CNI-abc ! -d 224.0.0.0/4 -m comment --comment x -j MASQUERADE
COMMIT
";

    #[test]
    fn existing_objects_are_not_written_again() {
        let saved = Saved::parse(SAVED);
        let jump =
            Rule::new("POSTROUTING", "-s 10.1.0.2/32", "name: \"net\" id: \"c1\"", "CNI-abc");
        assert!(saved.has(&jump));
        assert_eq!(saved.append(&jump) + &saved.add_chains(&["CNI-abc"]), "");
        assert_eq!(saved.add_chains(&["CNI-abc", "NEW"]), "-N NEW\n");
        let other =
            Rule::new("POSTROUTING", "-s 10.1.0.3/32", "name: \"net\" id: \"c1\"", "CNI-abc");
        let line = "POSTROUTING -s 10.1.0.3/32 -m comment --comment \"name: \\\"net\\\" id: \\\"c1\\\"\" -j CNI-abc\n";
        assert_eq!(saved.append(&other), format!("-A {line}"));
        assert_eq!(saved.insert(&other), format!("-I {line}"));
        let removal = saved.remove_rules(|rule| rule.target() == Some("CNI-abc"));
        assert_eq!(removal, format!("-D {}", line.replace("0.3", "0.2")));
        assert_eq!(saved.remove_chain("CNI-abc"), "-F CNI-abc\n-X CNI-abc\n");
        assert_eq!(saved.remove_chain("CNI-x"), "");
    }

    proptest! {
        #[test]
        fn split_reverses_quote(words in prop::collection::vec("[ -~]{1,12}", 1..6)) {
            let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
            prop_assert_eq!(split(&quoted.join(" ")), words);
        }

        #[test]
        fn parse_never_panics(text: String) {
            let _ = Saved::parse(&text);
        }
    }
}
