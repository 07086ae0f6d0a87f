// SPDX-License-Identifier: Apache-2.0
//! flannel's rules are removed, and no others.

use std::time::Duration;

use agent::dataplane::nft::{self, Change};
use testkit::{in_netns, require, run};

use super::forward::restore;
use super::lab::{Lab, NODE, NODE6, WORLD, WORLD6, check};
use super::{changes, conf, nft, open};

/// Rules of flanneld with iptables, and of Docker and kube-proxy. `{n}` is the network, `{s}` the
/// node's subnet, `{m}` multicast.
const BEFORE: &str = r#"*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
:FLANNEL-POSTRTG - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A POSTROUTING ! -o docker0 -m mark --mark 0x7 -j MASQUERADE
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s {s} -d {n} -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s {n} -d {s} -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s {n} -d {s} -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s {n} ! -d {m} -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s {n} -d {n} -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER-USER - [0:0]
:FLANNEL-FWD - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FORWARD -i docker0 -j ACCEPT
-A DOCKER-USER -m comment --comment "not flanneld forward" -j RETURN
-A FLANNEL-FWD -s {n} -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d {n} -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
"#;

fn with(network: &str, subnet: &str, multicast: &str) -> String {
    BEFORE.replace("{n}", network).replace("{s}", subnet).replace("{m}", multicast)
}

/// Returns all rules except flannel's and the agent's, without counters.
fn rest(saved: &str) -> Vec<String> {
    let is_other = |line: &&str| {
        !line.starts_with('#')
            && !line.contains("FLANNEL")
            && !line.contains("podwire agent")
            && !line.contains("\"flanneld ")
    };
    let mut lines: Vec<String> = saved
        .lines()
        .filter(is_other)
        .map(|line| line.split(" [").next().unwrap_or(line).to_owned())
        .collect();
    lines.sort();
    lines
}

#[test]
fn only_flannel_rules_are_removed() {
    in_netns(|| {
        require!(Program("socat"), Program("ip6tables-nft-restore"));
        let lab = Lab::new();
        let v4 = with("10.5.0.0/16", "10.5.1.0/24", "224.0.0.0/4");
        let v6 = with("fd05::/48", "fd05:0:0:1::/64", "ff00::/8");
        restore("iptables-nft-restore", &v4);
        restore("ip6tables-nft-restore", &v6);
        // An older flanneld had no separate chains.
        let old = ["-t", "nat", "-A", "POSTROUTING", "-s", "10.5.0.0/16", "-j", "MASQUERADE"];
        let comment = ["-m", "comment", "--comment", "flanneld masq"];
        run("iptables-nft", &[&old[..], &comment].concat());
        nft("add table ip flannel-ipv4");
        nft("add chain ip flannel-ipv4 postrtg { type nat hook postrouting priority srcnat; }");
        nft("add rule ip flannel-ipv4 postrtg ip saddr 10.5.0.0/16 masquerade fully-random");
        nft("add table ip6 flannel-ipv6");
        nft("add table ip flannel-ipv4-of-mine");
        let mut rules = open();
        changes(rules.set(&conf()));
        assert_eq!(rules.preview_flannel_removal().changes.len(), 11);
        assert_eq!(changes(rules.remove_flannel()).len(), 11);
        assert_eq!(changes(rules.remove_flannel()), [""; 0]);
        for (program, before) in [("iptables-nft-save", &v4), ("ip6tables-nft-save", &v6)] {
            let after = run(program, &[]);
            assert_eq!(rest(&after), rest(before));
            assert!(!after.contains("FLANNEL") && !after.contains("\"flanneld "), "{after}");
            assert_eq!(after.matches("podwire agent").count(), 2);
        }
        let tables = nft("list tables");
        assert!(tables.contains("flannel-ipv4-of-mine"), "{tables}");
        assert!(!tables.contains("flannel-ipv4\n") && !tables.contains("flannel-ipv6"), "{tables}");
        check(&lab.pod, WORLD, NODE);
        check(&lab.pod, WORLD6, NODE6);
    });
}

#[test]
fn rules_written_again_by_flanneld_are_removed() {
    in_netns(|| {
        let every = Duration::from_millis(100);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (rules, mut repairs) = nft::start("test", every).unwrap();
            changes(rules.run(|rules| rules.set(&conf())).await.unwrap().0);
            let v4 = with("10.5.0.0/16", "10.5.1.0/24", "224.0.0.0/4");
            restore("iptables-nft-restore", &v4);
            let changes = repairs.recv().await.unwrap().changes;
            let is_flannel = |change: &Change| matches!(change, Change::RemoveFlannelRule { .. });
            assert!(changes.iter().any(is_flannel), "{changes:?}");
            let after = run("iptables-nft-save", &[]);
            assert!(!after.contains("FLANNEL"), "{after}");
        });
    });
}

#[test]
fn flannel_rules_in_iptables_legacy_are_reported() {
    in_netns(|| {
        testkit::not_run_unless!(Program("iptables-legacy-restore"));
        if testkit::try_run("iptables-legacy", &["-t", "nat", "-S"]).is_err() {
            testkit::not_run(&testkit::test_name(), "the kernel has no iptables-legacy");
            return;
        }
        restore("iptables-legacy-restore", &with("10.5.0.0/16", "10.5.1.0/24", "224.0.0.0/4"));
        let rules = open();
        let problems = rules.remove_flannel().problems;
        assert_eq!(problems.len(), 2);
        for problem in problems {
            let text = problem.to_string();
            run("sh", &["-c", text.split_once("run: ").unwrap().1]);
        }
        changes(rules.remove_flannel());
        let after = run("iptables-legacy-save", &[]);
        assert!(!after.contains("FLANNEL") && after.contains("KUBE-POSTROUTING"), "{after}");
    });
}
