// SPDX-License-Identifier: Apache-2.0
//! Ingress policies, tested with packets.

use serde_json::json;
use testkit::in_netns;

use super::{Chain, OUTSIDE, address, assert_reaches, ours, outside};
use crate::conf::ptp;
use crate::rules::{elements, elements_of};

/// Pods 1 and 2 on one bridge, pod 3 on another, pod 4 on a third without a policy.
fn policy(first: &str, second: &str, expected: [[bool; 2]; 4]) {
    let world = ours(4);
    let _outside = outside(&world);
    let one = Chain::new(&world, 1, &json!({"ingressPolicy": first}));
    let two = Chain::new(&world, 2, &json!({"ingressPolicy": second}));
    let open = Chain::new(&world, 3, &json!({}));
    let results = [one.add(1), one.add(2), two.add(3), open.add(4)];
    println!("{first} {second}");
    for (result, expected) in results[1..].iter().zip(&expected) {
        assert_reaches(&world, 1, &[&address(result, 0), &address(result, 1)], expected);
    }
    assert_reaches(&world, 1, &OUTSIDE, &expected[3]);
    assert_reaches(&world, 1, &["10.1.0.1", "fd00:1::1"], &[true, true]);
    one.call(1).check(&results[0]).ok();
    one.call(2).check(&results[1]).ok();
    for (chain, pod) in [(&one, 1), (&one, 2), (&two, 3), (&open, 4)] {
        chain.del(pod, &results[pod - 1]);
    }
    one.call(1).gc(&[]).ok();
    assert_eq!(elements(&world.host), Vec::<String>::new());
}

#[test]
fn ingress_policies_separate_networks() {
    in_netns(|| {
        let (yes, no) = ([true, true], [false, false]);
        policy("open", "open", [yes, yes, yes, yes]);
        policy("same-bridge", "same-bridge", [yes, no, yes, yes]);
        policy("isolated", "same-bridge", [no, no, yes, yes]);
        policy("open", "isolated", [yes, yes, yes, yes]);
    });
}

/// podwire records a bridge while it has a container. GC of any network removes the record of an
/// unused bridge.
#[test]
fn gc_of_unused_bridge_removes_its_record() {
    in_netns(|| {
        let world = ours(2);
        let chain = Chain::new(&world, 1, &json!({"ingressPolicy": "isolated"}));
        let results = [chain.add(1), chain.add(2)];
        chain.call(1).gc(&[("c1", "eth0")]).ok();
        chain.call(1).check(&results[0]).ok();
        chain.call(2).check(&results[1]).fails_with(999, "");
        world.on_host(&format!(
            "link set {} type bridge_slave isolated off",
            results[0]["interfaces"][1]["name"].as_str().unwrap()
        ));
        chain.call(1).check(&results[0]).fails_with(999, "is not isolated");
        chain.call(1).gc(&[]).ok();
        assert_eq!(elements(&world.host), Vec::<String>::new());
    });
}

/// With ptp the first interface in the result is the container's host veth, which it shares with no
/// other container.
#[test]
fn del_with_ptp_removes_host_veth_record() {
    in_netns(|| {
        let world = ours(2);
        let mut chain = Chain::new(&world, 1, &json!({"ingressPolicy": "same-bridge"}));
        chain.bridge = ptp(&json!({"name": "net1"}));
        let results = [chain.add(1), chain.add(2)];
        assert_eq!(elements_of(&world.host, "firewall_bridges").len(), 2);
        chain.del(1, &results[0]);
        chain.call(2).check(&results[1]).ok();
        chain.call(2).netns("").run("DEL").ok();
        assert_eq!(elements(&world.host), Vec::<String>::new());
    });
}

#[test]
fn ingress_policy_without_interface_fails() {
    in_netns(|| {
        let world = ours(1);
        let chain = Chain::new(&world, 1, &json!({"ingressPolicy": "same-bridge"}));
        let result = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.2/24"}]});
        chain.call(1).with_prev_result(&result).add().fails_with(7, "ingressPolicy");
        assert_eq!(elements(&world.host), Vec::<String>::new());
    });
}
