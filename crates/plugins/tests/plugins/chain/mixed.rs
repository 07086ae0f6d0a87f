// SPDX-License-Identifier: Apache-2.0
//! A node that is switched over with pods running, and back: each set of plugins sees to the pods that
//! the other made.

use serde_json::{Value, json};
use testkit::{in_netns, require};

use super::{Chain, full, left, told};
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

/// Interfaces and files of addresses, which both sets know.
fn in_common(world: &World) -> Vec<String> {
    let ours = elements(&world.host);
    left(world).into_iter().filter(|one| !ours.contains(one) && !one.starts_with("masq-")).collect()
}

/// DEL by the Go plugins of a pod that ours made. Their bridge takes interface and addresses away, and
/// fails then if its iptables says in its own words that there is no chain for masquerading; the next try
/// of the runtime's finds nothing to do.
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
    let common = in_common(by_go.world);
    assert!(!common.iter().any(|one| one.ends_with(&file)), "{file} in {common:?}");
    by_go.del(pod, result);
}

/// With the Go plugins' usual backends: iptables, and nft for the spoof check.
#[test]
fn pods_of_the_go_plugins_are_checked_and_removed() {
    in_netns(|| {
        require!(Program("iptables"), Program("nft"));
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&go, 5);
        let (by_go, by_ours) = (chain(&world, &go), chain(&world, &ours));
        let results: Vec<Value> = (1..=4).map(|pod| by_go.add(pod)).collect();
        // One of ours among them, on the same bridge, with the next address.
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
        // Without the namespace.
        world.on_host("netns del pod2");
        for call in by_ours.calls(2).iter().rev() {
            call.netns("").del(&results[1]).ok();
        }
        by_go.del(3, &results[2]);
        by_ours.check(4, &results[3]);
        by_ours.del(4, &results[3]);
        by_ours.check(5, &new);
        by_ours.del(5, &new);
        // Chains that the pods of a network share.
        by_ours.gc(&[]);
        assert_nothing_left(&world);
    });
}

/// The way back. The Go plugins know nothing of our table.
#[test]
fn pods_of_ours_are_removed_by_the_go_plugins() {
    in_netns(|| {
        require!(Program("iptables"), Program("nft"));
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&ours, 3);
        let (by_go, by_ours) = (chain(&world, &go), chain(&world, &ours));
        let results = [1, 2, 3].map(|pod| by_ours.add(pod));
        for (call, of) in by_go.calls(1).iter().zip(["bridge", "portmap", "bandwidth", "firewall"])
        {
            let answer = call.check(&results[0]);
            // These two look for chains of iptables that they make themselves.
            assert_eq!(answer.success, !matches!(of, "portmap" | "firewall"), "{of} {answer:?}");
        }
        del_by_go(&by_go, 1, &results[0]);
        del_by_go(&by_go, 2, &results[1]);
        let common = in_common(&world).join(" ");
        assert!(!common.contains("10.1.0.2") && common.contains("10.1.0.4"), "{common}");
        assert_eq!(common.matches("veth").count(), 1, "{common}");
        assert_eq!(common.matches("bwp").count(), 1, "{common}");
        by_ours.check(3, &results[2]);
        // A port can be freed by hand, in the words of the manual.
        let port = ["delete", "element", "inet", "podwire", "ports4", "{ tcp . 20001 }"];
        world.host.exec("nft", &port);
        // Elements of ours are left; GC knows them.
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

/// Where the configuration names iptables, both make the same rules, and nothing is left either way.
#[test]
fn with_iptables_named_either_is_replaced_by_the_other() {
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
            // Whose the rules of firewall were.
            let remembered = ["podwire owned ", "podwire firewall_told"];
            let is_remembered = |one: &String| remembered.iter().any(|set| one.starts_with(set));
            assert!(elements(&world.host).iter().all(is_remembered));
            by_ours.gc(&[]);
            assert_nothing_left(&world);
        }
    });
}

/// Without a GC, whoever is given address or port next.
#[test]
fn the_next_pod_takes_over_what_the_go_plugins_left_of_ours() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&ours, 2);
        let (by_go, by_ours) = (chain(&world, &go), chain(&world, &ours));
        let first = by_ours.add(1);
        del_by_go(&by_go, 1, &first);
        // The same addresses and the same ports for another pod.
        let ipam = &by_ours.configs[0]["ipam"];
        let wanted = json!({"ranges": [
            [{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.2"}],
            [{"subnet": "fd00:1::/64", "rangeStart": "fd00:1::2"}],
        ]});
        let again = full(&json!({"ipam": with(ipam.clone(), &wanted)}));
        std::fs::remove_file("/run/data/net/last_reserved_ip.0").expect("host-local's memory");
        std::fs::remove_file("/run/data/net/last_reserved_ip.1").expect("host-local's memory");
        let next = Chain::new(&world, &ours, again);
        let as_first = |pod: usize, result: &Value| {
            let calls = next.calls(pod).into_iter();
            let call = |call: crate::call::Call| {
                let mut config = call.config.clone();
                if config["type"] == "portmap" {
                    config["runtimeConfig"]["portMappings"] = told(1)["portMappings"].clone();
                }
                call.config(&config).with_prev_result(result)
            };
            calls.map(call).collect::<Vec<_>>()
        };
        let bridge = next.calls(2)[0].add().result();
        assert_eq!(bridge["ips"], first["ips"]);
        let portmap = &as_first(2, &bridge)[1];
        // As long as the namespace is there, the container may live.
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
        // What is left tells whose the rest was, and what an interface might send that is gone.
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
