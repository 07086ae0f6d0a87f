// SPDX-License-Identifier: Apache-2.0
//! Whatever there was before, afterwards all is as wanted and all that is another's as it was.

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::super::*;
use crate::diff::tests::fake_kernel::{FakeKernel, desired};
use crate::observed::{ObservedDevice, ObservedNexthop, ObservedRoute, ObservedState};
use crate::ownership::{NEXTHOP_IDS, PROTOCOL};

const BACKENDS: [&str; 7] = ["vxlan", "host-gw", "wireguard", "ipip", "udp", "alloc", "extension"];

fn peers() -> impl Strategy<Value = Vec<u32>> {
    btree_set(2u32..40, 0..12).prop_map(|peers| peers.into_iter().collect())
}

/// Spoils something of what is observed, by a number.
fn spoil(observed: &mut ObservedState, what: u8, at: usize) {
    fn pick<T>(list: &[T], at: usize) -> Option<usize> {
        at.checked_rem(list.len())
    }
    match what % 9 {
        0 => drop(pick(&observed.routes, at).map(|at| observed.routes.remove(at))),
        1 => drop(observed.neighbours.pop_first()),
        2 => drop(observed.forwarding.pop_last()),
        3 => drop(observed.addresses.pop_first()),
        4 => drop(observed.wireguard.pop_first()),
        5 => {
            if let Some(at) = pick(&observed.routes, at) {
                observed.routes[at].protocol = [3, PROTOCOL][at % 2];
                observed.routes[at].route.onlink ^= true;
            }
        }
        6 => {
            if let Some(at) = pick(&observed.devices, at) {
                observed.devices[at].mtu ^= 1;
                observed.devices[at].is_up = false;
            }
        }
        7 => {
            // An appended entry.
            if let Some((device, mac, _)) = observed.forwarding.first().copied() {
                observed.forwarding.insert((device, mac, "198.51.100.1".parse().unwrap()));
            }
        }
        _ => {
            // The kernel's: routes go with their next hop.
            if let Some((id, _)) = observed.nexthops.pop_last() {
                observed.routes.retain(|route| route.nexthop != Some(id));
            }
        }
    }
}

fn foreign(
    kernel_state: &FakeKernel,
) -> (Vec<ObservedDevice>, Vec<ObservedRoute>, Vec<(u32, ObservedNexthop)>) {
    let observed = &kernel_state.observed;
    let devices = observed
        .devices
        .iter()
        .filter(|device| !kernel_state.ownership.owns_device(device))
        .cloned();
    let routes = observed.routes.iter().filter(|route| {
        !matches!(route.protocol, PROTOCOL | 3)
            || route.route.device.as_str() == "eth0" && {
                let text = route.route.dst.to_string();
                text.starts_with("10.5.77.") || text.starts_with("10.9.")
            }
    });
    let nexthops = observed
        .nexthops
        .iter()
        .filter(|(id, nexthop)| nexthop.protocol != PROTOCOL || !NEXTHOP_IDS.contains(id));
    let nexthops = nexthops.map(|(id, nexthop)| (*id, *nexthop));
    (devices.collect(), routes.copied().collect(), nexthops.collect())
}

proptest! {
    #[test]
    fn what_is_planned_and_there_needs_nothing(backend in select(&BACKENDS[..]), peers in peers()) {
        let kernel_state = FakeKernel::new(backend, &peers).settled();
        prop_assert_eq!(kernel_state.diff(), Diff::default());
    }

    #[test]
    fn any_state_becomes_the_wanted_one_and_others_keep_theirs(
        before in (select(&BACKENDS[..]), peers()),
        after in (select(&BACKENDS[..]), peers()),
        damage in vec((any::<u8>(), any::<usize>()), 0..6),
    ) {
        let mut kernel_state = FakeKernel::new(before.0, &before.1).settled();
        for (what, at) in damage {
            spoil(&mut kernel_state.observed, what, at);
        }
        kernel_state.add_foreign();
        let theirs = foreign(&kernel_state);
        kernel_state.desired = desired(after.0, &after.1);
        kernel_state.settle();
        prop_assert_eq!(kernel_state.diff().conflicts, []);
        prop_assert_eq!(foreign(&kernel_state), theirs);
    }

    /// A peer that stays is served at every moment.
    #[test]
    fn traffic_that_flows_goes_on(before in peers(), after in peers(), direct: bool) {
        let backend = if direct { "host-gw" } else { "vxlan" };
        let mut kernel_state = FakeKernel::new(backend, &before).settled();
        kernel_state.desired = desired(backend, &after);
        let stay: Vec<u32> = before.iter().copied().filter(|n| after.contains(n)).collect();
        for change in kernel_state.diff().changes {
            kernel_state.apply(&change);
            for n in &stay {
                let dst = format!("10.5.{n}.0/24").parse().unwrap();
                let is_served = kernel_state.observed.routes.iter().any(|route| route.route.dst == dst);
                prop_assert!(is_served, "{} stopped at: {}", dst, change);
            }
        }
    }
}
