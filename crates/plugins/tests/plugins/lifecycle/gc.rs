// SPDX-License-Identifier: Apache-2.0
//! GC removes unlisted attachments and keeps listed and foreign ones.

use serde_json::{Value, json};
use testkit::in_netns;

use crate::conf::{bridge, dual, host_local, ptp, with};
use crate::snapshot::Snapshot;
use crate::world::{Plugins, World};

/// Number of host veths and number of reserved addresses.
fn count(world: &World) -> (usize, usize) {
    let Snapshot(facts) = world.snapshot().without_bookkeeping();
    let count = |is_one: &dyn Fn(&str) -> bool| facts.keys().filter(|name| is_one(name)).count();
    let is_veth = |name: &str| name.starts_with("host/veth") && name.ends_with("/ifname");
    (count(&is_veth), count(&|name| name.starts_with("disk/")))
}

#[test]
fn gc_removes_unlisted_attachments() {
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

/// A runtime that does not send the list must not lose all attachments.
#[test]
fn gc_without_list_changes_nothing() {
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
fn gc_keeps_go_pods_and_other_networks() {
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
        // The Go plugin's interface does not have a podwire name, so GC releases only its address.
        world.call(&config, 1).gc(&[]).ok();
        assert_eq!(count(&world), (2, 2));
    });
}

/// An address file without an interface was written by an administrator or by an old version, so GC
/// keeps it.
#[test]
fn gc_keeps_address_files_without_interface() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        std::fs::create_dir_all("/run/data/net").expect("create a directory in /run");
        let files = [("5", "c1"), ("6", "c2"), ("7", "c1\r\neth1"), ("8", "c1\r\neth0")];
        for (end, text) in files {
            let path = format!("/run/data/net/10.1.0.{end}");
            std::fs::write(path, text).expect("write a file in /run");
        }
        world.call(&host_local(&json!({})), 1).gc(&[("c1", "eth0")]).ok();
        let left = world.disk().without_bookkeeping();
        let names: Vec<&String> = left.0.keys().collect();
        assert_eq!(names, ["disk/net/10.1.0.5", "disk/net/10.1.0.6", "disk/net/10.1.0.8"]);
    });
}
