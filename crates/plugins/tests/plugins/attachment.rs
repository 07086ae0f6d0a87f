// SPDX-License-Identifier: Apache-2.0
//! Concurrent ADD and DEL of one attachment: the plugins serialize them, in any order.

use std::thread;

use serde_json::json;
use testkit::in_netns;

use crate::call::Call;
use crate::conf::{bridge, ptp, v4};
use crate::world::{Plugins, World};

const ROUNDS: usize = 16;

/// Number of interfaces in the pod and number of reserved addresses.
fn count(world: &World) -> (usize, usize) {
    let links = world.pod(1).ip_json(&["link", "show", "type", "veth"]);
    let links = links.as_array().map_or(0, Vec::len);
    (links, world.disk().without_bookkeeping().0.len())
}

fn race(world: &World, call: &Call) {
    for round in 0..ROUNDS {
        thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || match (number + round) % 2 {
                    // Either order is valid, and a second ADD fails.
                    0 => drop(call.add()),
                    _ => call.run("DEL").ok(),
                });
            }
        });
        let found = count(world);
        assert!(found == (1, 1) || found == (0, 0), "round {round}: {found:?}");
        call.run("DEL").ok();
        assert_eq!(count(world), (0, 0), "round {round}: interface or address left after DEL");
        let host = world.host.ip_json(&["link", "show", "type", "veth"]);
        assert_eq!(host, json!([]), "round {round}: host veth left after DEL");
    }
}

#[test]
fn concurrent_add_and_del_leave_all_or_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        race(&world, &world.call(&bridge(&json!({"isGateway": true, "ipam": v4()})), 1));
        race(&world, &world.call(&ptp(&json!({"ipam": v4()})), 1));
    });
}

/// The IPAM plugin runs as a separate process for the same attachment and may use the same lock
/// file.
#[test]
fn exec_delegate_with_caller_lock_held_runs() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&bridge(&json!({"ipam": v4()})), 1).always_exec();
        race(&world, &call);
    });
}
