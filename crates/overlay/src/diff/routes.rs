// SPDX-License-Identifier: Apache-2.0
//! Compares routes and their next-hop objects.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use kernel::route::PROTOCOL_BOOT;

use crate::desired::{DesiredRoute, DesiredState, Gateway, default_metric};
use crate::diff::change::{Change, Conflict};
use crate::diff::devices::Devices;
use crate::observed::{ObservedRoute, ObservedState};
use crate::ownership::{Ownership, PROTOCOL};

/// Result of comparing routes.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// Next hops, then the routes that use them.
    pub(super) additions: Vec<Change>,
    /// Routes, then next hops: the kernel removes the routes of a next hop together with it.
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
        if route.route.device().is_none_or(|device| !devices.gone.contains(&device)) {
            by_dst.entry(route.route.dst).or_default().push(route);
        }
    }
    let mut routes = Routes::default();
    let mut to_set = Vec::new();
    let mut used_nexthops = BTreeSet::new();
    for (dst, existing) in &by_dst {
        let route = desired.routes.get(dst);
        let (same_key, other_key): (Vec<&ObservedRoute>, Vec<&ObservedRoute>) = existing
            .iter()
            .partition(|existing| route.is_some_and(|route| existing.metric == route.metric()));
        let surplus = other_key.into_iter().filter(|route| is_surplus(route, ownership, devices));
        routes.removals.extend(surplus.map(|route| Change::RemoveRoute(*route)));
        let Some(route) = route else { continue };
        routes.compare_one(route, &same_key, devices, &mut to_set, &mut used_nexthops);
    }
    let missing = desired.routes.iter().filter(|(dst, _)| !by_dst.contains_key(*dst));
    to_set.extend(missing.map(|(_, route)| *route).filter(|route| !is_blocked(route, devices)));
    routes.skip_conflicting(&mut to_set, observed);
    routes.assign_nexthops(&to_set, observed, ownership, devices, &mut used_nexthops);
    routes
}

/// flannel's routes have the protocol number that routes made by hand have too.
fn is_foreign(protocol: u8) -> bool {
    !matches!(protocol, PROTOCOL | PROTOCOL_BOOT)
}

fn is_blocked(route: &DesiredRoute, devices: &Devices) -> bool {
    route.device().is_some_and(|device| devices.blocked.contains(&device))
}

/// Returns whether an undesired route is the agent's: by its protocol and next-hop ID, or, without a
/// next hop, by its destination. On the agent's own devices flannel's routes count too.
fn is_surplus(observed: &ObservedRoute, ownership: &Ownership, devices: &Devices) -> bool {
    let Some(device) = observed.route.device() else {
        return ownership.is_stale_blackhole(observed);
    };
    let is_on_own_device = devices.ours.contains(&device);
    match observed.protocol {
        PROTOCOL if is_on_own_device => true,
        PROTOCOL => ownership
            .owns_nexthop_of(observed)
            .unwrap_or_else(|| ownership.has_prefix(observed.route.dst)),
        PROTOCOL_BOOT => is_on_own_device,
        _ => false,
    }
}

/// Returns the destinations of routes with an MTU. If a route is replaced by one with the same next
/// hop, the kernel keeps the old MTU.
fn destinations_with_mtu(observed: &ObservedState) -> BTreeSet<IpNet> {
    let has_mtu = |one: &&ObservedRoute| one.route.next_hop().is_some_and(|hop| hop.mtu.is_some());
    observed.routes.iter().filter(has_mtu).map(|one| one.route.dst).collect()
}

