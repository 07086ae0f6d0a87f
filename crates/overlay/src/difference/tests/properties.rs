// SPDX-License-Identifier: Apache-2.0
//! Whatever there was before, afterwards all is as wanted and all that is another's as it was.

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::super::*;
use super::world::{World, wanted};

const BACKENDS: [&str; 7] = ["vxlan", "host-gw", "wireguard", "ipip", "udp", "alloc", "extension"];

fn peers() -> impl Strategy<Value = Vec<u32>> {
    btree_set(2u32..40, 0..12).prop_map(|peers| peers.into_iter().collect())
}

/// Spoils something of what is found, by a number.
fn spoil(found: &mut Found, what: u8, at: usize) {
    fn pick<T>(list: &[T], at: usize) -> Option<usize> {
        at.checked_rem(list.len())
    }
    match what % 9 {
        0 => drop(pick(&found.routes, at).map(|at| found.routes.remove(at))),
        1 => drop(found.neighbours.pop_first()),
        2 => drop(found.forwarding.pop_last()),
        3 => drop(found.addresses.pop_first()),
        4 => drop(found.wireguard.pop_first()),
        5 => {
            if let Some(at) = pick(&found.routes, at) {
                found.routes[at].protocol = [3, PROTOCOL][at % 2];
                found.routes[at].route.onlink ^= true;
            }
        }
        6 => {
            if let Some(at) = pick(&found.devices, at) {
                found.devices[at].mtu ^= 1;
                found.devices[at].is_up = false;
            }
        }
        7 => {
            // An appended entry.
            if let Some((device, mac, _)) = found.forwarding.first().copied() {
                found.forwarding.insert((device, mac, "198.51.100.1".parse().unwrap()));
            }
        }
        _ => {
            // The kernel's: routes go with their next hop.
            if let Some((id, _)) = found.nexthops.pop_last() {
                found.routes.retain(|route| route.nexthop != Some(id));
            }
        }
    }
}

fn foreign(world: &World) -> (Vec<FoundDevice>, Vec<FoundRoute>, Vec<(u32, FoundNexthop)>) {
    let found = &world.found;
    let devices = found.devices.iter().filter(|device| !world.scope.has_device(device)).cloned();
    let routes = found.routes.iter().filter(|route| {
        !matches!(route.protocol, PROTOCOL | 3)
            || route.route.device.as_str() == "eth0" && {
                let text = route.route.dst.to_string();
                text.starts_with("10.5.77.") || text.starts_with("10.9.")
            }
    });
    let nexthops = found
        .nexthops
        .iter()
        .filter(|(id, nexthop)| nexthop.protocol != PROTOCOL || !NEXTHOPS.contains(id));
    let nexthops = nexthops.map(|(id, nexthop)| (*id, *nexthop));
    (devices.collect(), routes.copied().collect(), nexthops.collect())
}

proptest! {
    #[test]
    fn what_is_planned_and_there_needs_nothing(backend in select(&BACKENDS[..]), peers in peers()) {
        let world = World::new(backend, &peers).settled();
        prop_assert_eq!(world.difference(), Difference::default());
    }

    #[test]
    fn any_state_becomes_the_wanted_one_and_others_keep_theirs(
        before in (select(&BACKENDS[..]), peers()),
        after in (select(&BACKENDS[..]), peers()),
        damage in vec((any::<u8>(), any::<usize>()), 0..6),
    ) {
        let mut world = World::new(before.0, &before.1).settled();
        for (what, at) in damage {
            spoil(&mut world.found, what, at);
        }
        world.add_foreign();
        let theirs = foreign(&world);
        world.wanted = wanted(after.0, &after.1);
        world.settle();
        prop_assert_eq!(world.difference().conflicts, []);
        prop_assert_eq!(foreign(&world), theirs);
    }

    /// A peer that stays is served at every moment.
    #[test]
    fn traffic_that_flows_goes_on(before in peers(), after in peers(), direct: bool) {
        let backend = if direct { "host-gw" } else { "vxlan" };
        let mut world = World::new(backend, &before).settled();
        world.wanted = wanted(backend, &after);
        let stay: Vec<u32> = before.iter().copied().filter(|n| after.contains(n)).collect();
        for change in world.difference().changes {
            world.apply(&change);
            for n in &stay {
                let dst = format!("10.5.{n}.0/24").parse().unwrap();
                let is_served = world.found.routes.iter().any(|route| route.route.dst == dst);
                prop_assert!(is_served, "{} stopped at: {}", dst, change);
            }
        }
    }
}
