// SPDX-License-Identifier: Apache-2.0
//! Conditions in nft syntax: `ip saddr 10.0.0.0/8 iifname != eth0`.

use super::{Condition, Match, Name, Problem, address_type, network, protocol};
use kernel::Family;

const SELECTORS: &str = "ip, ip6, meta, iifname, iif, l4proto, fib";

pub(super) fn parse(text: &str, family: Family) -> Result<Vec<Condition>, Problem> {
    let words = words(text);
    let mut words = Words { all: &words, at: 0 };
    let mut all = Vec::new();
    while let Some(word) = words.next() {
        let parse = selector(word, &mut words, family)?;
        all.push(condition(&mut words, &parse)?);
    }
    Ok(all)
}

/// Splits into words. Braces and commas are separate words; quotes are removed.
fn words(text: &str) -> Vec<String> {
    let mut spaced = String::new();
    for c in text.chars() {
        match c {
            '{' | '}' | ',' => spaced.extend([' ', c, ' ']),
            '"' => {}
            _ => spaced.push(c),
        }
    }
    spaced.split_whitespace().map(str::to_owned).collect()
}

struct Words<'a> {
    all: &'a [String],
    at: usize,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let word = self.all.get(self.at)?;
        self.at += 1;
        Some(word)
    }

    /// The word that was read last.
    fn last(&self) -> &'a str {
        self.at.checked_sub(1).and_then(|at| self.all.get(at)).map_or("", String::as_str)
    }

    fn value(&mut self) -> Result<&'a str, Problem> {
        let last = self.last();
        self.next().ok_or_else(|| Problem::new(last, "must be followed by a value"))
    }

    fn skip(&mut self, words: &[&str]) -> bool {
        let found = self.all.get(self.at).is_some_and(|next| words.contains(&next.as_str()));
        self.at += usize::from(found);
        found
    }
}

/// Parses a value of a selector.
type ParseValue = Box<dyn Fn(&str) -> Result<Match, Problem>>;

fn selector(word: &str, words: &mut Words<'_>, family: Family) -> Result<ParseValue, Problem> {
    let own = if family == Family::V4 { "ip" } else { "ip6" };
    match word {
        "ip" | "ip6" if word == own => {
            let to_match = direction(words, Match::Source, Match::Destination)?;
            Ok(Box::new(move |word| network(word, family).map(to_match)))
        }
        "ip" | "ip6" => Err(Problem::new(word, "is for the other address family")),
        "meta" => meta(words.value()?, "iifname, iif, l4proto"),
        "fib" => {
            let to_match = direction(words, Match::SourceType, Match::DestinationType)?;
            match words.value()? {
                "type" => Ok(Box::new(move |word| address_type(word).map(to_match))),
                other => Err(unsupported(other, "type")),
            }
        }
        other => meta(other, SELECTORS),
    }
}

fn meta(key: &str, allowed: &str) -> Result<ParseValue, Problem> {
    match key {
        "iifname" | "iif" => Ok(Box::new(|word| Name::parse(word, '*').map(Match::Interface))),
        "l4proto" => Ok(Box::new(|word| protocol(word).map(Match::Protocol))),
        other => Err(unsupported(other, allowed)),
    }
}

type ToMatch<T> = fn(T) -> Match;

fn direction<T>(
    words: &mut Words<'_>,
    source: ToMatch<T>,
    destination: ToMatch<T>,
) -> Result<ToMatch<T>, Problem> {
    match words.value()? {
        "saddr" => Ok(source),
        "daddr" => Ok(destination),
        other => Err(unsupported(other, "saddr, daddr")),
    }
}

fn unsupported(word: &str, allowed: &str) -> Problem {
    Problem::new(word, format!("is not supported; allowed are {allowed}"))
}

fn condition(words: &mut Words<'_>, parse: &ParseValue) -> Result<Condition, Problem> {
    let negated = words.skip(&["!=", "ne"]);
    if !negated {
        words.skip(&["==", "eq"]);
    }
    if !words.skip(&["{"]) {
        return Ok(Condition { negated, alternatives: vec![parse(words.value()?)?] });
    }
    let mut alternatives = Vec::new();
    loop {
        match words.next() {
            None => return Err(Problem::new("{", "has no matching }")),
            Some("}") => break,
            Some(",") => {}
            Some(word) => alternatives.push(parse(word)?),
        }
    }
    if alternatives.is_empty() {
        return Err(Problem::new("{", "is empty"));
    }
    Ok(Condition { negated, alternatives })
}
