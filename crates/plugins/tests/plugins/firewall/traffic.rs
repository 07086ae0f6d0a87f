// SPDX-License-Identifier: Apache-2.0
//! Packets, on hosts where others drop what is forwarded.

use serde_json::json;
use testkit::{in_netns, not_run_unless, require};

use super::{Chain, OUTSIDE, like_docker, ours, outside, reaches};

#[test]
fn containers_get_out_where_docker_drops() {
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
            reaches(&world, 1, &OUTSIDE, &[true, true]);
            reaches(&world, 2, &OUTSIDE, &[false, false]);
            chain.call(1).check(&result).ok();
            chain.call(1).del(&result).ok();
            reaches(&world, 1, &OUTSIDE, &[false, false]);
        }
    });
}

/// Nobody gets in by this: only answers are let pass.
#[test]
fn new_connections_from_outside_stay_dropped() {
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

/// The one rule of ours in the table of iptables is a rule of iptables.
#[test]
fn iptables_reads_saves_and_restores_the_rule() {
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
        assert_eq!(world.host.exec("nft", &["list", "ruleset"]), before, "not a second rule");
        world.host.exec("iptables", &["-F", "FORWARD"]);
        chain.call(1).check(&result).fails_with(999, "FORWARD of iptables");
        chain.call(1).with_prev_result(&result).add().ok();
        chain.call(1).check(&result).ok();
    });
}

#[test]
fn another_bit_and_the_administrators_chain() {
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
        reaches(&world, 1, &OUTSIDE[..1], &[true]);
        let rule = "add rule inet podwire MY-RULES ip daddr 10.99.0.2 drop";
        world.host.exec("nft", &rule.split(' ').collect::<Vec<_>>());
        reaches(&world, 1, &OUTSIDE[..1], &[false]);
        chain.call(1).with_prev_result(&result).add().ok();
        reaches(&world, 1, &OUTSIDE[..1], &[false]);
        world.host.exec("nft", &["flush", "chain", "inet", "podwire", "firewall_admin"]);
        chain.call(1).check(&result).fails_with(999, "MY-RULES");
    });
}

/// Rules of administrators in the Go plugin's chain have their say before ours.
#[test]
fn chains_of_the_go_plugin_come_first() {
    in_netns(|| {
        let world = ours(1);
        let _outside = outside(&world);
        for line in
            ["-N CNI-FORWARD", "-A FORWARD -j CNI-FORWARD", "-A CNI-FORWARD -d 10.99.0.2 -j DROP"]
        {
            world.host.exec("iptables", &line.split(' ').collect::<Vec<_>>());
        }
        Chain::new(&world, 1, &json!({})).add(1);
        reaches(&world, 1, &OUTSIDE[..1], &[false]);
    });
}

#[test]
fn iptables_legacy_that_drops_is_told() {
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
        // A network of IPv4 alone is not concerned.
        world.host.exec("ip6tables-legacy", &["-P", "FORWARD", "DROP"]);
        chain.call(1).status().ok();
        world.host.exec("ip6tables-legacy", &["-P", "FORWARD", "ACCEPT"]);
        chain.call(1).status().ok();
        call.add().ok();
    });
}
