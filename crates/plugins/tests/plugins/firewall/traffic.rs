// SPDX-License-Identifier: Apache-2.0
//! Traffic on hosts where other programs drop forwarded packets.

use serde_json::json;
use testkit::{in_netns, not_run_unless, require};

use super::{Chain, OUTSIDE, assert_reaches, like_docker, ours, outside};

#[test]
fn containers_with_docker_drop_policy_reach_outside() {
    in_netns(|| {
        require!(Program("iptables"), Program("ip6tables"));
        for docker_first in [true, false] {
            let world = ours(2);
            let _outside = outside(&world);
            let docker = || {
                like_docker(&world.host, "iptables");
                like_docker(&world.host, "ip6tables");
            };
            if docker_first {
                docker();
            }
            let chain = Chain::new(&world, 1, &json!({}));
            let result = chain.add(1);
            if !docker_first {
                docker();
            }
            world.call(&chain.bridge, 2).add().ok();
            assert_reaches(&world, 1, &OUTSIDE, &[true, true]);
            assert_reaches(&world, 2, &OUTSIDE, &[false, false]);
            chain.call(1).check(&result).ok();
            chain.call(1).del(&result).ok();
            assert_reaches(&world, 1, &OUTSIDE, &[false, false]);
        }
    });
}

/// podwire's rule accepts only replies, not new connections to the container.
#[test]
fn new_connections_from_outside_are_dropped() {
    in_netns(|| {
        let world = ours(1);
        let outside = outside(&world);
        like_docker(&world.host, "iptables");
        let result = Chain::new(&world, 1, &json!({})).add(1);
        let pod = super::address(&result, 0).parse().unwrap();
        assert!(!testkit::can_ping(&outside, pod));
        world.host.exec("iptables", &["-P", "FORWARD", "ACCEPT"]);
        assert!(testkit::answers(&outside, pod));
    });
}

/// podwire's rule in the iptables table is a valid iptables rule.
#[test]
fn forward_rule_can_be_saved_and_restored() {
    in_netns(|| {
        let world = ours(1);
        like_docker(&world.host, "iptables");
        let chain = Chain::new(&world, 1, &json!({}));
        let result = chain.add(1);
        let rule = "-A FORWARD -m mark --mark 0x1000/0x1000 -m comment --comment \
                    \"podwire: what the firewall plugin has marked\" -j ACCEPT";
        for save in ["iptables", "ip6tables"] {
            let listed = world.host.exec(save, &["-S", "FORWARD"]);
            assert_eq!(listed.lines().nth(1), Some(rule), "{listed}");
            let saved = world.host.exec(&format!("{save}-save"), &[]);
            assert!(saved.contains(rule), "{saved}");
            let restore = format!("{save}-save > /run/saved && {save}-restore < /run/saved");
            world.host.exec("sh", &["-c", &restore]);
            assert!(world.host.exec(save, &["-S", "FORWARD"]).contains(rule));
        }
        chain.call(1).check(&result).ok();
        let before = world.host.exec("nft", &["list", "ruleset"]);
        chain.call(1).with_prev_result(&result).add().ok();
        assert_eq!(
            world.host.exec("nft", &["list", "ruleset"]),
            before,
            "second ADD changed the ruleset"
        );
        world.host.exec("iptables", &["-F", "FORWARD"]);
        chain.call(1).check(&result).fails_with(999, "FORWARD of iptables");
        chain.call(1).with_prev_result(&result).add().ok();
        chain.call(1).check(&result).ok();
    });
}

#[test]
fn mark_bit_and_admin_chain_options_apply() {
    in_netns(|| {
        let world = ours(1);
        let _outside = outside(&world);
        like_docker(&world.host, "iptables");
        let keys = json!({"markBit": 20, "iptablesAdminChainName": "MY-RULES"});
        let chain = Chain::new(&world, 1, &keys);
        let result = chain.add(1);
        assert!(
            world.host.exec("iptables", &["-S", "FORWARD"]).contains("--mark 0x100000/0x100000")
        );
        assert_reaches(&world, 1, &OUTSIDE[..1], &[true]);
        let rule = "add rule inet podwire MY-RULES ip daddr 10.99.0.2 drop";
        world.host.exec("nft", &rule.split(' ').collect::<Vec<_>>());
        assert_reaches(&world, 1, &OUTSIDE[..1], &[false]);
        chain.call(1).with_prev_result(&result).add().ok();
        assert_reaches(&world, 1, &OUTSIDE[..1], &[false]);
        world.host.exec("nft", &["flush", "chain", "inet", "podwire", "firewall_admin"]);
        chain.call(1).check(&result).fails_with(999, "MY-RULES");
    });
}

/// Administrators' rules in the Go plugin's chain are evaluated before podwire's rule.
#[test]
fn go_chain_rules_are_evaluated_first() {
    in_netns(|| {
        let world = ours(1);
        let _outside = outside(&world);
        for line in
            ["-N CNI-FORWARD", "-A FORWARD -j CNI-FORWARD", "-A CNI-FORWARD -d 10.99.0.2 -j DROP"]
        {
            world.host.exec("iptables", &line.split(' ').collect::<Vec<_>>());
        }
        Chain::new(&world, 1, &json!({})).add(1);
        assert_reaches(&world, 1, &OUTSIDE[..1], &[false]);
    });
}

#[test]
fn add_with_dropping_iptables_legacy_fails() {
    in_netns(|| {
        not_run_unless!(Program("iptables-legacy"));
        let world = ours(2);
        let _outside = outside(&world);
        world.host.exec("iptables-legacy", &["-P", "FORWARD", "DROP"]);
        let chain = Chain::new(&world, 1, &json!({}));
        let result = world.call(&chain.bridge, 1).add().result();
        let call = chain.call(1).with_prev_result(&result);
        call.add().fails_with(999, "FORWARD of iptables-legacy drops");
        chain.call(1).status().fails_with(51, "iptables-legacy");
        assert_eq!(crate::rules::elements(&world.host), Vec::<String>::new());
        let named = Chain::new(&world, 1, &json!({"backend": "nftables"}));
        named.call(1).with_prev_result(&result).add().ok();
        named.call(1).status().ok();
        world.host.exec("iptables-legacy", &["-P", "FORWARD", "ACCEPT"]);
        // An IPv6 drop policy does not affect an IPv4 network.
        world.host.exec("ip6tables-legacy", &["-P", "FORWARD", "DROP"]);
        chain.call(1).status().ok();
        world.host.exec("ip6tables-legacy", &["-P", "FORWARD", "ACCEPT"]);
        chain.call(1).status().ok();
        call.add().ok();
    });
}
