// SPDX-License-Identifier: Apache-2.0
//! GC frees what is not listed, and leaves alone what is listed or not ours.

use serde_json::{Value, json};
use testkit::in_netns;

use crate::conf::{bridge, dual, host_local, ptp, with};
use crate::snapshot::Snapshot;
use crate::world::{Plugins, World};

/// How many veths the host has, and which addresses are reserved.
fn count(world: &World) -> (usize, usize) {
    let Snapshot(facts) = world.snapshot().without_bookkeeping();
    let count = |is_one: &dyn Fn(&str) -> bool| facts.keys().filter(|name| is_one(name)).count();
    let is_veth = |name: &str| name.starts_with("host/veth") && name.ends_with("/ifname");
    (count(&is_veth), count(&|name| name.starts_with("disk/")))
}

#[test]
fn gc_frees_what_is_not_listed() {
    in_netns(|| {
        let plugins = Plugins::ours();
        for config in [bridge(&json!({"ipam": dual()})), ptp(&json!({"ipam": dual()}))] {
            let world = World::new(&plugins, 3);
            let results: Vec<Value> =
                (1..=3).map(|pod| world.call(&config, pod).add().result()).collect();
            assert_eq!(count(&world), (3, 6));
            world.call(&config, 1).gc(&[("c1", "eth0"), ("c2", "eth0"), ("c3", "eth0")]).ok();
            assert_eq!(count(&world), (3, 6), "all are listed");
            world.call(&config, 1).gc(&[("c1", "eth0"), ("c3", "eth1")]).ok();
            assert_eq!(count(&world), (1, 2), "one is listed");
            world.call(&config, 1).check(&results[0]).ok();
            world.call(&config, 2).check(&results[1]).fails_with(999, "");
            world.call(&config, 1).gc(&[]).ok();
            assert_eq!(count(&world), (0, 0), "none is listed");
        }
    });
}

/// A runtime that does not say what is valid must not lose everything.
#[test]
fn gc_without_a_list_does_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let config = bridge(&json!({"ipam": dual()}));
        world.call(&config, 1).add().ok();
        let before = world.snapshot();
        world.call(&config, 1).run("GC").ok();
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
    });
}

#[test]
fn gc_leaves_others_alone() {
    in_netns(|| {
        let (ours, go) = (Plugins::ours(), Plugins::go());
        let world = World::new(&ours, 3);
        let config = bridge(&json!({"ipam": dual()}));
        let other_network = with(config.clone(), &json!({"name": "two", "bridge": "br1"}));
        let by_go = world.call_of(&go, &config, 1).add().result();
        let other = world.call(&other_network, 2).add().result();
        world.call(&config, 3).add().ok();
        world.call(&config, 1).gc(&[("c1", "eth0")]).ok();
        assert_eq!(count(&world), (2, 4));
        world.call(&config, 1).check(&by_go).ok();
        world.call(&other_network, 2).check(&other).ok();
        // The Go plugin's interface has no name of ours, so only its address can be freed.
        world.call(&config, 1).gc(&[]).ok();
        assert_eq!(count(&world), (2, 2));
    });
}

/// A file that names no interface keeps an address free, or is older than GC: not GC's to free.
#[test]
fn gc_keeps_files_that_name_no_interface() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        std::fs::create_dir_all("/run/data/net").expect("a directory below /run");
        let files = [("5", "c1"), ("6", "c2"), ("7", "c1\r\neth1"), ("8", "c1\r\neth0")];
        for (end, text) in files {
            let path = format!("/run/data/net/10.1.0.{end}");
            std::fs::write(path, text).expect("a file below /run");
        }
        world.call(&host_local(&json!({})), 1).gc(&[("c1", "eth0")]).ok();
        let left = world.disk().without_bookkeeping();
        let names: Vec<&String> = left.0.keys().collect();
        assert_eq!(names, ["disk/net/10.1.0.5", "disk/net/10.1.0.6", "disk/net/10.1.0.8"]);
    });
}
