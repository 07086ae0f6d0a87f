// SPDX-License-Identifier: Apache-2.0
//! Conditions, separate for each network, in iptables or nft syntax.

use serde_json::{Value, json};
use testkit::{in_netns, require};

use super::lab::{Lab, port, portmap, seen_address, wait_for_seen_address};
use crate::conf::with;
use crate::world::Plugins;

fn network(name: &str, v4: &[&str], v6: &[&str]) -> Value {
    let keys = json!({"name": name, "conditionsV4": v4, "conditionsV6": v6});
    with(portmap(&[port(8080, 80, "tcp")]), &keys)
}

#[test]
fn mapped_ports_are_open_only_if_conditions_match() {
    in_netns(|| {
        require!(Program("socat"), Program("nft"));
        let lab = Lab::new(&Plugins::ours());
        let (four, six) = ("TCP4:192.0.2.1:8080", "TCP6:[fd00:2::1]:8080");
        let check = |v4: &[&str], v6: &[&str], reached: [bool; 2]| {
            let call = lab.call(&network("net", v4, v6), 1);
            call.add().ok();
            call.run("CHECK").ok();
            for (target, is_open) in [four, six].into_iter().zip(reached) {
                let ask = if is_open { wait_for_seen_address } else { seen_address };
                let seen = ask(&lab.client, target);
                assert_eq!(!seen.is_empty(), is_open, "{target} {v4:?} {v6:?}\n{}", lab.ruleset());
            }
            call.run("DEL").ok();
        };
        check(&["-s", "192.0.2.0/24"], &["!", "-s", "fd00:2::9"], [true, false]);
        check(&["!", "-s", "192.0.2.0/24"], &[], [false, true]);
        check(&["-i", "eth+"], &["-i", "eth1"], [true, false]);
        check(&["!", "-i", "eth0"], &["!", "-i", "eth9"], [false, true]);
        check(&["-d", "192.0.2.1,192.0.2.2", "-p", "tcp"], &["-p", "udp"], [true, false]);
        check(&["-m", "addrtype", "--dst-type", "LOCAL"], &[], [true, true]);
        check(&["-m", "addrtype", "--src-type", "LOCAL"], &[], [false, true]);
        check(&["ip", "saddr", "192.0.2.9"], &["ip6 saddr != fd00:2::/64"], [true, false]);
        check(&["iifname", "{ eth1, eth0 }"], &["iifname != { eth1, eth0 }"], [true, false]);
        check(&["fib saddr type unicast"], &["fib daddr type multicast"], [true, false]);
        check(
            &["meta iifname \"eth*\" ip daddr {192.0.2.7,192.0.2.1}"],
            &["iif br0"],
            [true, false],
        );
    });
}

/// With the Go plugin, the conditions of the last network apply to all networks.
#[test]
fn conditions_apply_per_network() {
    in_netns(|| {
        require!(Program("socat"), Program("nft"));
        let lab = Lab::new(&Plugins::ours());
        lab.world.on_host("addr add 192.0.2.2/24 dev eth0");
        let one = lab.call(&network("one", &["-d", "192.0.2.1"], &["-d", "fd00::8"]), 1);
        let two = lab.call(&network("two", &["-d", "192.0.2.2"], &["-d", "fd00::9"]), 2);
        let three = lab.call(&network("three", &["-d", "192.0.2.2"], &[]), 1);
        one.add().ok();
        two.add().ok();
        let (at_one, at_two) = ("TCP4:192.0.2.1:8080", "TCP4:192.0.2.2:8080");
        assert_ne!(wait_for_seen_address(&lab.client, at_one), "", "port of network one is closed");
        assert_eq!(
            seen_address(&lab.client, at_two),
            "",
            "port of network two answers without a server"
        );
        two.run("DEL").ok();
        let only_v4 = json!({"ips": [{"address": "10.1.0.2/24"}], "cniVersion": "1.1.0"});
        three.with_prev_result(&only_v4).add().ok();
        assert_ne!(
            wait_for_seen_address(&lab.client, at_two),
            "",
            "port of network three is closed"
        );
        // Same network and conditions: the port has an owner.
        let again = three.with_prev_result(&only_v4).container("c7").netns("/run/netns/pod2");
        again.add().fails_with(
            11,
            "tcp port 8080 of every IPv4 address is already mapped to c1/eth0 three",
        );
    });
}

#[test]
fn host_ip_with_conditions_restricts_further() {
    in_netns(|| {
        require!(Program("socat"), Program("nft"));
        let lab = Lab::new(&Plugins::ours());
        lab.world.on_host("addr add 192.0.2.2/24 dev eth0");
        let keys = json!({"conditionsV4": ["-s", "192.0.2.0/24"]});
        let at = with(port(8080, 81, "tcp"), &json!({"hostIP": "192.0.2.2"}));
        let call = lab.call(&with(portmap(&[port(8080, 80, "tcp"), at]), &keys), 1);
        call.add().ok();
        call.run("CHECK").ok();
        assert_ne!(wait_for_seen_address(&lab.client, "TCP4:192.0.2.1:8080"), "");
        assert_eq!(seen_address(&lab.client, "TCP4:192.0.2.2:8080"), "", "port 81 has no server");
    });
}

#[test]
fn gc_removes_unused_condition_chains() {
    in_netns(|| {
        require!(Program("nft"));
        let lab = Lab::new(&Plugins::ours());
        let one = network("net", &["-i", "eth0"], &["iifname { a, b }"]);
        let other = network("net", &["-i", "eth1"], &[]);
        let chains = || lab.ruleset().matches("chain ports-").count();
        lab.call(&one, 1).add().ok();
        lab.call(&with(other, &json!({"conditionsV6": ["-i", "eth1"]})), 2).add().ok();
        assert_eq!(chains(), 4);
        lab.call(&one, 1).gc(&[("c1", "eth0")]).ok();
        assert_eq!(chains(), 2, "wrong number of chains\n{}", lab.ruleset());
        lab.call(&one, 1).run("CHECK").ok();
        lab.call(&one, 1).run("DEL").ok();
        assert_eq!(chains(), 2, "DEL removed chains that the next ADD can reuse");
        lab.call(&one, 1).add().ok();
        lab.call(&one, 1).run("CHECK").ok();
        lab.call(&one, 1).gc(&[]).ok();
        assert_eq!(chains(), 0);
        assert_eq!(lab.ruleset().matches("jump ports-").count(), 0);
        assert_eq!(lab.all_elements(), Vec::<String>::new());
    });
}

#[test]
fn check_with_missing_condition_jumps_fails() {
    in_netns(|| {
        require!(Program("nft"));
        let lab = Lab::new(&Plugins::ours());
        let call = lab.call(&network("net", &["-i", "eth0"], &[]), 1);
        call.add().ok();
        lab.world.host.exec("nft", &["flush", "chain", "inet", "podwire", "conditions"]);
        call.run("CHECK").fails_with(999, "0 rules of chain \"conditions\" jump to");
    });
}

#[test]
fn unsupported_conditions_are_named_in_error() {
    in_netns(|| {
        let lab = Lab::new(&Plugins::ours());
        let before = lab.ruleset();
        let call = lab.call(&network("net", &["-m", "set", "--match-set", "x", "src"], &[]), 1);
        call.add().fails_with(7, "key \"conditionsV4\": \"set\" is not supported; allowed are");
        let call = lab.call(&network("net", &[], &["ip6 hoplimit 5"]), 1);
        call.add().fails_with(7, "key \"conditionsV6\": \"hoplimit\" is not supported");
        assert_eq!(lab.ruleset(), before);
        call.run("DEL").ok();
    });
}