impl Routes {
    /// Compares a desired route with the existing ones that have its destination and metric.
    fn compare_one(
        &mut self,
        desired: &DesiredRoute,
        existing: &[&ObservedRoute],
        devices: &Devices,
        to_set: &mut Vec<DesiredRoute>,
        used_nexthops: &mut BTreeSet<u32>,
    ) {
        if is_blocked(desired, devices) {
            return;
        }
        let is_right =
            |route: &&ObservedRoute| route.protocol == PROTOCOL && route.route == *desired;
        let right = existing.iter().position(is_right);
        match right {
            Some(at) => used_nexthops.extend(existing[at].nexthop),
            None => {
                if let Some(foreign) = existing.iter().find(|route| is_foreign(route.protocol)) {
                    let (dst, protocol) = (desired.dst, foreign.protocol);
                    self.conflicts.push(Conflict::Route { dst, protocol });
                    return;
                }
                to_set.push(*desired);
            }
        }
        // Setting the route replaces an existing one with the same key. Additional ones have to be
        // removed.
        let is_alone = right.is_none() && existing.len() == 1;
        let others = existing.iter().enumerate().filter(|(at, route)| {
            Some(*at) != right && !is_alone && route.protocol == PROTOCOL && route.route != *desired
        });
        self.removals.extend(others.map(|(_, route)| Change::RemoveRoute(**route)));
    }

    /// Reports foreign blocking routes as conflicts. The kernel replaces those of podwire and flannel.
    fn skip_conflicting(&mut self, to_set: &mut Vec<DesiredRoute>, observed: &ObservedState) {
        to_set.retain(|route| {
            let has_default_metric = route.metric() == default_metric(route.dst);
            let blocking = observed.blocking_routes.get(&route.dst);
            let foreign = blocking.filter(|protocol| has_default_metric && is_foreign(**protocol));
            let conflict = |protocol: &u8| Conflict::Route { dst: route.dst, protocol: *protocol };
            self.conflicts.extend(foreign.map(conflict));
            foreign.is_none()
        });
    }

    fn assign_nexthops(
        &mut self,
        to_set: &[DesiredRoute],
        observed: &ObservedState,
        ownership: &Ownership,
        devices: &Devices,
        used: &mut BTreeSet<u32>,
    ) {
        let range = ownership.nexthops.clone();
        let is_own = |id: &u32, protocol: u8| {
            protocol == PROTOCOL && range.as_ref().is_some_and(|range| range.contains(id))
        };
        let mut by_gateway: BTreeMap<Gateway, u32> = BTreeMap::new();
        let mut surplus: Vec<u32> = Vec::new();
        for (id, nexthop) in &observed.nexthops {
            if !is_own(id, nexthop.protocol) {
                continue;
            }
            match nexthop.gateway {
                // The kernel removes it together with its device.
                Some(gateway) if devices.gone.contains(&gateway.device) => continue,
                Some(gateway) => drop(by_gateway.entry(gateway).or_insert(*id)),
                // Changed to a blackhole or a group by another program.
                None => {}
            }
            surplus.push(*id);
        }
        let from_first_free = |range: RangeInclusive<u32>| {
            ownership.first_free_nexthop.max(*range.start())..=*range.end()
        };
        let mut free = range.clone().into_iter().flat_map(from_first_free);
        let mut free = free.by_ref().filter(|id| !observed.nexthops.contains_key(id));
        let with_mtu = destinations_with_mtu(observed);
        for route in to_set {
            let has_mtu = route.next_hop().is_some_and(|hop| hop.mtu.is_some());
            let keeps_nexthop = has_mtu || !with_mtu.contains(&route.dst);
            let nexthop = Gateway::of(route).and_then(|gateway| match by_gateway.get(&gateway) {
                Some(id) if keeps_nexthop => Some(*id),
                _ => {
                    let id = free.next()?;
                    by_gateway.insert(gateway, id);
                    self.additions.push(Change::AddNexthop { id, gateway });
                    Some(id)
                }
            });
            used.extend(nexthop);
            self.additions.push(Change::SetRoute { route: *route, nexthop });
        }
        surplus.retain(|id| !used.contains(id));
        self.removals.extend(surplus.into_iter().map(|id| Change::RemoveNexthop { id }));
    }
}
