// SPDX-License-Identifier: Apache-2.0
//! Whether a change in the kernel is any of our business. Pure.
//!
//! Our own changes are told to us, too: what is now as it is wanted, and the removal of what is not wanted,
//! are no reason for anything.

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
use overlay::desired::{DesiredDevice, DesiredState, DeviceAddress, DeviceKind, Gateway};
use overlay::observed::ObservedRoute;
use overlay::ownership::PROTOCOL;
use overlay::plan::Underlay;

use super::nexthop_ids::NexthopIds;
use super::observe::is_unicast;
use super::target::Target;
use crate::blackhole;

/// What is to be done about changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventImpact {
    /// Something of ours may no longer be as it should.
    pub compare: bool,
    /// The interface to other nodes has changed.
    pub underlay: bool,
    /// Other peers may be on a link.
    pub on_link: bool,
    /// Forwarding was turned off or on, or a blackhole has gone.
    pub rules: bool,
}

impl EventImpact {
    const NONE: Self = Self { compare: false, underlay: false, on_link: false, rules: false };

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            compare: self.compare || other.compare,
            underlay: self.underlay || other.underlay,
            on_link: self.on_link || other.on_link,
            rules: self.rules || other.rules,
        }
    }

    fn compare_if(compare: bool) -> Self {
        Self { compare, ..Self::NONE }
    }
}

/// What is wanted, and under which numbers it is there.
pub(super) struct View<'a> {
    pub(super) wanting: &'a Target,
    pub(super) numbers: &'a NexthopIds,
    pub(super) indices: &'a BTreeMap<IfName, IfIndex>,
    /// Whether nothing has failed.
    pub(super) is_settled: bool,
}

/// Without a network, somebody may be waiting for an interface that could hold it up.
pub(super) fn without_network(event: &Event) -> EventImpact {
    let underlay = matches!(event.object, Object::Link(_) | Object::Addr(_));
    EventImpact { underlay, ..EventImpact::NONE }
}

pub(super) fn of(event: &Event, view: &View<'_>) -> EventImpact {
    let is_removal = event.is_removal;
    match &event.object {
        Object::Link(link) => view.link(link, is_removal),
        Object::Addr(addr) => view.addr(addr, is_removal),
        Object::Route(route) => view.route(route, is_removal),
        Object::Neigh(neigh) => EventImpact::compare_if(view.neigh(neigh, is_removal)),
        Object::Fdb(entry) => EventImpact::compare_if(view.fdb(entry, is_removal)),
        Object::Nexthop(nexthop) => EventImpact::compare_if(view.nexthop(nexthop, is_removal)),
        Object::Forwarding(family, _) => {
            EventImpact { rules: view.forwards(*family), ..EventImpact::NONE }
        }
    }
}

