// SPDX-License-Identifier: Apache-2.0
//! What a container costs in nf_tables does not grow with the number of containers.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use testkit::in_netns;

use super::{Chain, full};
use crate::conf::{ranges, with};
use crate::rules::{elements, frame, ruleset, sets};
use crate::world::{Plugins, World};

/// All that plugins keep in nf_tables: conditions and a policy as well.
fn everything(number: u8) -> Vec<Value> {
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

/// Where an element is added that jumps, the kernel goes through all elements of maps of verdicts that rules
/// look at; where a rule is added, through all rules.
#[test]
fn a_container_more_is_elements_that_do_not_jump() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 3);
        let one = Chain::new(&world, &ours, everything(1));
        let two = Chain::new(&world, &ours, everything(2));
        let first = [(&one, 1, one.add(1)), (&two, 2, two.add(2))];
        let before = (frame(&world.host), elements(&world.host).len());
        let third = one.add(3);
        assert_eq!(frame(&world.host), before.0);
        assert!(elements(&world.host).len() > before.1);
        for set in sets(&world.host) {
            assert_ne!(set["map"], "verdict", "{set}");
        }
        one.check(3, &third);
        one.del(3, &third);
        assert_eq!((frame(&world.host), elements(&world.host).len()), before);
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

/// People save rulesets and load them at boot.
#[test]
fn a_saved_ruleset_is_loaded_again() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 2);
        let one = Chain::new(&world, &ours, everything(1));
        let two = Chain::new(&world, &ours, everything(2));
        let _ = (one.add(1), two.add(2));
        let list = |family| ["--terse", "list", "table", family, "podwire"];
        let tables = || ["inet", "bridge"].map(|family| world.host.exec("nft", &list(family)));
        let before = (tables(), elements(&world.host));
        let saved = format!("/run/{}.nft", world.host.name());
        std::fs::write(&saved, ruleset(&world.host)).expect("a file below /run");
        world.host.exec("nft", &["flush", "ruleset"]);
        world.host.exec("nft", &["-f", &saved]);
        assert_eq!((tables(), elements(&world.host)), before);
    });
}

/// What the containers of a network share goes with GC, when the last one is gone.
#[test]
fn gc_leaves_nothing_of_a_network() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 2);
        let one = Chain::new(&world, &ours, everything(1));
        let two = Chain::new(&world, &ours, everything(2));
        let result = one.add(1);
        let before = (frame(&world.host), elements(&world.host));
        let _ = two.add(2);
        assert_ne!(frame(&world.host), before.0);
        two.gc(&[]);
        assert_eq!((frame(&world.host), elements(&world.host)), before);
        one.check(1, &result);
    });
}

/// GC finds chains that no container needs, and the next container needs them.
#[test]
fn gc_takes_nothing_from_a_container_that_comes() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 1);
        let chain = Chain::new(&world, &ours, everything(1));
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    chain.gc(&[("c1", "eth0")]);
                }
            });
            let comes_and_goes = || {
                let result = chain.add(1);
                chain.check(1, &result);
                chain.del(1, &result);
            };
            let ended = catch_unwind(AssertUnwindSafe(|| (0..10).for_each(|_| comes_and_goes())));
            is_over.store(true, Ordering::Relaxed);
            ended.unwrap_or_else(|panic| resume_unwind(panic));
        });
    });
}
