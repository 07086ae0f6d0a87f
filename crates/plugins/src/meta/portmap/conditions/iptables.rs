// SPDX-License-Identifier: Apache-2.0
//! Conditions in iptables syntax: `-s 10.0.0.0/8 ! -i eth0`.

use super::{Condition, Match, Name, Problem, address_type, network, protocol};
use kernel::Family;

const OPTIONS: &str = "-s, -d, -i, -p, -m addrtype with --src-type or --dst-type, -m comment";

pub(super) fn parse(words: &[String], family: Family) -> Result<Vec<Condition>, Problem> {
    let mut words = words.iter().map(|word| word.trim()).filter(|word| !word.is_empty());
    let mut all = Vec::new();
    let mut negated = false;
    let mut last = "";
    while let Some(word) = words.next() {
        last = word;
        if word == "!" {
            negated = true;
            continue;
        }
        let missing = || Problem::new(word, "must be followed by a value");
        let value = words.next().ok_or_else(missing)?;
        if let Some(alternatives) = option(word, value, family)? {
            all.push(Condition { negated, alternatives });
        }
        negated = false;
    }
    if negated {
        return Err(Problem::new(last, "must be followed by an option"));
    }
    Ok(all)
}

/// Parses an option; `None` if it is not a condition.
fn option(word: &str, value: &str, family: Family) -> Result<Option<Vec<Match>>, Problem> {
    let alternatives = match word {
        "-s" | "--source" | "--src" => networks(value, family, Match::Source)?,
        "-d" | "--destination" | "--dst" => networks(value, family, Match::Destination)?,
        "-i" | "--in-interface" => vec![Match::Interface(Name::parse(value, '+')?)],
        "-p" | "--protocol" | "--proto" => vec![Match::Protocol(protocol(value)?)],
        "--src-type" => each(value, |word| address_type(word).map(Match::SourceType))?,
        "--dst-type" => each(value, |word| address_type(word).map(Match::DestinationType))?,
        "--comment" => return Ok(None),
        "-m" | "--match" => return module(value).map(|()| None),
        other => {
            let problem = format!("is not supported; allowed are {OPTIONS}");
            return Err(Problem::new(other, problem));
        }
    };
    Ok(Some(alternatives))
}

fn networks(
    value: &str,
    family: Family,
    to_match: fn(ipnet::IpNet) -> Match,
) -> Result<Vec<Match>, Problem> {
    each(value, |word| network(word, family).map(to_match))
}

fn each(
    value: &str,
    parse: impl Fn(&str) -> Result<Match, Problem>,
) -> Result<Vec<Match>, Problem> {
    value.split(',').map(parse).collect()
}

/// A module only enables the options that follow.
fn module(name: &str) -> Result<(), Problem> {
    const MODULES: [&str; 5] = ["addrtype", "comment", "tcp", "udp", "sctp"];
    if MODULES.contains(&name) {
        return Ok(());
    }
    let problem = format!("is not supported; allowed are {}", MODULES.join(", "));
    Err(Problem::new(name, problem))
}
