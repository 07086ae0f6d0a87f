// SPDX-License-Identifier: Apache-2.0
//! `macspoofchk`: frames with another source MAC address are dropped.

use serde_json::{Value, json};
use testkit::{can_ping, in_netns, ping};

use crate::conf::bridge;
use crate::rules::elements;
use crate::world::{Plugins, World};

fn config() -> Value {
    bridge(&json!({"isGateway": true, "macspoofchk": true}))
}

#[test]
fn spoofed_frames_are_dropped() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 3);
        let results = [1, 2].map(|pod| world.call(&config(), pod).add().result());
        let plain = bridge(&json!({"isGateway": true}));
        world.call(&plain, 3).add().ok();
        let gateway = [10, 1, 0, 1].into();
        let assert_reach_gateway =
            |pods: &[usize]| pods.iter().for_each(|pod| ping(world.pod(*pod), gateway));
        assert_reach_gateway(&[1, 2, 3]);
        let own = results[0]["interfaces"][2]["mac"].as_str().expect("a MAC address");
        for pod in [1, 3] {
            world.in_pod(pod, "link set eth0 address 02:00:00:00:00:77");
        }
        assert!(!can_ping(world.pod(1), gateway), "a spoofed frame was forwarded");
        assert_reach_gateway(&[2, 3]);
        world.call(&config(), 1).check(&results[0]).fails_with(999, "doesn't match container Mac");
        world.in_pod(1, &format!("link set eth0 address {own}"));
        assert_reach_gateway(&[1]);
        world.call(&config(), 1).check(&results[0]).ok();
    });
}

#[test]
fn del_and_gc_remove_spoof_check() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 3);
        for pod in 1..=3 {
            world.call(&config(), pod).add().ok();
        }
        assert_eq!(elements(&world.host).len(), 9);
        world.call(&config(), 1).netns("").del(&Value::Null).ok();
        world.call(&config(), 1).netns("").del(&Value::Null).ok();
        assert_eq!(elements(&world.host).len(), 6);
        world.call(&config(), 2).gc(&[("c2", "eth0")]).ok();
        assert_eq!(elements(&world.host).len(), 3);
    });
}

#[test]
fn check_with_missing_spoof_check_fails() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let result = world.call(&config(), 1).add().result();
        world.call(&config(), 1).check(&result).ok();
        world.host.exec("nft", &["flush set bridge podwire addresses"]);
        world.call(&config(), 1).check(&result).fails_with(999, "addresses");
        world.host.exec("nft", &["delete table bridge podwire"]);
        world.call(&config(), 1).check(&result).fails_with(999, "macspoofchk");
    });
}

/// One of the two tables is deleted, and with it the index of the other table.
#[test]
fn add_after_table_deletion_restores_spoof_check() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        world.call(&config(), 2).add().ok();
        world.host.exec("nft", &["delete table inet podwire"]);
        let result = world.call(&config(), 1).add().result();
        world.call(&config(), 1).check(&result).ok();
        world.call(&config(), 1).gc(&[("c1", "eth0")]).ok();
        assert_eq!(elements(&world.host).len(), 3, "GC kept an unlisted attachment");
        world.call(&config(), 1).del(&result).ok();
        assert_eq!(elements(&world.host), Vec::<String>::new());
    });
}
