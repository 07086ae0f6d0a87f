// SPDX-License-Identifier: Apache-2.0
//! State of a node's kernel as the agent read it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use kernel::wireguard::{PresharedKey, PublicKey};
use kernel::{IfIndex, IfName, MacAddr, route};

use crate::backend::extension::ExtensionPeer;
use crate::desired::{
    DesiredDevice, DesiredRoute, DesiredState, DesiredWireguardPeer, DeviceAddress, DeviceKind,
    Gateway, NextHop,
};
use crate::ownership::{Ownership, PROTOCOL};

/// Kernel objects on this node. Foreign devices may be left out unless a desired device has the same
/// name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObservedState {
    pub devices: Vec<ObservedDevice>,
    pub addresses: BTreeSet<DeviceAddress>,
    /// Unicast routes through one device and blackhole routes of the main table.
    pub routes: Vec<ObservedRoute>,
    /// Protocols of all other routes with the default metric (multipath, unreachable and the like), by
    /// destination: the kernel accepts no second route with the same metric.
    pub blocking_routes: BTreeMap<IpNet, u8>,
    /// All next-hop objects, including foreign ones, so that no ID is used twice.
    pub nexthops: BTreeMap<u32, ObservedNexthop>,
    /// Permanent neighbour entries.
    pub neighbours: BTreeMap<(IfName, IpAddr), MacAddr>,
    /// Permanent forwarding entries.
    pub forwarding: BTreeSet<(IfName, MacAddr, IpAddr)>,
    pub wireguard: BTreeMap<(IfName, PublicKey), ObservedWireguardPeer>,
    /// Subnets for which the administrator's add command was called.
    pub extension: BTreeMap<IpNet, ExtensionPeer>,
}

impl ObservedState {
    /// Returns the state of a kernel in which all desired objects exist. `nexthops` has the ID of the
    /// next-hop object of each gateway.
    pub(crate) fn from_desired(
        desired: &DesiredState,
        ownership: &Ownership,
        nexthops: &BTreeMap<Gateway, u32>,
    ) -> Self {
        let device = |device: &DesiredDevice| ObservedDevice {
            name: device.name,
            alias: Some(ownership.owner.clone()),
            is_up: true,
            mtu: device.mtu,
            kind: ObservedKind::Known(device.kind),
        };
        let nexthop_id = |route: &DesiredRoute| nexthops.get(&Gateway::of(route)?).copied();
        let route = |route: &DesiredRoute| ObservedRoute {
            route: *route,
            metric: route.metric(),
            protocol: PROTOCOL,
            nexthop: nexthop_id(route),
        };
        let nexthop = |route: &DesiredRoute| {
            let gateway = Gateway::of(route);
            Some((nexthop_id(route)?, ObservedNexthop { gateway, protocol: PROTOCOL }))
        };
        let peer = |peer: &DesiredWireguardPeer| ObservedWireguardPeer {
            endpoint: Some(peer.endpoint),
            allowed: peer.allowed.clone(),
            psk: peer.psk.clone(),
            keepalive: peer.keepalive,
            is_alive: false,
        };
        let forwarding =
            desired.forwarding.iter().map(|((device, mac), dst)| (*device, *mac, *dst));
        Self {
            devices: desired.devices.values().map(device).collect(),
            addresses: desired.addresses.clone(),
            blocking_routes: BTreeMap::new(),
            routes: desired.routes.values().map(route).collect(),
            nexthops: desired.routes.values().filter_map(nexthop).collect(),
            neighbours: desired.neighbours.clone(),
            forwarding: forwarding.collect(),
            wireguard: desired.wireguard.iter().map(|(key, one)| (*key, peer(one))).collect(),
            extension: desired.extension.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedDevice {
    pub name: IfName,
    pub alias: Option<String>,
    pub is_up: bool,
    pub mtu: u32,
    pub kind: ObservedKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObservedKind {
    /// A kind that a backend uses.
    Known(DeviceKind),
    /// The kernel's name of any other kind.
    Other(String),
}

impl ObservedKind {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Known(kind) => kind.name(),
            Self::Other(name) => name,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedRoute {
    pub route: DesiredRoute,
    pub metric: u32,
    pub protocol: u8,
    pub nexthop: Option<u32>,
}

impl ObservedRoute {
    /// Converts a route from its netlink form. Returns `None` unless it is a blackhole route or a
    /// unicast route through one device, in the main table. The caller fills in gateway and device of
    /// a route that only has the ID of a next-hop object.
    pub fn from_kernel(
        observed: &route::Route,
        name_of: impl Fn(IfIndex) -> Option<IfName>,
    ) -> Option<Self> {
        let dst = observed.dst;
        let route = match observed.kind {
            _ if observed.table != route::TABLE_MAIN => return None,
            route::KIND_BLACKHOLE => DesiredRoute::blackhole(dst),
            route::KIND_UNICAST => {
                let has_link_scope = observed.scope == Some(route::SCOPE_LINK);
                let next_hop = NextHop {
                    gateway: observed.gateway,
                    device: name_of(observed.oif?)?,
                    onlink: observed.onlink,
                    is_link_scope: dst.addr().is_ipv4() && has_link_scope,
                    mtu: observed.mtu,
                };
                DesiredRoute::unicast(dst, next_hop)
            }
            _ => return None,
        };
        let metric = observed.priority.unwrap_or(0);
        Some(Self { route, metric, protocol: observed.protocol, nexthop: observed.nexthop })
    }

    /// Converts the route to the netlink form that removes it. `index` is the index of its device.
    pub fn to_kernel(&self, index: Option<IfIndex>) -> route::Route {
        let scope = None;
        let priority = Some(self.metric).filter(|metric| *metric != 0);
        let route = self.route.to_kernel(index, self.nexthop);
        route::Route { protocol: self.protocol, priority, scope, ..route }
    }
}

/// A next-hop object. Routes refer to it, so the kernel finds all routes of a device without
/// searching the whole table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedNexthop {
    /// `None` for groups, blackholes and the like.
    pub gateway: Option<Gateway>,
    pub protocol: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedWireguardPeer {
    pub endpoint: Option<SocketAddr>,
    pub allowed: BTreeSet<IpNet>,
    pub psk: Option<PresharedKey>,
    pub keepalive: Option<u16>,
    /// The last handshake was less than three minutes ago. The endpoint is then up to date even if
    /// it differs from the desired one: WireGuard follows a peer that roams.
    pub is_alive: bool,
}
