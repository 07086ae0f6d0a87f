// SPDX-License-Identifier: Apache-2.0
//! Decides what an event of the kernel means for the agent. Pure.
//!
//! The agent's own changes cause events too. An event has no impact if the object is now as
//! desired, or if an object that is not desired was removed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use kernel::addr::Addr;
use kernel::events::{Event, Object};
use kernel::fdb::Fdb;
use kernel::link::{Detail, Link};
use kernel::neigh::{self, Neigh};
use kernel::nexthop::Nexthop;
use kernel::route::{self, PROTOCOL_BOOT};
use kernel::{Family, IfIndex, IfName};
use overlay::desired::{
    DesiredDevice, DesiredRoute, DesiredState, DeviceAddress, DeviceKind, Gateway,
};
use overlay::observed::ObservedRoute;
use overlay::ownership::PROTOCOL;
use overlay::plan::Underlay;

use super::nexthop_ids::NexthopIds;
use super::observe::is_unicast;
use super::target::Target;

/// Consequences of events for the dataplane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventImpact {
    /// An object may differ from the desired state.
    pub compare: bool,
    /// The underlay interface has changed.
    pub underlay: bool,
    /// Other peers may be on a link now.
    pub on_link: bool,
    /// A forwarding sysctl has changed.
    pub forwarding: bool,
}

impl EventImpact {
    const NONE: Self = Self { compare: false, underlay: false, on_link: false, forwarding: false };

    /// The impact of all events, after some were lost.
    pub(super) const ALL: Self =
        Self { compare: true, underlay: true, on_link: true, forwarding: true };

    /// Returns the impact of both events.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            compare: self.compare || other.compare,
            underlay: self.underlay || other.underlay,
            on_link: self.on_link || other.on_link,
            forwarding: self.forwarding || other.forwarding,
        }
    }

    fn compare_if(compare: bool) -> Self {
        Self { compare, ..Self::NONE }
    }
}

/// The state to compare events with.
pub(super) struct View<'a> {
    pub(super) target: &'a Target,
    pub(super) nexthop_ids: &'a NexthopIds,
    pub(super) indices: &'a BTreeMap<IfName, IfIndex>,
    pub(super) is_converged: bool,
}

/// Returns the impact of an event without a network. The agent may be waiting for an underlay.
pub(super) fn without_network(event: &Event) -> EventImpact {
    let underlay = matches!(event.object, Object::Link(_) | Object::Addr(_));
    EventImpact { underlay, ..EventImpact::NONE }
}

/// Returns the impact of an event.
pub(super) fn impact(event: &Event, view: &View<'_>) -> EventImpact {
    let is_removal = event.is_removal;
    match &event.object {
        Object::Link(link) => view.link(link, is_removal),
        Object::Addr(addr) => view.addr(addr, is_removal),
        Object::Route(route) => view.route(route, is_removal),
        Object::Neigh(neigh) => EventImpact::compare_if(view.neigh(neigh, is_removal)),
        Object::Fdb(entry) => EventImpact::compare_if(view.fdb(entry, is_removal)),
        Object::Nexthop(nexthop) => EventImpact::compare_if(view.nexthop(nexthop, is_removal)),
        Object::Forwarding(family, _) => {
            EventImpact { forwarding: view.has_family(*family), ..EventImpact::NONE }
        }
    }
}

