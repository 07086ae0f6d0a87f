// SPDX-License-Identifier: Apache-2.0
//! The node's rules: their effect on packets, their form in `nft` and `iptables-save`, and repairs.

mod forward;
mod lab;
mod masquerade;
mod repairs;
mod take_over;

use agent::dataplane::nft::{Outcome, Rules, RulesConf};
use agent::settings::Masquerade;
use ipnet::IpNet;
use testkit::run;

pub fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A network of both families with masquerading and forwarding.
pub fn conf() -> RulesConf {
    RulesConf {
        networks: nets(&["10.5.0.0/16", "fd05::/48"]),
        subnets: nets(&["10.5.1.0/24", "fd05:0:0:1::/64"]),
        sources: None,
        masquerade: Some(Masquerade { fully_random: true, except: Vec::new() }),
        forwards: true,
    }
}

pub fn open() -> Rules {
    Rules::open("test").unwrap()
}

/// Returns the changes as text, and fails on problems.
#[track_caller]
pub fn changes(outcome: Outcome) -> Vec<String> {
    assert_eq!(outcome.problems, [], "after {:?}", outcome.changes);
    outcome.changes.into_iter().map(|change| change.to_string()).collect()
}

/// Runs a script of `nft`.
#[track_caller]
pub fn nft(script: &str) -> String {
    run("nft", &[script])
}

pub fn ruleset() -> String {
    run("nft", &["-s", "list", "ruleset"])
}