impl View<'_> {
    fn wanted(&self) -> &DesiredState {
        &self.wanting.network.plan().desired
    }

    fn underlay(&self) -> &Underlay {
        self.wanting.network.underlay()
    }

    fn name_of(&self, index: IfIndex) -> Option<IfName> {
        self.indices.iter().find(|(_, one)| **one == index).map(|(name, _)| *name)
    }

    /// The device of ours with this number.
    fn device(&self, index: IfIndex) -> Option<&DesiredDevice> {
        self.wanted().devices.get(&self.name_of(index)?)
    }

    fn has_prefix(&self, prefix: IpNet) -> bool {
        self.wanting.scope.networks.iter().any(|network| network.contains(&prefix))
    }

    fn link(&self, link: &Link, is_removal: bool) -> EventImpact {
        let by_name = self.wanted().devices.get(&link.name);
        if let Some(device) = by_name.or_else(|| self.device(link.index)) {
            let is_known = self.indices.get(&device.name) == Some(&link.index);
            // One that has gone and is known by another number is one that we have removed ourselves.
            let is_wrong =
                if is_removal { is_known } else { !(is_known && self.is_right(device, link)) };
            return EventImpact::compare_if(is_wrong);
        }
        let underlay = self.underlay();
        let is_underlay = link.index == underlay.index || link.name == underlay.name;
        let is_as_known = link.index == underlay.index
            && link.name == underlay.name
            && link.mtu == underlay.mtu
            && link.is_up()
            && !is_removal;
        let carries_ours = is_underlay && self.wanting.network.needs_on_link()
            || underlay.on_link.values().any(|name| *name == link.name);
        // Routes and next hops go without a word when their link goes down, and are refused until it is up.
        let is_down = is_removal || !link.is_up() || !link.has_carrier();
        EventImpact {
            compare: carries_ours && (is_down || !self.is_settled),
            underlay: is_underlay && !is_as_known,
            on_link: carries_ours && is_down,
            rules: false,
        }
    }

    /// As far as an event tells.
    fn is_right(&self, device: &DesiredDevice, link: &Link) -> bool {
        let is_kind = match (&device.kind, &link.detail) {
            (DeviceKind::Vxlan(wanted), Detail::Vxlan(found)) => {
                link.mac == Some(wanted.mac)
                    && found.id == wanted.vni
                    && found.link == Some(wanted.lower.index)
                    && found.local == Some(wanted.local)
                    && found.port == wanted.port
                    && found.learning == wanted.learning
                    && found.gbp == wanted.gbp
            }
            (DeviceKind::Ipip { local }, Detail::Ipip(found)) => found.local == Some(*local),
            (kind, _) => link.is_kind(kind.name()),
        };
        let is_marked = link.alias.as_deref() == Some(self.wanting.scope.owner.as_str());
        is_kind && is_marked && link.name == device.name && link.mtu == device.mtu && link.is_up()
    }

    fn addr(&self, addr: &Addr, is_removal: bool) -> EventImpact {
        if let Some(device) = self.device(addr.index) {
            let address = DeviceAddress { device: device.name, prefix: addr.prefix };
            let is_wanted = self.wanted().addresses.contains(&address);
            let is_surplus = !is_wanted && self.has_prefix(addr.prefix);
            return EventImpact::compare_if(if is_removal { is_wanted } else { is_surplus });
        }
        let underlay = self.underlay();
        if addr.index != underlay.index {
            return EventImpact::NONE;
        }
        let is_in_use = underlay.addresses.iter().any(|one| one == addr.prefix.addr());
        // One that the kernel has given by itself is never the better one.
        let is_better = addr.scope == route::SCOPE_UNIVERSE;
        let is_news = if is_removal { is_in_use } else { !is_in_use && is_better };
        EventImpact { underlay: is_news, ..EventImpact::NONE }
    }

    fn route(&self, route: &route::Route, is_removal: bool) -> EventImpact {
        if route.table != route::TABLE_MAIN {
            return EventImpact::NONE;
        }
        let on_link = route.protocol != PROTOCOL
            && self.wanting.network.needs_on_link()
            && self.leads_to_peers(route.dst);
        let rules = is_removal && blackhole::is_ours(route) && self.has_prefix(route.dst);
        EventImpact {
            compare: self.concerns_route(route, is_removal),
            on_link,
            rules,
            ..EventImpact::NONE
        }
    }

    /// Whether the switch decides about the network's packets. One that somebody turns on may be the end of a
    /// problem.
    fn forwards(&self, family: Family) -> bool {
        self.wanting.network.conf().networks.get(family).is_some()
    }

    fn concerns_route(&self, route: &route::Route, is_removal: bool) -> bool {
        let metric = route.priority.unwrap_or(0);
        if let Some(wanted) = self.wanted().routes.get(&route.dst) {
            if metric != wanted.metric() {
                return route.protocol == PROTOCOL && !is_removal;
            }
            return is_removal || !self.is_route_right(wanted, route);
        }
        let is_on_ours = route.oif.is_some_and(|index| self.device(index).is_some());
        let is_surplus = match route.protocol {
            PROTOCOL => is_on_ours || self.has_prefix(route.dst),
            PROTOCOL_BOOT => is_on_ours,
            _ => false,
        };
        is_surplus && !is_removal
    }

    fn is_route_right(
        &self,
        wanted: &overlay::desired::DesiredRoute,
        route: &route::Route,
    ) -> bool {
        let number = Gateway::of(wanted).and_then(|one| self.numbers.by_gateway().get(&one));
        // The kernel may show no more than the number.
        if route.oif.is_none() && wanted.next_hop().is_some() {
            return route.protocol == PROTOCOL
                && number.is_some()
                && route.nexthop.as_ref() == number;
        }
        let found = ObservedRoute::from_kernel(route, |index| self.name_of(index));
        found.is_some_and(|found| found.protocol == PROTOCOL && found.route == *wanted)
    }

    /// Whether a route to there can be one to a peer.
    fn leads_to_peers(&self, dst: IpNet) -> bool {
        let (first, last): (IpAddr, IpAddr) = (dst.network(), dst.broadcast());
        self.wanting.publics.range(first..=last).next().is_some()
    }

    fn neigh(&self, neigh: &Neigh, is_removal: bool) -> bool {
        let Some(device) = self.device(neigh.index) else { return false };
        let is_permanent = neigh.state & neigh::PERMANENT != 0;
        match self.wanted().neighbours.get(&(device.name, neigh.ip)) {
            Some(mac) => is_removal || !is_permanent || neigh.mac != Some(*mac),
            None => !is_removal && is_permanent && neigh.mac.is_some(),
        }
    }

    fn fdb(&self, entry: &Fdb, is_removal: bool) -> bool {
        let Some(device) = self.device(entry.index) else { return false };
        let wanted = self.wanted().forwarding.get(&(device.name, entry.mac));
        match wanted {
            Some(dst) if is_removal => entry.dst == Some(*dst),
            Some(dst) => entry.dst != Some(*dst) || !is_unicast(entry),
            None => !is_removal && is_unicast(entry) && entry.dst.is_some(),
        }
    }

    fn nexthop(&self, nexthop: &Nexthop, is_removal: bool) -> bool {
        match self.numbers.gateway(nexthop.id) {
            Some(gateway) => {
                let is_same = nexthop.gateway == Some(gateway.address)
                    && nexthop.oif.and_then(|index| self.name_of(index)) == Some(gateway.device)
                    && nexthop.onlink == gateway.onlink;
                is_removal || !is_same
            }
            None => {
                let range = self.wanting.scope.nexthops.as_ref();
                let is_ours = range.is_some_and(|range| range.contains(&nexthop.id));
                !is_removal && nexthop.protocol == PROTOCOL && is_ours
            }
        }
    }
}
