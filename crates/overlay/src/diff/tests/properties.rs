// SPDX-License-Identifier: Apache-2.0
//! From any state, the changes lead to the desired state and leave foreign objects alone.

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::super::*;
use super::fake_kernel::{FakeKernel, desired};
use crate::desired::{DesiredRoute, RouteKind};
use crate::observed::{ObservedDevice, ObservedNexthop, ObservedRoute, ObservedState};
use crate::ownership::{NEXTHOP_IDS, PROTOCOL};

const BACKENDS: [&str; 7] = ["vxlan", "host-gw", "wireguard", "ipip", "udp", "alloc", "extension"];

fn peers() -> impl Strategy<Value = Vec<u32>> {
    btree_set(2u32..40, 0..12).prop_map(|peers| peers.into_iter().collect())
}

/// Changes something in the kernel as another program might. `what` selects the kind of damage.
fn damage(observed: &mut ObservedState, what: u8, at: usize) {
    fn pick<T>(list: &[T], at: usize) -> Option<usize> {
        at.checked_rem(list.len())
    }
    match what % 10 {
        0 => drop(pick(&observed.routes, at).map(|at| observed.routes.remove(at))),
        1 => drop(observed.neighbours.pop_first()),
        2 => drop(observed.forwarding.pop_last()),
        3 => drop(observed.addresses.pop_first()),
        4 => drop(observed.wireguard.pop_first()),
        5 => {
            if let Some(at) = pick(&observed.routes, at) {
                observed.routes[at].protocol = [3, PROTOCOL][at % 2];
                if let RouteKind::Unicast(hop) = &mut observed.routes[at].route.kind {
                    hop.onlink ^= true;
                }
            }
        }
        6 => {
            if let Some(at) = pick(&observed.devices, at) {
                observed.devices[at].mtu ^= 1;
                observed.devices[at].is_up = false;
            }
        }
        7 => {
            // A second destination for a MAC address.
            if let Some((device, mac, _)) = observed.forwarding.first().copied() {
                observed.forwarding.insert((device, mac, "198.51.100.1".parse().unwrap()));
            }
        }
        8 => {
            // `ip route replace blackhole` in place of a route.
            if let Some(at) = pick(&observed.routes, at) {
                let route = &mut observed.routes[at];
                (route.route.kind, route.protocol) = (RouteKind::Blackhole, 3);
                route.nexthop = None;
            }
        }
        _ => {
            // The kernel removes routes together with their next hop.
            if let Some((id, _)) = observed.nexthops.pop_last() {
                observed.routes.retain(|route| route.nexthop != Some(id));
            }
        }
    }
}

fn foreign(
    kernel: &FakeKernel,
) -> (Vec<ObservedDevice>, Vec<ObservedRoute>, Vec<(u32, ObservedNexthop)>) {
    let observed = &kernel.observed;
    let devices = observed.devices.iter();
    let devices = devices.filter(|device| !kernel.ownership.owns_device(device)).cloned();
    let routes = observed.routes.iter().filter(|route| {
        let dst = route.route.dst.to_string();
        !matches!(route.protocol, PROTOCOL | 3)
            || dst.starts_with("10.5.77.")
            || dst.starts_with("10.9.")
    });
    let nexthops = observed
        .nexthops
        .iter()
        .filter(|(id, nexthop)| nexthop.protocol != PROTOCOL || !NEXTHOP_IDS.contains(id));
    let nexthops = nexthops.map(|(id, nexthop)| (*id, *nexthop));
    (devices.collect(), routes.copied().collect(), nexthops.collect())
}

fn set_blackhole(desired: &mut DesiredState, enabled: bool) {
    let own = "10.5.1.0/24".parse().unwrap();
    if enabled {
        desired.routes.insert(own, DesiredRoute::blackhole(own));
    }
}

proptest! {
    #[test]
    fn desired_state_in_place_needs_no_change(
        backend in select(&BACKENDS[..]),
        peers in peers(),
        has_blackhole: bool,
    ) {
        let mut kernel = FakeKernel::new(backend, &peers);
        set_blackhole(&mut kernel.desired, has_blackhole);
        let kernel = kernel.reconciled();
        prop_assert_eq!(kernel.diff(), Diff::default());
    }

    #[test]
    fn any_state_becomes_desired_foreign_stays(
        before in (select(&BACKENDS[..]), peers(), any::<bool>()),
        after in (select(&BACKENDS[..]), peers(), any::<bool>()),
        damages in vec((any::<u8>(), any::<usize>()), 0..6),
    ) {
        let mut kernel = FakeKernel::new(before.0, &before.1);
        set_blackhole(&mut kernel.desired, before.2);
        let mut kernel = kernel.reconciled();
        for (what, at) in damages {
            damage(&mut kernel.observed, what, at);
        }
        kernel.add_foreign();
        let theirs = foreign(&kernel);
        kernel.desired = desired(after.0, &after.1);
        set_blackhole(&mut kernel.desired, after.2);
        kernel.reconcile();
        prop_assert_eq!(kernel.diff().conflicts, []);
        prop_assert_eq!(foreign(&kernel), theirs);
    }

    /// Peers in both plans have a route after each change.
    #[test]
    fn remaining_peers_stay_reachable(before in peers(), after in peers(), direct: bool) {
        let backend = if direct { "host-gw" } else { "vxlan" };
        let mut kernel = FakeKernel::new(backend, &before).reconciled();
        kernel.desired = desired(backend, &after);
        let stay: Vec<u32> = before.iter().copied().filter(|n| after.contains(n)).collect();
        for change in kernel.diff().changes {
            kernel.apply(&change);
            for n in &stay {
                let dst = format!("10.5.{n}.0/24").parse().unwrap();
                let is_served = kernel.observed.routes.iter().any(|route| route.route.dst == dst);
                prop_assert!(is_served, "{} lost its route at: {}", dst, change);
            }
        }
    }
}
