// SPDX-License-Identifier: Apache-2.0
//! Switching a node between the Go plugins and podwire while pods run: each set of plugins handles
//! the pods created by the other set.

use serde_json::{Value, json};
use testkit::{in_netns, require};

use super::{Chain, full, left, runtime_config};
use crate::conf::with;
use crate::mixed_rules::rules_of_containers;
use crate::rules::elements;
use crate::world::{Plugins, World};

fn chain<'a>(world: &'a World, plugins: &'a Plugins) -> Chain<'a> {
    Chain::new(world, plugins, full(&json!({})))
}

#[track_caller]
fn assert_nothing_left(world: &World) {
    assert_eq!(left(world), Vec::<String>::new());
    assert_eq!(rules_of_containers(world), Vec::<String>::new());
}

/// Interfaces and address files, which both sets of plugins know.
fn links_and_addresses(world: &World) -> Vec<String> {
    let ours = elements(&world.host);
    left(world).into_iter().filter(|one| !ours.contains(one) && !one.starts_with("masq-")).collect()
}

/// Runs DEL with the Go plugins for a pod created by podwire. Go's bridge removes the interface and
/// the addresses, then fails if iptables reports that the masquerading chain does not exist. The
/// runtime's next DEL finds nothing left to do.
#[track_caller]
fn del_by_go(by_go: &Chain, pod: usize, result: &Value) {
    for call in by_go.calls(pod).iter().rev() {
        let first = call.del(result);
        let is_known = call.config["type"] == "bridge"
            && first.stdout.contains("-D POSTROUTING")
            && first.stdout.contains("does not exist");
        assert!(first.success || is_known, "{first:?}");
    }
    assert_eq!(by_go.world.pod(pod).ip_json(&["link", "show", "type", "veth"]), json!([]));
    let address = result["ips"][0]["address"].as_str().expect("an address");
    let file = format!("/{}", address.trim_end_matches("/24"));
    let common = links_and_addresses(by_go.world);
    assert!(!common.iter().any(|one| one.ends_with(&file)), "{file} in {common:?}");
    by_go.del(pod, result);
}

/// Uses the default backends of the Go plugins: iptables, and nft for the spoof check.
#[test]
fn go_pods_are_checked_and_removed_by_podwire() {
    in_netns(|| {
        require!(Program("iptables"), Program("nft"));
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&go, 5);
        let (by_go, by_ours) = (chain(&world, &go), chain(&world, &ours));
        let results: Vec<Value> = (1..=4).map(|pod| by_go.add(pod)).collect();
        // A podwire pod on the same bridge, with the next address.
        let new = by_ours.add(5);
        for (pod, result) in (1..).zip(&results) {
            by_go.check(pod, result);
            by_ours.check(pod, result);
        }
        by_ours.del(1, &results[0]);
        by_ours.del(1, &results[0]);
        let rules = rules_of_containers(&world).join("\n");
        assert!(!rules.contains("10.1.0.2") && rules.contains("10.1.0.3"), "{rules}");
        by_ours.check(2, &results[1]);
        by_go.check(3, &results[2]);
        // DEL after the namespace is deleted.
        world.on_host("netns del pod2");
        for call in by_ours.calls(2).iter().rev() {
            call.netns("").del(&results[1]).ok();
        }
        by_go.del(3, &results[2]);
        by_ours.check(4, &results[3]);
        by_ours.del(4, &results[3]);
        by_ours.check(5, &new);
        by_ours.del(5, &new);
        // Removes chains shared by the pods of a network.
        by_ours.gc(&[]);
        assert_nothing_left(&world);
    });
}

/// Switching back: the Go plugins do not know podwire's nf_tables table.
#[test]
fn podwire_pods_are_removed_by_go_plugins() {
    in_netns(|| {
        require!(Program("iptables"), Program("nft"));
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&ours, 3);
        let (by_go, by_ours) = (chain(&world, &go), chain(&world, &ours));
        let results = [1, 2, 3].map(|pod| by_ours.add(pod));
        for (call, of) in by_go.calls(1).iter().zip(["bridge", "portmap", "bandwidth", "firewall"])
        {
            let answer = call.check(&results[0]);
            // Both look for iptables chains that only they create.
            assert_eq!(answer.success, !matches!(of, "portmap" | "firewall"), "{of} {answer:?}");
        }
        del_by_go(&by_go, 1, &results[0]);
        del_by_go(&by_go, 2, &results[1]);
        let common = links_and_addresses(&world).join(" ");
        assert!(!common.contains("10.1.0.2") && common.contains("10.1.0.4"), "{common}");
        assert_eq!(common.matches("veth").count(), 1, "{common}");
        assert_eq!(common.matches("bwp").count(), 1, "{common}");
        by_ours.check(3, &results[2]);
        // The command that the manual gives for freeing a port by hand.
        let port = ["delete", "element", "inet", "podwire", "ports4", "{ tcp . 20001 }"];
        world.host.exec("nft", &port);
        // Podwire's elements are left; GC removes them.
        assert!(elements(&world.host).iter().any(|one| one.contains("c1/eth0 net")));
        by_ours.gc(&[("c3", "eth0")]);
        let elements = elements(&world.host).join("\n");
        assert!(!elements.contains("c1/eth0") && !elements.contains("c2/eth0"), "{elements}");
        by_ours.check(3, &results[2]);
        by_ours.del(3, &results[2]);
        by_ours.gc(&[]);
        assert_nothing_left(&world);
    });
}

