// SPDX-License-Identifier: Apache-2.0
//! The nf_tables cost of a container does not grow with the number of containers.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use testkit::in_netns;

use super::{Chain, full};
use crate::conf::{ranges, with};
use crate::rules::{elements, ruleset, ruleset_without_elements, sets};
use crate::world::{Plugins, World};

/// A network that uses every nf_tables feature of the plugins, including port conditions and an
/// ingress policy.
fn all_features(number: u8) -> Vec<Value> {
    let ipam = ranges(&json!([
        [{"subnet": format!("10.{number}.0.0/24")}],
        [{"subnet": format!("fd00:{number}::/64")}]
    ]));
    let (name, bridge) = (format!("net{number}"), format!("br{number}"));
    let mut plugins = full(&json!({"name": name, "bridge": bridge, "ipam": ipam}));
    let conditions = json!({"conditionsV4": ["-i", "eth0"], "conditionsV6": ["-i", "eth0"]});
    plugins[1] = with(plugins[1].clone(), &conditions);
    plugins[3] = with(plugins[3].clone(), &json!({"ingressPolicy": "same-bridge"}));
    plugins
}

/// Adding an element with a jump makes the kernel validate all elements of the verdict maps that
/// rules use. Adding a rule makes it validate all rules. So an additional container must add only
/// plain elements.
#[test]
fn add_of_another_pod_adds_only_plain_elements() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 3);
        let one = Chain::new(&world, &ours, all_features(1));
        let two = Chain::new(&world, &ours, all_features(2));
        let first = [(&one, 1, one.add(1)), (&two, 2, two.add(2))];
        let before = (ruleset_without_elements(&world.host), elements(&world.host).len());
        let third = one.add(3);
        assert_eq!(ruleset_without_elements(&world.host), before.0);
        assert!(elements(&world.host).len() > before.1);
        for set in sets(&world.host) {
            assert_ne!(set["map"], "verdict", "{set}");
        }
        one.check(3, &third);
        one.del(3, &third);
        assert_eq!((ruleset_without_elements(&world.host), elements(&world.host).len()), before);
        for (chain, pod, result) in first {
            chain.check(pod, &result);
            chain.del(pod, &result);
        }
        assert_eq!(
            elements(&world.host),
            vec![
                "podwire firewall_bridges \"br1\"".to_owned(),
                "podwire firewall_bridges \"br2\"".to_owned(),
            ]
        );
    });
}

/// Administrators save rulesets and load them at boot.
#[test]
fn saved_ruleset_when_loaded_is_identical() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 2);
        let one = Chain::new(&world, &ours, all_features(1));
        let two = Chain::new(&world, &ours, all_features(2));
        let _ = (one.add(1), two.add(2));
        let list = |family| ["--terse", "list", "table", family, "podwire"];
        let tables = || ["inet", "bridge"].map(|family| world.host.exec("nft", &list(family)));
        let before = (tables(), elements(&world.host));
        let saved = format!("/run/{}.nft", world.host.name());
        std::fs::write(&saved, ruleset(&world.host)).expect("write a file in /run");
        world.host.exec("nft", &["flush", "ruleset"]);
        world.host.exec("nft", &["-f", &saved]);
        assert_eq!((tables(), elements(&world.host)), before);
    });
}

/// GC removes the chains and sets shared by a network's containers after the last container is
/// gone.
#[test]
fn gc_of_empty_network_removes_shared_chains() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 2);
        let one = Chain::new(&world, &ours, all_features(1));
        let two = Chain::new(&world, &ours, all_features(2));
        let result = one.add(1);
        let before = (ruleset_without_elements(&world.host), elements(&world.host));
        let _ = two.add(2);
        assert_ne!(ruleset_without_elements(&world.host), before.0);
        two.gc(&[]);
        assert_eq!((ruleset_without_elements(&world.host), elements(&world.host)), before);
        one.check(1, &result);
    });
}

/// GC finds chains that no container uses while an ADD is about to use them.
#[test]
fn gc_during_add_keeps_rules_of_new_pod() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 1);
        let chain = Chain::new(&world, &ours, all_features(1));
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    chain.gc(&[("c1", "eth0")]);
                }
            });
            let add_check_del = || {
                let result = chain.add(1);
                chain.check(1, &result);
                chain.del(1, &result);
            };
            let ended = catch_unwind(AssertUnwindSafe(|| (0..10).for_each(|_| add_check_del())));
            done.store(true, Ordering::Relaxed);
            ended.unwrap_or_else(|panic| resume_unwind(panic));
        });
    });
}
