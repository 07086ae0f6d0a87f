// SPDX-License-Identifier: Apache-2.0
//! Conditions in the words of nft: `ip saddr 10.0.0.0/8 iifname != eth0`.

use super::{Condition, Match, Name, Problem, address_type, network, protocol};
use kernel::Family;

const SELECTORS: &str = "ip, ip6, meta, iifname, iif, l4proto, fib";

pub(super) fn parse(text: &str, family: Family) -> Result<Vec<Condition>, Problem> {
    let words = words(text);
    let mut words = Words { all: &words, at: 0 };
    let mut all = Vec::new();
    while let Some(word) = words.next() {
        let read = selector(word, &mut words, family)?;
        all.push(condition(&mut words, &read)?);
    }
    Ok(all)
}

/// Braces and commas are words of their own; quotes are for people.
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

    /// The word before the next one.
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

/// Reads a value of what is asked about.
type Read = Box<dyn Fn(&str) -> Result<Match, Problem>>;

fn selector(word: &str, words: &mut Words<'_>, family: Family) -> Result<Read, Problem> {
    let own = if family == Family::V4 { "ip" } else { "ip6" };
    match word {
        "ip" | "ip6" if word == own => {
            let to_match = direction(words, Match::Source, Match::Destination)?;
            Ok(Box::new(move |word| network(word, family).map(to_match)))
        }
        "ip" | "ip6" => Err(Problem::new(word, "is for the other family of addresses")),
        "meta" => meta(words.value()?, "iifname, iif, l4proto"),
        "fib" => {
            let to_match = direction(words, Match::SourceType, Match::DestinationType)?;
            match words.value()? {
                "type" => Ok(Box::new(move |word| address_type(word).map(to_match))),
                other => Err(not_understood(other, "type")),
            }
        }
        other => meta(other, SELECTORS),
    }
}

fn meta(key: &str, allowed: &str) -> Result<Read, Problem> {
    match key {
        "iifname" | "iif" => Ok(Box::new(|word| Name::parse(word, '*').map(Match::Interface))),
        "l4proto" => Ok(Box::new(|word| protocol(word).map(Match::Protocol))),
        other => Err(not_understood(other, allowed)),
    }
}

/// From a value to what is asked.
type ToMatch<T> = fn(T) -> Match;

fn direction<T>(
    words: &mut Words<'_>,
    source: ToMatch<T>,
    destination: ToMatch<T>,
) -> Result<ToMatch<T>, Problem> {
    match words.value()? {
        "saddr" => Ok(source),
        "daddr" => Ok(destination),
        other => Err(not_understood(other, "saddr, daddr")),
    }
}

fn not_understood(word: &str, allowed: &str) -> Problem {
    Problem::new(word, format!("is not understood here; allowed are {allowed}"))
}

fn condition(words: &mut Words<'_>, read: &Read) -> Result<Condition, Problem> {
    let negated = words.skip(&["!=", "ne"]);
    if !negated {
        words.skip(&["==", "eq"]);
    }
    if !words.skip(&["{"]) {
        return Ok(Condition { negated, alternatives: vec![read(words.value()?)?] });
    }
    let mut alternatives = Vec::new();
    loop {
        match words.next() {
            None => return Err(Problem::new("{", "has no }")),
            Some("}") => break,
            Some(",") => {}
            Some(word) => alternatives.push(read(word)?),
        }
    }
    if alternatives.is_empty() {
        return Err(Problem::new("{", "has nothing in it"));
    }
    Ok(Condition { negated, alternatives })
}