impl View<'_> {
    fn desired(&self) -> &DesiredState {
        &self.target.network.plan().desired
    }

    fn underlay(&self) -> &Underlay {
        self.target.network.underlay()
    }

    fn name_of(&self, index: IfIndex) -> Option<IfName> {
        self.indices.iter().find(|(_, one)| **one == index).map(|(name, _)| *name)
    }

    /// Returns the desired device that has this index.
    fn device(&self, index: IfIndex) -> Option<&DesiredDevice> {
        self.desired().devices.get(&self.name_of(index)?)
    }

    fn has_prefix(&self, prefix: IpNet) -> bool {
        self.target.ownership.networks.iter().any(|network| network.contains(&prefix))
    }

    fn has_family(&self, family: Family) -> bool {
        self.target.network.has_family(family)
    }

    fn link(&self, link: &Link, is_removal: bool) -> EventImpact {
        let by_name = self.desired().devices.get(&link.name);
        if let Some(device) = by_name.or_else(|| self.device(link.index)) {
            let is_current = self.indices.get(&device.name) == Some(&link.index);
            // If the removed device has another index, the agent has removed and re-created it.
            let differs =
                if is_removal { is_current } else { !is_current || !self.matches(device, link) };
            return EventImpact::compare_if(differs);
        }
        let underlay = self.underlay();
        let is_underlay = link.index == underlay.index || link.name == underlay.name;
        let is_unchanged = link.index == underlay.index
            && link.name == underlay.name
            && link.mtu == underlay.mtu
            && link.is_up()
            && !is_removal;
        // An interface that is up with the MTU of the network has not changed it.
        let has_mtu = link.mtu == underlay.mtu && link.is_up() && !is_removal;
        let sets_mtu =
            !is_underlay && !has_mtu && self.target.network.depends_on_mtu_of(&link.name);
        let carries_routes = is_underlay && self.target.network.needs_on_link()
            || underlay.on_link.values().any(|name| *name == link.name);
        // If a link goes down, the kernel removes its routes and next hops without events. It
        // refuses new ones until the link is up.
        let is_down = is_removal || !link.is_up() || !link.has_carrier();
        EventImpact {
            compare: carries_routes && (is_down || !self.is_converged),
            underlay: is_underlay && !is_unchanged || sets_mtu,
            on_link: carries_routes && is_down,
            forwarding: false,
        }
    }

    /// Compares a device with the attributes that an event has.
    fn matches(&self, device: &DesiredDevice, link: &Link) -> bool {
        let has_attributes = match (&device.kind, &link.detail) {
            (DeviceKind::Vxlan(desired), Detail::Vxlan(observed)) => {
                link.mac == Some(desired.mac)
                    && observed.id == desired.vni
                    && observed.link == Some(desired.lower.index)
                    && observed.local == Some(desired.local)
                    && observed.port == desired.port
                    && observed.learning == desired.learning
                    && observed.gbp == desired.gbp
            }
            (DeviceKind::Ipip { local }, Detail::Ipip(observed)) => observed.local == Some(*local),
            (kind, _) => link.is_kind(kind.name()),
        };
        let has_owner = link.alias.as_deref() == Some(self.target.ownership.owner.as_str());
        has_attributes
            && has_owner
            && link.name == device.name
            && link.mtu == device.mtu
            && link.is_up()
    }

    fn addr(&self, addr: &Addr, is_removal: bool) -> EventImpact {
        if let Some(device) = self.device(addr.index) {
            let address = DeviceAddress { device: device.name, prefix: addr.prefix };
            let is_desired = self.desired().addresses.contains(&address);
            let is_surplus = !is_desired && self.has_prefix(addr.prefix);
            return EventImpact::compare_if(if is_removal { is_desired } else { is_surplus });
        }
        let underlay = self.underlay();
        if addr.index != underlay.index {
            return EventImpact::NONE;
        }
        let is_in_use = underlay.addresses.iter().any(|one| one == addr.prefix.addr());
        // A link-local address is never preferred.
        let is_candidate = addr.scope == route::SCOPE_UNIVERSE;
        let underlay = if is_removal { is_in_use } else { !is_in_use && is_candidate };
        EventImpact { underlay, ..EventImpact::NONE }
    }

    fn route(&self, route: &route::Route, is_removal: bool) -> EventImpact {
        if route.table != route::TABLE_MAIN {
            return EventImpact::NONE;
        }
        let on_link = route.protocol != PROTOCOL
            && self.target.network.needs_on_link()
            && self.contains_peers(route.dst);
        EventImpact { compare: self.route_differs(route, is_removal), on_link, ..EventImpact::NONE }
    }

    fn route_differs(&self, route: &route::Route, is_removal: bool) -> bool {
        let metric = route.priority.unwrap_or(0);
        if let Some(desired) = self.desired().routes.get(&route.dst) {
            if metric != desired.metric() {
                return route.protocol == PROTOCOL && !is_removal;
            }
            return is_removal || !self.is_desired_route(desired, route);
        }
        let is_on_own_device = route.oif.is_some_and(|index| self.device(index).is_some());
        let is_surplus = match route.protocol {
            PROTOCOL => is_on_own_device || self.has_prefix(route.dst),
            PROTOCOL_BOOT => is_on_own_device,
            _ => false,
        };
        is_surplus && !is_removal
    }

    fn is_desired_route(&self, desired: &DesiredRoute, route: &route::Route) -> bool {
        let id = Gateway::of(desired).and_then(|one| self.nexthop_ids.by_gateway().get(&one));
        // The event may have only the ID of the next-hop object, without its device and gateway.
        if route.oif.is_none() && desired.next_hop().is_some() {
            return route.protocol == PROTOCOL && id.is_some() && route.nexthop.as_ref() == id;
        }
        let observed = ObservedRoute::from_kernel(route, |index| self.name_of(index));
        observed.is_some_and(|observed| observed.protocol == PROTOCOL && observed.route == *desired)
    }

    /// Returns whether the public address of a peer is inside this prefix.
    fn contains_peers(&self, prefix: IpNet) -> bool {
        let (first, last): (IpAddr, IpAddr) = (prefix.network(), prefix.broadcast());
        self.target.public_addresses.range(first..=last).next().is_some()
    }

    fn neigh(&self, neigh: &Neigh, is_removal: bool) -> bool {
        let Some(device) = self.device(neigh.index) else { return false };
        let is_permanent = neigh.state & neigh::PERMANENT != 0;
        match self.desired().neighbours.get(&(device.name, neigh.ip)) {
            Some(mac) => is_removal || !is_permanent || neigh.mac != Some(*mac),
            None => !is_removal && is_permanent && neigh.mac.is_some(),
        }
    }

    fn fdb(&self, entry: &Fdb, is_removal: bool) -> bool {
        let Some(device) = self.device(entry.index) else { return false };
        let desired = self.desired().forwarding.get(&(device.name, entry.mac));
        match desired {
            Some(dst) if is_removal => entry.dst == Some(*dst),
            Some(dst) => entry.dst != Some(*dst) || !is_unicast(entry),
            None => !is_removal && is_unicast(entry) && entry.dst.is_some(),
        }
    }

    fn nexthop(&self, nexthop: &Nexthop, is_removal: bool) -> bool {
        match self.nexthop_ids.gateway(nexthop.id) {
            Some(gateway) => {
                let is_unchanged = nexthop.gateway == Some(gateway.address)
                    && nexthop.oif.and_then(|index| self.name_of(index)) == Some(gateway.device)
                    && nexthop.onlink == gateway.onlink;
                is_removal || !is_unchanged
            }
            None => {
                let range = self.target.ownership.nexthops.as_ref();
                let is_own = range.is_some_and(|range| range.contains(&nexthop.id));
                !is_removal && nexthop.protocol == PROTOCOL && is_own
            }
        }
    }
}
