// SPDX-License-Identifier: Apache-2.0
//! Accept rules in the chain FORWARD of iptables.

use agent::dataplane::nft::RulesConf;
use testkit::{in_netns, require, run, try_run};

use super::lab::{Lab, NODE, NODE6, OTHER, POD, POD6, REMOTE, REMOTE6, WORLD, WORLD6, check, seen};
use super::{changes, conf, nets, open};

/// Docker's rules, as `iptables-save` prints them.
pub const DOCKERS: &str = "*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
";

pub fn restore(program: &str, rules: &str) {
    let file = "/run/rules.v4";
    std::fs::write(file, rules).unwrap();
    run(program, &[file]);
}

/// The rules of a chain as iptables prints them.
pub fn listed(program: &str, chain: &str) -> Vec<String> {
    run(program, &["-S", chain]).lines().map(str::to_owned).collect()
}

#[test]
fn docker_drop_policy_is_overruled() {
    in_netns(|| {
        require!(Program("socat"), Program("iptables-nft-restore"));
        let lab = Lab::new();
        restore("iptables-nft-restore", DOCKERS);
        run("ip6tables-nft", &["-P", "FORWARD", "DROP"]);
        let before = run("iptables-nft", &["-S"]);
        let mut rules = open();
        changes(rules.set(&RulesConf { forwards: false, ..conf() }));
        for switch in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
            run("sysctl", &["-w", switch]);
        }
        assert_eq!(seen(&lab.pod, WORLD), None, "the test detects it");
        let set = changes(rules.set(&conf()));
        assert_eq!(
            set,
            [
                "set iptables rule for packets from 10.5.0.0/16",
                "set iptables rule for packets to 10.5.0.0/16",
                "set ip6tables rule for packets from fd05::/48",
                "set ip6tables rule for packets to fd05::/48",
            ]
        );
        check(&lab.pod, WORLD, NODE);
        check(&lab.pod, WORLD6, NODE6);
        check(&lab.world, POD, WORLD);
        // With br_netfilter, packets on the bridge pass the chain as well.
        check(&lab.pod, OTHER, POD);
        check(&lab.remote, POD6, REMOTE6);
        check(&lab.pod, REMOTE, POD);
        check(&lab.pod, REMOTE6, POD6);
        let chain = listed("iptables-nft", "FORWARD");
        assert_eq!(
            chain[6..],
            [
                r#"-A FORWARD -s 10.5.0.0/16 -m comment --comment "podwire agent test: from 10.5.0.0/16" -j ACCEPT"#,
                r#"-A FORWARD -d 10.5.0.0/16 -m comment --comment "podwire agent test: to 10.5.0.0/16" -j ACCEPT"#,
            ]
        );
        let docs = include_str!("../../../../../docs/agent-rules.md");
        assert!(docs.contains(&chain[6..].join("\n")));
        changes(rules.remove());
        assert_eq!(run("iptables-nft", &["-S"]), before);
        assert_eq!(seen(&lab.pod, WORLD), None);
    });
}

#[test]
fn forwarding_is_enabled_for_the_families_in_use() {
    in_netns(|| {
        let read = |name: &str| run("sysctl", &["-n", name]).trim().to_owned();
        for switch in ["net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0"] {
            run("sysctl", &["-w", switch]);
        }
        let mut rules = open();
        let v6 = RulesConf { networks: nets(&["fd05::/48"]), masquerade: None, ..conf() };
        assert_eq!(changes(rules.set(&v6)), ["set net.ipv6.conf.all.forwarding to 1"]);
        assert_eq!(read("net.ipv4.ip_forward"), "0");
        assert_eq!(read("net.ipv6.conf.all.forwarding"), "1");
        run("sysctl", &["-w", "net.ipv6.conf.all.forwarding=0"]);
        assert_eq!(changes(rules.compare()), ["set net.ipv6.conf.all.forwarding to 1"]);
        assert_eq!(run("nft", &["list", "ruleset"]), "", "no foreign table is created");
    });
}

#[test]
fn rules_are_first_in_a_closed_chain() {
    in_netns(|| {
        let forward = |words: &str| {
            run("iptables-nft", &words.split_whitespace().collect::<Vec<_>>());
        };
        forward("-N POLICIES");
        forward("-A FORWARD -j POLICIES");
        forward("-A FORWARD -i bad0 -j DROP");
        forward("-A FORWARD -j REJECT --reject-with icmp-host-prohibited");
        let mut rules = open();
        let one = RulesConf { networks: nets(&["10.5.0.0/16"]), ..conf() };
        changes(rules.set(&one));
        let places = || -> Vec<bool> {
            listed("iptables-nft", "FORWARD")[1..]
                .iter()
                .map(|one| one.contains("podwire"))
                .collect()
        };
        assert_eq!(places(), [false, false, true, true, false]);
        assert_eq!(changes(rules.compare()), [""; 0]);
        // Another program inserts a drop rule before the agent's rules.
        forward("-I FORWARD 2 -j DROP");
        assert_eq!(changes(rules.compare()).len(), 2);
        assert_eq!(places(), [false, true, true, false, false, false]);
        // One rule is missing, one exists twice.
        forward("-D FORWARD 2");
        assert_eq!(changes(rules.compare()).len(), 2);
        let double = "-A FORWARD -d 10.5.0.0/16 -j ACCEPT -m comment --comment";
        let mut words: Vec<&str> = double.split(' ').collect();
        words.push("podwire agent test: to 10.5.0.0/16");
        run("iptables-nft", &words);
        changes(rules.compare());
        assert_eq!(places(), [false, true, true, false, false, false]);
        // iptables saves and restores the rules in another form that is equivalent.
        restore("iptables-nft-restore", &run("iptables-nft-save", &[]));
        assert_eq!(changes(rules.compare()), [""; 0]);
        // A different network.
        changes(rules.set(&RulesConf { networks: nets(&["10.6.0.0/15"]), ..conf() }));
        let text = listed("iptables-nft", "FORWARD").join("\n");
        assert!(text.contains("-s 10.6.0.0/15") && !text.contains("10.5.0.0"), "{text}");
    });
}

#[test]
fn iptables_legacy_is_reported() {
    in_netns(|| {
        testkit::not_run_unless!(Program("iptables-legacy"));
        if try_run("iptables-legacy", &["-P", "FORWARD", "DROP"]).is_err() {
            testkit::not_run(&testkit::test_name(), "the kernel has no iptables-legacy");
            return;
        }
        let mut rules = open();
        let one = RulesConf { networks: nets(&["10.5.0.0/16"]), ..conf() };
        let problems = rules.set(&one).problems;
        assert_eq!(problems.len(), 1);
        let text = problems[0].to_string();
        let (_, commands) = text.split_once("run: ").unwrap();
        run("sh", &["-c", commands]);
        assert_eq!(run("iptables-legacy", &["-S", "FORWARD"]).matches("ACCEPT").count(), 2);
        changes(rules.compare());
    });
}
