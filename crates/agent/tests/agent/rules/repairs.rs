// SPDX-License-Identifier: Apache-2.0
//! Changes by other programs are noticed by their events and repaired. The agent's own changes
//! cause nothing.

use std::time::{Duration, Instant};

use agent::dataplane::nft::Rules;
use kernel::Received;
use kernel::nft::Events;
use testkit::{in_netns, require, run};

use super::forward::{DOCKERS, restore};
use super::lab::{Lab, NODE, WORLD, check};
use super::{changes, conf, nft, open, ruleset};

/// Waits for a relevant event and repairs.
#[track_caller]
fn repair(rules: &Rules, events: &mut Events) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut is_due = false;
    while !is_due {
        let received =
            events.receive(deadline, |event| is_due |= rules.is_relevant(&event)).unwrap();
        assert_ne!(received, Received::Deadline, "no event");
    }
    changes(rules.compare())
}

/// Receives all pending events, and checks that a comparison finds no difference and causes no
/// event. The kernel sends all events of a change before it acknowledges the change.
fn assert_converged(rules: &Rules, events: &mut Events) {
    while events.receive(Instant::now(), |_| {}).unwrap() == Received::Events {}
    assert_eq!(changes(rules.compare()), [""; 0]);
    assert_eq!(events.receive(Instant::now(), |_| {}).unwrap(), Received::Deadline);
}

#[test]
fn broken_rules_are_repaired() {
    in_netns(|| {
        restore("iptables-nft-restore", DOCKERS);
        let mut rules = open();
        let mut events = Events::listen().unwrap();
        changes(rules.set(&conf()));
        assert_converged(&rules, &mut events);
        let before = ruleset();
        let table = "inet podwire-agent-test";
        for script in [
            "flush chain {t} postrouting",
            "insert rule {t} postrouting accept",
            "add rule {t} postrouting counter",
            "add element {t} network4 { 192.0.2.0/24 }",
            "delete element {t} node4 { 10.5.1.0/24 }",
            "flush set {t} direct6",
            "add chain {t} postrouting { policy drop; }",
            "add table {t} { flags dormant; }",
            "add chain {t} more",
            "add set {t} more { type mark; }",
            "delete table {t}; add table {t}",
            "delete table {t}",
            "flush chain ip filter FORWARD; add rule ip filter FORWARD jump DOCKER-USER",
        ] {
            nft(&script.replace("{t}", table));
            assert!(!repair(&rules, &mut events).is_empty(), "{script}");
            assert_converged(&rules, &mut events);
            if !script.contains("ip filter") {
                assert_eq!(ruleset(), before, "{script}");
            }
        }
        run("iptables-nft", &["-F", "FORWARD"]);
        assert_eq!(repair(&rules, &mut events).len(), 2);
    });
}

#[test]
fn removed_or_changed_rule_is_restored() {
    in_netns(|| {
        let mut rules = open();
        let mut events = Events::listen().unwrap();
        changes(rules.set(&conf()));
        assert_converged(&rules, &mut events);
        let before = ruleset();
        let table = "inet podwire-agent-test";
        let handles = |text: String| -> Vec<String> {
            let rules = text
                .lines()
                .filter(|line| line.contains("comment \"") && line.contains("# handle"));
            rules
                .filter(|line| line.starts_with("\t\t"))
                .filter_map(|line| Some(line.rsplit_once(' ')?.1.to_owned()))
                .collect()
        };
        for at in 0..9 {
            let text =
                run("nft", &["-a", "list", "chain", "inet", "podwire-agent-test", "postrouting"]);
            let handle = handles(text)[at].clone();
            let script = match at % 2 {
                0 => format!("delete rule {table} postrouting handle {handle}"),
                _ => format!(
                    "replace rule {table} postrouting handle {handle} ip daddr @node4 accept"
                ),
            };
            nft(&script);
            assert_eq!(repair(&rules, &mut events), ["rewrite chain postrouting"]);
            assert_eq!(ruleset(), before);
            assert_converged(&rules, &mut events);
        }
    });
}

#[test]
fn traffic_continues_after_a_flush() {
    in_netns(|| {
        require!(Program("socat"));
        let lab = Lab::new();
        let mut rules = open();
        let mut events = Events::listen().unwrap();
        changes(rules.set(&conf()));
        check(&lab.pod, WORLD, NODE);
        assert_converged(&rules, &mut events);
        nft("flush ruleset");
        assert_eq!(repair(&rules, &mut events), ["create table inet podwire-agent-test"]);
        check(&lab.pod, WORLD, NODE);
        // Docker starts afterwards.
        restore("iptables-nft-restore", DOCKERS);
        assert_eq!(repair(&rules, &mut events).len(), 2);
        check(&lab.pod, WORLD, NODE);
        assert_eq!(
            changes(open().set(&conf())),
            [""; 0],
            "an agent that starts again changes nothing"
        );
    });
}

#[test]
fn foreign_rule_changes_are_ignored() {
    in_netns(|| {
        let mut rules = open();
        changes(rules.set(&conf()));
        let mut events = Events::listen().unwrap();
        nft("add table ip filter");
        nft("add chain ip filter INPUT");
        nft("add table inet podwire-agent-test2");
        nft("add table ip podwire-agent-test");
        let (mut all, mut relevant) = (0, 0);
        while events
            .receive(Instant::now(), |event| {
                all += 1;
                relevant += usize::from(rules.is_relevant(&event));
            })
            .unwrap()
            == Received::Events
        {}
        assert_eq!((all, relevant), (4, 0));
    });
}