/// If the configuration selects iptables, both sets create the same rules, and switching leaves
/// nothing in either direction.
#[test]
fn iptables_pods_are_removed_by_either_plugin_set() {
    in_netns(|| {
        require!(Program("iptables"), Program("nft"));
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let mut configs = full(&json!({"ipMasqBackend": "iptables", "macspoofchk": false}));
        for at in [1, 3] {
            configs[at]["backend"] = "iptables".into();
        }
        let world = World::new(&ours, 2);
        let by_go = Chain::new(&world, &go, configs.clone());
        let by_ours = Chain::new(&world, &ours, configs);
        for (first, second) in [(&by_ours, &by_go), (&by_go, &by_ours)] {
            let results = [1, 2].map(|pod| first.add(pod));
            for (pod, result) in (1..).zip(&results) {
                second.check(pod, result);
                second.del(pod, result);
            }
            // Sets that record the owners of firewall's rules.
            let owner_sets = ["podwire owned ", "podwire firewall_told"];
            let is_owner_record = |one: &String| owner_sets.iter().any(|set| one.starts_with(set));
            assert!(elements(&world.host).iter().all(is_owner_record));
            by_ours.gc(&[]);
            assert_nothing_left(&world);
        }
    });
}

/// Without a GC, the next pod with the same address or port takes over stale elements.
#[test]
fn next_pod_takes_over_elements_left_by_go_del() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&ours, 2);
        let (by_go, by_ours) = (chain(&world, &go), chain(&world, &ours));
        let first = by_ours.add(1);
        del_by_go(&by_go, 1, &first);
        // A second pod gets the same addresses and ports.
        let ipam = &by_ours.configs[0]["ipam"];
        let wanted = json!({"ranges": [
            [{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.2"}],
            [{"subnet": "fd00:1::/64", "rangeStart": "fd00:1::2"}],
        ]});
        let again = full(&json!({"ipam": with(ipam.clone(), &wanted)}));
        std::fs::remove_file("/run/data/net/last_reserved_ip.0")
            .expect("host-local recorded its last address");
        std::fs::remove_file("/run/data/net/last_reserved_ip.1")
            .expect("host-local recorded its last address");
        let next = Chain::new(&world, &ours, again);
        let as_first = |pod: usize, result: &Value| {
            let calls = next.calls(pod).into_iter();
            let call = |call: crate::call::Call| {
                let mut config = call.config.clone();
                if config["type"] == "portmap" {
                    config["runtimeConfig"]["portMappings"] =
                        runtime_config(1)["portMappings"].clone();
                }
                call.config(&config).with_prev_result(result)
            };
            calls.map(call).collect::<Vec<_>>()
        };
        let bridge = next.calls(2)[0].add().result();
        assert_eq!(bridge["ips"], first["ips"]);
        let portmap = &as_first(2, &bridge)[1];
        // While the namespace exists, the container counts as alive.
        portmap.add().fails_with(11, "c1/eth0 net");
        world.on_host("netns del pod1");
        portmap.add().ok();
        let mut result = bridge;
        for call in as_first(2, &result).into_iter().skip(2) {
            result = call.with_prev_result(&result).add().result();
        }
        for call in as_first(2, &result) {
            call.run("CHECK").ok();
        }
        // The remaining elements only record owners, ports and addresses of an interface that no
        // longer exists.
        let elements = elements(&world.host);
        let is_harmless = |one: &&String| {
            let sets = ["podwire owned ", "podwire ports ", "podwire addresses "];
            sets.iter().any(|set| one.starts_with(set))
        };
        let still: Vec<&String> = elements.iter().filter(|one| one.contains("c1/eth0")).collect();
        assert!(still.iter().all(is_harmless), "{still:#?}");
        for call in as_first(2, &result).iter().rev() {
            call.run("DEL").ok();
        }
        next.gc(&[]);
        assert_nothing_left(&world);
    });
}
