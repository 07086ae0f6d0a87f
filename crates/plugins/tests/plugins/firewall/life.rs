// SPDX-License-Identifier: Apache-2.0
//! DEL, CHECK, STATUS, GC and invalid input.

use serde_json::{Value, json};
use testkit::in_netns;

use super::{Chain, firewall, ours};
use crate::rules::{elements, elements_of};

fn count(chain: &Chain) -> usize {
    elements_of(&chain.world.host, "firewall4-").len()
}

#[test]
fn del_without_namespace_or_result_succeeds() {
    in_netns(|| {
        let world = ours(3);
        let chain = Chain::new(&world, 1, &json!({}));
        let results: Vec<Value> = (1..=3).map(|pod| chain.add(pod)).collect();
        assert_eq!(count(&chain), 3);
        chain.call(1).netns("").run("DEL").ok();
        assert_eq!(count(&chain), 2);
        chain.call(2).netns("/run/netns/gone").del(&results[1]).ok();
        chain.call(2).del(&results[1]).ok();
        chain.call(3).check(&results[2]).ok();
        chain.call(1).check(&results[0]).fails_with(999, "");
        let bad = firewall("net1", &json!({"ingressPolicy": "nonsense", "backend": "nonsense"}));
        world.call(&bad, 3).run("DEL").ok();
        assert_eq!(elements(&world.host), Vec::<String>::new());
        chain.call(3).run("DEL").ok();
    });
}

/// DEL of the old owner keeps the elements of an address that has a new owner.
#[test]
fn late_del_of_reused_address_keeps_new_owner() {
    in_netns(|| {
        let world = ours(2);
        let chain = Chain::new(&world, 1, &json!({}));
        let result = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.2/24"}]});
        chain.call(1).with_prev_result(&result).add().ok();
        chain.call(2).with_prev_result(&result).add().ok();
        chain.call(1).del(&result).ok();
        chain.call(2).check(&result).ok();
        chain.call(2).del(&result).ok();
        assert_eq!(count(&chain), 0);
    });
}

/// An address reassigned by another network loses the mark and the policy of the old network.
#[test]
fn address_reassigned_follows_new_network_policy() {
    in_netns(|| {
        let world = ours(2);
        let old = Chain::new(&world, 1, &json!({"ingressPolicy": "same-bridge", "markBit": 3}));
        let new = Chain::new(&world, 2, &json!({"ingressPolicy": "isolated"}));
        let result = |bridge: &str| {
            let interfaces = json!([{"name": bridge}]);
            let ips = json!([{"address": "10.1.0.2/24"}, {"address": "fd00:1::2/64"}]);
            json!({"cniVersion": "1.1.0", "interfaces": interfaces, "ips": ips})
        };
        old.call(1).with_prev_result(&result("br1")).add().ok();
        old.call(1).check(&result("br1")).ok();
        new.call(2).with_prev_result(&result("br2")).add().ok();
        let sets = ["firewall4-00000003", "firewall6-00000003", "firewall_same"];
        for set in sets {
            assert_eq!(elements_of(&world.host, set), Vec::<String>::new(), "{set}");
        }
        new.call(2).check(&result("br2")).ok();
        old.call(1).check(&result("br1")).fails_with(999, "c2/eth0 net2");
        old.call(1).del(&result("br1")).ok();
        new.call(2).check(&result("br2")).ok();
        new.call(2).del(&result("br2")).ok();
        new.call(2).gc(&[]).ok();
        assert_eq!(elements(&world.host), Vec::<String>::new());
    });
}

#[test]
fn gc_removes_elements_of_unlisted_attachments() {
    in_netns(|| {
        let world = ours(3);
        let (one, two) = (Chain::new(&world, 1, &json!({})), Chain::new(&world, 2, &json!({})));
        let results = [one.add(1), one.add(2), two.add(3)];
        one.call(1).run("GC").ok();
        assert_eq!(count(&one), 3);
        one.call(1).gc(&[("c2", "eth0")]).ok();
        assert_eq!(count(&one), 2);
        one.call(2).check(&results[1]).ok();
        two.call(3).check(&results[2]).ok();
    });
}

#[test]
fn check_after_flush_fails_and_add_restores_rules() {
    in_netns(|| {
        let world = ours(1);
        let chain = Chain::new(&world, 1, &json!({}));
        let result = chain.add(1);
        world.host.exec("nft", &["flush", "ruleset"]);
        chain.call(1).check(&result).fails_with(999, "table \"podwire\" is gone, as after");
        chain.call(1).with_prev_result(&result).add().ok();
        chain.call(1).check(&result).ok();
        assert!(crate::rules::can_be_reloaded(&world.host));
    });
}

#[test]
fn check_with_flushed_chains_fails() {
    in_netns(|| {
        let world = ours(1);
        for policy in ["same-bridge", "isolated"] {
            let chain = Chain::new(&world, 1, &json!({"ingressPolicy": policy}));
            let result = chain.add(1);
            chain.call(1).check(&result).ok();
            // CHECK of bridge accepts a port isolated by firewall.
            world.call(&chain.bridge, 1).check(&result).ok();
            assert!(crate::rules::can_be_reloaded(&world.host));
            assert!(crate::rules::ruleset(&world.host).contains("elements = { \"br1\" }"));
            for name in ["firewall_mark_12", "firewall_marks", "firewall_forward"] {
                world.host.exec("nft", &["flush", "chain", "inet", "podwire", name]);
                chain.call(1).check(&result).fails_with(999, name);
                world.host.exec("nft", &["delete", "table", "inet", "podwire"]);
                chain.call(1).with_prev_result(&result).add().ok();
                chain.call(1).check(&result).ok();
            }
            chain.del(1, &result);
        }
    });
}

#[test]
fn invalid_input_is_reported_and_changes_nothing() {
    in_netns(|| {
        let world = ours(1);
        let result = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.2/24"}]});
        for (keys, words) in [
            (json!({"backend": "ipfw"}), "\"backend\" is \"ipfw\""),
            (json!({"ingressPolicy": "closed"}), "\"ingressPolicy\" is \"closed\""),
            (json!({"markBit": 32}), "\"markBit\" is 32"),
            (json!({"iptablesAdminChainName": "a b"}), "\"iptablesAdminChainName\" is \"a b\""),
            (json!({"iptablesAdminChainName": "firewall_forward"}), "names that do not begin with"),
        ] {
            let call = world.call(&firewall("net", &keys), 1);
            call.with_prev_result(&result).add().fails_with(7, words);
            call.status().fails_with(7, words);
        }
        world.call(&firewall("net", &json!({})), 1).add().fails_with(7, "prevResult");
        let named = firewall("net", &json!({"backend": "firewalld"}));
        world.call(&named, 1).status().fails_with(50, "firewalld does not run");
        world.call(&named, 1).with_prev_result(&result).add().fails_with(11, "firewalld");
        world.call(&named, 1).del(&result).ok();
        assert_eq!(crate::rules::ruleset(&world.host), "");
    });
}
