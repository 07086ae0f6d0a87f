// SPDX-License-Identifier: Apache-2.0
//! Routes and the next hop objects that they go through.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use kernel::route::PROTOCOL_BOOT;

use crate::desired::{DesiredRoute, DesiredState, Gateway, default_metric};
use crate::diff::change::{Change, Conflict};
use crate::diff::devices::Devices;
use crate::observed::{ObservedRoute, ObservedState};
use crate::ownership::{Ownership, PROTOCOL};

/// What becomes of routes.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// Next hops, then routes.
    pub(super) additions: Vec<Change>,
    /// Routes, then next hops: the kernel removes the routes of a next hop with it.
    pub(super) removals: Vec<Change>,
    pub(super) conflicts: Vec<Conflict>,
}

pub(super) fn compare(
    desired: &DesiredState,
    observed: &ObservedState,
    ownership: &Ownership,
    devices: &Devices,
) -> Routes {
    let mut by_dst: BTreeMap<IpNet, Vec<&ObservedRoute>> = BTreeMap::new();
    for route in &observed.routes {
        if !devices.gone.contains(&route.route.device) {
            by_dst.entry(route.route.dst).or_default().push(route);
        }
    }
    let mut routes = Routes::default();
    let mut sets = Vec::new();
    let mut kept = BTreeSet::new();
    for (dst, there) in &by_dst {
        let (same_key, other_key): (Vec<&ObservedRoute>, Vec<&ObservedRoute>) =
            there.iter().partition(|route| {
                desired.routes.contains_key(dst) && route.metric == default_metric(*dst)
            });
        let surplus = other_key.into_iter().filter(|route| is_surplus(route, ownership, devices));
        routes.removals.extend(surplus.map(|route| Change::RemoveRoute(*route)));
        let Some(route) = desired.routes.get(dst) else { continue };
        routes.settle(route, &same_key, devices, &mut sets, &mut kept);
    }
    let missing = desired.routes.iter().filter(|(dst, _)| !by_dst.contains_key(*dst));
    sets.extend(missing.map(|(_, route)| *route).filter(|route| !is_blocked(route, devices)));
    routes.leave_to_others(&mut sets, observed);
    routes.through_nexthops(&sets, observed, ownership, devices, &mut kept);
    routes
}

/// What flannel and people at a terminal make bears the same number.
fn is_foreign(protocol: u8) -> bool {
    !matches!(protocol, PROTOCOL | PROTOCOL_BOOT)
}

fn is_blocked(route: &DesiredRoute, devices: &Devices) -> bool {
    devices.blocked.contains(&route.device)
}

/// Ours by its protocol and by its next hop's number, or else by where it leads; on devices of ours flannel's, too.
fn is_surplus(observed: &ObservedRoute, ownership: &Ownership, devices: &Devices) -> bool {
    let is_on_ours = devices.ours.contains(&observed.route.device);
    match observed.protocol {
        PROTOCOL if is_on_ours => true,
        PROTOCOL => ownership
            .owns_nexthop_of(observed)
            .unwrap_or_else(|| ownership.has_prefix(observed.route.dst)),
        PROTOCOL_BOOT => is_on_ours,
        _ => false,
    }
}

/// Destinations of routes with an MTU. The kernel does not take it off a route that it replaces through the same
/// next hop.
fn narrow(observed: &ObservedState) -> BTreeSet<IpNet> {
    let routes = observed.routes.iter().filter(|one| one.route.mtu.is_some());
    routes.map(|one| one.route.dst).collect()
}

impl Routes {
    /// What to do about a desired route where there are others to its destination with its metric.
    fn settle(
        &mut self,
        desired: &DesiredRoute,
        there: &[&ObservedRoute],
        devices: &Devices,
        sets: &mut Vec<DesiredRoute>,
        kept: &mut BTreeSet<u32>,
    ) {
        if is_blocked(desired, devices) {
            return;
        }
        let right = there
            .iter()
            .position(|observed| observed.protocol == PROTOCOL && observed.route == *desired);
        match right {
            Some(at) => kept.extend(there[at].nexthop),
            None => {
                if let Some(observed) = there.iter().find(|observed| is_foreign(observed.protocol))
                {
                    let (dst, protocol) = (desired.dst, observed.protocol);
                    self.conflicts.push(Conflict::Route { dst, protocol });
                    return;
                }
                sets.push(*desired);
            }
        }
        // One alone is replaced; of several, the others have to go.
        let is_alone = right.is_none() && there.len() == 1;
        let others = there.iter().enumerate().filter(|(at, observed)| {
            Some(*at) != right
                && !is_alone
                && observed.protocol == PROTOCOL
                && observed.route != *desired
        });
        self.removals.extend(others.map(|(_, observed)| Change::RemoveRoute(**observed)));
    }

    /// Barriers of others stay; ours and flannel's are replaced.
    fn leave_to_others(&mut self, sets: &mut Vec<DesiredRoute>, observed: &ObservedState) {
        sets.retain(|route| {
            let barrier =
                observed.blocking_routes.get(&route.dst).filter(|protocol| is_foreign(**protocol));
            let conflict = |protocol: &u8| Conflict::Route { dst: route.dst, protocol: *protocol };
            self.conflicts.extend(barrier.map(conflict));
            barrier.is_none()
        });
    }

    fn through_nexthops(
        &mut self,
        sets: &[DesiredRoute],
        observed: &ObservedState,
        ownership: &Ownership,
        devices: &Devices,
        kept: &mut BTreeSet<u32>,
    ) {
        let range = ownership.nexthops.clone();
        let is_ours = |id: &u32, protocol: u8| {
            protocol == PROTOCOL && range.as_ref().is_some_and(|range| range.contains(id))
        };
        let mut ours: BTreeMap<Gateway, u32> = BTreeMap::new();
        let mut surplus: Vec<u32> = Vec::new();
        for (id, nexthop) in &observed.nexthops {
            if !is_ours(id, nexthop.protocol) {
                continue;
            }
            match nexthop.gateway {
                // It goes with its device.
                Some(gateway) if devices.gone.contains(&gateway.device) => continue,
                Some(gateway) => drop(ours.entry(gateway).or_insert(*id)),
                // Somebody has made something else of it.
                None => {}
            }
            surplus.push(*id);
        }
        let first = |range: RangeInclusive<u32>| {
            ownership.first_free_nexthop.max(*range.start())..=*range.end()
        };
        let mut free = range.clone().into_iter().flat_map(first);
        let mut free = free.by_ref().filter(|id| !observed.nexthops.contains_key(id));
        let narrow = narrow(observed);
        for route in sets {
            let keeps_nexthop = route.mtu.is_some() || !narrow.contains(&route.dst);
            let nexthop = Gateway::of(route).and_then(|gateway| match ours.get(&gateway) {
                Some(id) if keeps_nexthop => Some(*id),
                _ => {
                    let id = free.next()?;
                    ours.insert(gateway, id);
                    self.additions.push(Change::AddNexthop { id, gateway });
                    Some(id)
                }
            });
            kept.extend(nexthop);
            self.additions.push(Change::SetRoute { route: *route, nexthop });
        }
        surplus.retain(|id| !kept.contains(id));
        self.removals.extend(surplus.into_iter().map(|id| Change::RemoveNexthop { id }));
    }
}
