// SPDX-License-Identifier: Apache-2.0
//! ADD and DEL of one attachment at the same time: one after the other, whoever comes first.

use std::thread;

use serde_json::json;
use testkit::in_netns;

use crate::call::Call;
use crate::conf::{bridge, ptp, v4};
use crate::world::{Plugins, World};

const ROUNDS: usize = 16;

/// Interfaces in the pod, and reserved addresses.
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
                    // Either may win, and a second ADD is an error.
                    0 => drop(call.add()),
                    _ => call.run("DEL").ok(),
                });
            }
        });
        let found = count(world);
        assert!(found == (1, 1) || found == (0, 0), "round {round}: {found:?}");
        call.run("DEL").ok();
        assert_eq!(count(world), (0, 0), "round {round}: something is left after DEL");
        let host = world.host.ip_json(&["link", "show", "type", "veth"]);
        assert_eq!(host, json!([]), "round {round}: the host end is left");
    }
}

#[test]
fn add_and_del_at_once_leave_all_or_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        race(&world, &world.call(&bridge(&json!({"isGateway": true, "ipam": v4()})), 1));
        race(&world, &world.call(&ptp(&json!({"ipam": v4()})), 1));
    });
}

/// The IPAM plugin is another process, for the same attachment and perhaps with the same lock file.
#[test]
fn a_delegate_in_another_process_does_not_wait_for_its_caller() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&bridge(&json!({"ipam": v4()})), 1).always_exec();
        race(&world, &call);
    });
}
