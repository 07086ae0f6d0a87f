// SPDX-License-Identifier: Apache-2.0
//! `macspoofchk`: frames from another hardware address do not get through.

use serde_json::{Value, json};
use testkit::{can_ping, in_netns, ping};

use crate::conf::bridge;
use crate::rules::elements;
use crate::world::{Plugins, World};

fn config() -> Value {
    bridge(&json!({"isGateway": true, "macspoofchk": true}))
}

#[test]
fn only_the_containers_own_address_gets_through() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 3);
        let results = [1, 2].map(|pod| world.call(&config(), pod).add().result());
        let plain = bridge(&json!({"isGateway": true}));
        world.call(&plain, 3).add().ok();
        let gateway = [10, 1, 0, 1].into();
        let all_reach_it =
            |pods: &[usize]| pods.iter().for_each(|pod| ping(world.pod(*pod), gateway));
        all_reach_it(&[1, 2, 3]);
        let own = results[0]["interfaces"][2]["mac"].as_str().expect("a hardware address");
        for pod in [1, 3] {
            world.in_pod(pod, "link set eth0 address 02:00:00:00:00:77");
        }
        assert!(!can_ping(world.pod(1), gateway), "a strange address gets through");
        all_reach_it(&[2, 3]);
        world.call(&config(), 1).check(&results[0]).fails_with(999, "doesn't match container Mac");
        world.in_pod(1, &format!("link set eth0 address {own}"));
        all_reach_it(&[1]);
        world.call(&config(), 1).check(&results[0]).ok();
    });
}

#[test]
fn it_goes_with_the_port() {
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
fn check_notices_that_it_is_missing() {
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

/// One of the two tables is gone, with the list of what is in the other.
#[test]
fn half_of_it_is_made_again() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        world.call(&config(), 2).add().ok();
        world.host.exec("nft", &["delete table inet podwire"]);
        let result = world.call(&config(), 1).add().result();
        world.call(&config(), 1).check(&result).ok();
        world.call(&config(), 1).gc(&[("c1", "eth0")]).ok();
        assert_eq!(elements(&world.host).len(), 3, "what is not listed has gone as well");
        world.call(&config(), 1).del(&result).ok();
        assert_eq!(elements(&world.host), Vec::<String>::new());
    });
}
