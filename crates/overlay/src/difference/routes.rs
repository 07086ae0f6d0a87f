// SPDX-License-Identifier: Apache-2.0
//! Routes and the next hop objects that they go through.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use kernel::route::PROTOCOL_BOOT;

use super::change::{Change, Conflict};
use super::devices::Devices;
use super::found::{Found, FoundRoute, Gateway, PROTOCOL, Scope, default_metric};
use crate::plan::{Route, Wanted};

/// What becomes of routes.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// Next hops, then routes.
    pub(super) additions: Vec<Change>,
    /// Routes, then next hops: the kernel removes the routes of a next hop with it.
    pub(super) removals: Vec<Change>,
    pub(super) conflicts: Vec<Conflict>,
}

pub(super) fn compare(wanted: &Wanted, found: &Found, scope: &Scope, devices: &Devices) -> Routes {
    let mut by_dst: BTreeMap<IpNet, Vec<&FoundRoute>> = BTreeMap::new();
    for route in &found.routes {
        if !devices.gone.contains(&route.route.device) {
            by_dst.entry(route.route.dst).or_default().push(route);
        }
    }
    let mut routes = Routes::default();
    let mut sets = Vec::new();
    let mut kept = BTreeSet::new();
    for (dst, there) in &by_dst {
        let (same_key, other_key): (Vec<&FoundRoute>, Vec<&FoundRoute>) =
            there.iter().partition(|route| {
                wanted.routes.contains_key(dst) && route.metric == default_metric(*dst)
            });
        let surplus = other_key.into_iter().filter(|route| is_surplus(route, scope, devices));
        routes.removals.extend(surplus.map(|route| Change::RemoveRoute(*route)));
        let Some(route) = wanted.routes.get(dst) else { continue };
        routes.settle(route, &same_key, devices, &mut sets, &mut kept);
    }
    let missing = wanted.routes.iter().filter(|(dst, _)| !by_dst.contains_key(*dst));
    sets.extend(missing.map(|(_, route)| *route).filter(|route| !is_blocked(route, devices)));
    routes.leave_to_others(&mut sets, found);
    routes.through_nexthops(&sets, found, scope, devices, &mut kept);
    routes
}

/// What flannel and people at a terminal make bears the same number.
fn is_foreign(protocol: u8) -> bool {
    !matches!(protocol, PROTOCOL | PROTOCOL_BOOT)
}

fn is_blocked(route: &Route, devices: &Devices) -> bool {
    devices.blocked.contains(&route.device)
}

/// Ours by its protocol and by its next hop's number, or else by where it leads; on devices of ours flannel's, too.
fn is_surplus(found: &FoundRoute, scope: &Scope, devices: &Devices) -> bool {
    let is_on_ours = devices.ours.contains(&found.route.device);
    match found.protocol {
        PROTOCOL if is_on_ours => true,
        PROTOCOL => scope.has_nexthop(found).unwrap_or_else(|| scope.has_prefix(found.route.dst)),
        PROTOCOL_BOOT => is_on_ours,
        _ => false,
    }
}

/// Destinations of routes with an MTU. The kernel does not take it off a route that it replaces through the same
/// next hop.
fn narrow(found: &Found) -> BTreeSet<IpNet> {
    let routes = found.routes.iter().filter(|one| one.route.mtu.is_some());
    routes.map(|one| one.route.dst).collect()
}

impl Routes {
    /// What to do about a wanted route where there are others to its destination with its metric.
    fn settle(
        &mut self,
        wanted: &Route,
        there: &[&FoundRoute],
        devices: &Devices,
        sets: &mut Vec<Route>,
        kept: &mut BTreeSet<u32>,
    ) {
        if is_blocked(wanted, devices) {
            return;
        }
        let right =
            there.iter().position(|found| found.protocol == PROTOCOL && found.route == *wanted);
        match right {
            Some(at) => kept.extend(there[at].nexthop),
            None => {
                if let Some(found) = there.iter().find(|found| is_foreign(found.protocol)) {
                    let (dst, protocol) = (wanted.dst, found.protocol);
                    self.conflicts.push(Conflict::Route { dst, protocol });
                    return;
                }
                sets.push(*wanted);
            }
        }
        // One alone is replaced; of several, the others have to go.
        let is_alone = right.is_none() && there.len() == 1;
        let others = there.iter().enumerate().filter(|(at, found)| {
            Some(*at) != right && !is_alone && found.protocol == PROTOCOL && found.route != *wanted
        });
        self.removals.extend(others.map(|(_, found)| Change::RemoveRoute(**found)));
    }

    /// Barriers of others stay; ours and flannel's are replaced.
    fn leave_to_others(&mut self, sets: &mut Vec<Route>, found: &Found) {
        sets.retain(|route| {
            let barrier = found.barriers.get(&route.dst).filter(|protocol| is_foreign(**protocol));
            let conflict = |protocol: &u8| Conflict::Route { dst: route.dst, protocol: *protocol };
            self.conflicts.extend(barrier.map(conflict));
            barrier.is_none()
        });
    }

    fn through_nexthops(
        &mut self,
        sets: &[Route],
        found: &Found,
        scope: &Scope,
        devices: &Devices,
        kept: &mut BTreeSet<u32>,
    ) {
        let range = scope.nexthops.clone();
        let is_ours = |id: &u32, protocol: u8| {
            protocol == PROTOCOL && range.as_ref().is_some_and(|range| range.contains(id))
        };
        let mut ours: BTreeMap<Gateway, u32> = BTreeMap::new();
        let mut surplus: Vec<u32> = Vec::new();
        for (id, nexthop) in &found.nexthops {
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
        let first =
            |range: RangeInclusive<u32>| scope.nexthops_from.max(*range.start())..=*range.end();
        let mut free = range.clone().into_iter().flat_map(first);
        let mut free = free.by_ref().filter(|id| !found.nexthops.contains_key(id));
        let narrow = narrow(found);
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
