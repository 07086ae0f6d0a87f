// SPDX-License-Identifier: Apache-2.0
//! STATUS says whether an ADD could be served, and why not.

use serde_json::json;
use testkit::in_netns;

use crate::conf::{bridge, host_local, network, ptp, ranges, with};
use crate::world::{Plugins, World};

#[test]
fn status_is_good_and_changes_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 0);
        let before = world.snapshot();
        for config in [
            bridge(&json!({})),
            ptp(&json!({})),
            host_local(&json!({})),
            network("loopback", &json!({})),
            network("static", &json!({"ipam": {"type": "static"}})),
        ] {
            world.call(&config, 1).status().ok();
        }
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
    });
}

#[test]
fn status_tells_of_a_range_that_is_used_up() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let small = ranges(&json!([[{"subnet": "10.1.0.0/30"}]]));
        for config in [bridge(&json!({"ipam": small})), ptp(&json!({"ipam": small}))] {
            let call = world.call(&config, 1);
            call.status().ok();
            let result = call.add().result();
            call.status()
                .fails_with(50, "no IP addresses available in range set: 10.1.0.1-10.1.0.2");
            call.del(&result).ok();
            call.status().ok();
        }
    });
}

#[test]
fn status_tells_what_is_wrong_with_the_network() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        world.on_host("link add br0 type veth peer name br0p");
        world.call(&bridge(&json!({})), 1).status().fails_with(50, "\"br0\"");
        let elsewhere = bridge(&json!({"bridge": "br1"}));
        world.call(&elsewhere, 1).status().ok();
        let nowhere = with(elsewhere.clone(), &json!({"ipam": {"type": "nowhere"}}));
        world.call(&nowhere, 1).status().fails_with(7, "nowhere");
        let old = with(elsewhere, &json!({"cniVersion": "1.0.0"}));
        world.call(&old, 1).status().fails_with(1, "does not allow STATUS");
        world.call(&old, 1).gc(&[]).fails_with(1, "does not allow GC");
    });
}
