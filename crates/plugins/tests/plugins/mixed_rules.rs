// SPDX-License-Identifier: Apache-2.0
//! Packet filter rules when a node is switched while pods run: podwire checks and removes the rules
//! of the Go plugins.

use serde_json::{Value, json};
use testkit::{in_netns, require};

use crate::conf::{bridge, dual, ptp, ranges, with, without};
use crate::world::{Plugins, World};

/// Text found only in rules of containers. Shared chains, which stay when empty, do not contain it.
const CONTAINER_MARKERS: [&str; 6] =
    ["10.1.0.", "fd00:1:", "id: ", "CNI-DN-", "cni-br-iface", "macspoofchk"];

/// Lines of all rules about containers, printed by iptables and nft.
pub fn rules_of_containers(world: &World) -> Vec<String> {
    let mut printed = String::new();
    for program in ["iptables-save", "ip6tables-save"] {
        printed += &world.host.exec(program, &[]);
    }
    printed += &world.host.exec("nft", &["list", "ruleset"]);
    let is_of_container = |line: &&str| CONTAINER_MARKERS.iter().any(|word| line.contains(word));
    printed.lines().filter(is_of_container).map(str::to_owned).collect()
}

#[track_caller]
fn assert_no_rules(world: &World) {
    assert_eq!(rules_of_containers(world), Vec::<String>::new());
}

fn masquerading(backend: &str) -> [Value; 2] {
    let routes = json!({"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
    let keys = json!({"ipMasq": true, "ipMasqBackend": backend, "ipam": with(dual(), &routes)});
    [bridge(&with(keys.clone(), &json!({"isGateway": true}))), ptp(&keys)]
}

/// Runs `body` for each network and masquerading backend, with containers created by the Go plugins
/// and their results. Asserts that no rules are left.
fn in_each_network(pods: usize, body: impl Fn(&World, &Value, &[Value])) {
    in_netns(|| {
        require!(Program("iptables"), Program("nft"));
        let go = Plugins::go();
        for network in ["iptables", "nftables"].iter().flat_map(|backend| masquerading(backend)) {
            let world = World::new(&go, 3);
            let results: Vec<Value> =
                (1..=pods).map(|pod| world.call(&network, pod).add().result()).collect();
            body(&world, &network, &results);
            assert_no_rules(&world);
        }
    });
}

#[test]
fn go_masquerading_is_checked_and_removed() {
    in_each_network(3, |world, network, results| {
        let ours = Plugins::ours();
        let plain = without(network.clone(), &["ipMasqBackend"]);
        let by_ours = |pod| world.call_of(&ours, &plain, pod);
        by_ours(1).check(&results[0]).ok();
        by_ours(1).del(&results[0]).ok();
        by_ours(1).check(&results[0]).fails_with(999, "");
        let left = rules_of_containers(world).join("\n");
        assert!(!left.contains("10.1.0.2") && left.contains("10.1.0.3"), "{left}");
        by_ours(2).check(&results[1]).ok();
        // Some runtimes pass neither result nor namespace.
        by_ours(2).netns("").run("DEL").ok();
        world.call(network, 3).check(&results[2]).ok();
        by_ours(3).del(&results[2]).ok();
    });
}

/// Pods whose DEL was lost before or after the switch.
#[test]
fn gc_removes_go_masquerading() {
    in_each_network(2, |world, network, results| {
        let ours = Plugins::ours();
        let apart = ranges(&json!([
            [{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.200"}],
            [{"subnet": "fd00:1::/64", "rangeStart": "fd00:1::c8"}]
        ]));
        let other = with(network.clone(), &json!({"name": "other", "ipam": apart}));
        let third = world.call(&other, 3).add().result();
        let by_ours = |network: &Value, pod| {
            world.call_of(&ours, &without(network.clone(), &["ipMasqBackend"]), pod)
        };
        by_ours(network, 1).gc(&[("c2", "eth0")]).ok();
        by_ours(network, 1).check(&results[0]).fails_with(999, "");
        by_ours(network, 2).check(&results[1]).ok();
        world.call(network, 2).check(&results[1]).ok();
        by_ours(network, 1).gc(&[]).ok();
        by_ours(&other, 3).check(&third).ok();
        by_ours(&other, 3).gc(&[]).ok();
    });
}

/// With the Go plugin, both attachments of a container to a network share a chain.
#[test]
fn del_of_one_interface_keeps_masquerading_of_other() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let [network, _] = masquerading("iptables");
        let world = World::new(&go, 1);
        let first = world.call(&network, 1).add().result();
        let second = world.call(&network, 1).ifname("eth1").add().result();
        let by_ours = world.call_of(&ours, &without(network, &["ipMasqBackend"]), 1);
        by_ours.ifname("eth1").del(&second).ok();
        by_ours.check(&first).ok();
        by_ours.del(&first).ok();
        assert_no_rules(&world);
    });
}

#[test]
fn go_spoof_checks_are_removed() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let network = bridge(&json!({"macspoofchk": true}));
        let world = World::new(&go, 2);
        let first = world.call(&network, 1).add().result();
        let second = world.call(&network, 2).add().result();
        assert!(
            rules_of_containers(&world).iter().any(|line| line.contains("macspoofchk-c1-eth0"))
        );
        world.call_of(&ours, &network, 1).del(&first).ok();
        let left = rules_of_containers(&world).join("\n");
        assert!(!left.contains("c1-eth0") && left.contains("c2-eth0"), "{left}");
        world.call_of(&ours, &network, 2).del(&second).ok();
        assert_no_rules(&world);
    });
}
