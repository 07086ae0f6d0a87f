// SPDX-License-Identifier: Apache-2.0
//! Desired state of a node's kernel. Devices are referred to by name because a device that does not
//! exist yet has no index.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use ipnet::{IpNet, Ipv4Net};
use kernel::wireguard::{PresharedKey, PublicKey};
use kernel::{Family, IfIndex, IfName, MacAddr, route};

use crate::backend::extension::ExtensionPeer;
use crate::cidr;
use crate::ownership::PROTOCOL;

/// Kernel objects, tunnel endpoints and extension calls that the network needs on this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DesiredState {
    pub devices: BTreeMap<IfName, DesiredDevice>,
    pub addresses: BTreeSet<DeviceAddress>,
    /// Routes of the main table, by destination.
    pub routes: BTreeMap<IpNet, DesiredRoute>,
    /// Neighbour entries: the MAC address of each gateway address on a tunnel.
    pub neighbours: BTreeMap<(IfName, IpAddr), MacAddr>,
    /// Forwarding entries: the node behind each MAC address on a tunnel.
    pub forwarding: BTreeMap<(IfName, MacAddr), IpAddr>,
    pub wireguard: BTreeMap<(IfName, PublicKey), DesiredWireguardPeer>,
    /// udp backend: endpoint for each subnet, used by the process that reads the TUN device.
    pub udp: BTreeMap<Ipv4Net, SocketAddrV4>,
    /// extension backend: subnets for which the add command has to be called.
    pub extension: BTreeMap<IpNet, ExtensionPeer>,
}

impl DesiredState {
    /// Adds the state of one peer, which has no devices and no addresses.
    pub(crate) fn add(&mut self, peer: DesiredState) {
        self.routes.extend(peer.routes);
        self.neighbours.extend(peer.neighbours);
        self.forwarding.extend(peer.forwarding);
        self.wireguard.extend(peer.wireguard);
        self.udp.extend(peer.udp);
        self.extension.extend(peer.extension);
    }

    /// Removes the state of one peer.
    pub(crate) fn subtract(&mut self, peer: &DesiredState) {
        remove_keys(&mut self.routes, &peer.routes);
        remove_keys(&mut self.neighbours, &peer.neighbours);
        remove_keys(&mut self.forwarding, &peer.forwarding);
        remove_keys(&mut self.wireguard, &peer.wireguard);
        remove_keys(&mut self.udp, &peer.udp);
        remove_keys(&mut self.extension, &peer.extension);
    }

    /// Returns whether an object of one peer is already part of this state.
    pub(crate) fn overlaps(&self, peer: &DesiredState) -> bool {
        peer.routes.keys().any(|key| self.routes.contains_key(key))
            || peer.neighbours.keys().any(|key| self.neighbours.contains_key(key))
            || peer.forwarding.keys().any(|key| self.forwarding.contains_key(key))
            || peer.wireguard.keys().any(|key| self.wireguard.contains_key(key))
    }
}

fn remove_keys<K: Ord, V>(from: &mut BTreeMap<K, V>, keys: &BTreeMap<K, V>) {
    for key in keys.keys() {
        from.remove(key);
    }
}

/// A device that the agent creates. All devices are up and ignore router advertisements (`accept_ra` is 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DesiredDevice {
    pub name: IfName,
    pub mtu: u32,
    pub kind: DeviceKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    Vxlan(VxlanDevice),
    /// The agent holds the private key; the public key shows whether the device has the right one.
    Wireguard {
        public_key: PublicKey,
        listen_port: u16,
    },
    /// A tunnel without a fixed remote address.
    Ipip {
        local: Ipv4Addr,
    },
    /// Created and read by the agent itself.
    Tun,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VxlanDevice {
    pub vni: u32,
    pub mac: MacAddr,
    /// Underlay device that carries the encapsulated packets.
    pub lower: LowerDevice,
    pub local: IpAddr,
    pub port: u16,
    pub learning: bool,
    pub gbp: bool,
}

/// A device below a tunnel. The index identifies it; the name, if known, is only for display.
#[derive(Debug, Clone, Copy)]
pub struct LowerDevice {
    pub index: IfIndex,
    pub name: Option<IfName>,
}

impl PartialEq for LowerDevice {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index
    }
}

impl Eq for LowerDevice {}

impl From<IfIndex> for LowerDevice {
    fn from(index: IfIndex) -> Self {
        Self { index, name: None }
    }
}

impl fmt::Display for LowerDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => name.fmt(f),
            None => self.index.fmt(f),
        }
    }
}

impl DeviceKind {
    /// Returns the kernel's name of the link kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Vxlan(_) => "vxlan",
            Self::Wireguard { .. } => "wireguard",
            Self::Ipip { .. } => "ipip",
            Self::Tun => "tun",
        }
    }
}

/// An address of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress {
    pub device: IfName,
    pub prefix: IpNet,
}

/// A route of the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DesiredRoute {
    pub dst: IpNet,
    pub kind: RouteKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    Unicast(NextHop),
    /// Drops packets to the destination. The route has the [worst metric](BLACKHOLE_METRIC).
    Blackhole,
}

/// The path of a unicast route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHop {
    /// An IPv6 gateway may serve an IPv4 destination, but not the other way round.
    pub gateway: Option<IpAddr>,
    pub device: IfName,
    /// The gateway is on the link although no route says so.
    pub onlink: bool,
    /// IPv4: the destinations are on the link itself.
    pub is_link_scope: bool,
    /// MTU of the path, if it is lower than the MTU of the device.
    pub mtu: Option<u32>,
}

/// Metric of blackhole routes. Every other route to the same destination wins, such as that of a
/// bridge. flannel's blackhole routes have the best metric and cut off a bridge that is created later.
pub const BLACKHOLE_METRIC: u32 = u32::MAX;

impl NextHop {
    pub(crate) fn with_mtu(self, mtu: u32) -> Self {
        Self { mtu: Some(mtu), ..self }
    }
}

impl DesiredRoute {
    pub fn unicast(dst: IpNet, next_hop: NextHop) -> Self {
        Self { dst, kind: RouteKind::Unicast(next_hop) }
    }

    pub fn blackhole(dst: IpNet) -> Self {
        Self { dst, kind: RouteKind::Blackhole }
    }

    /// A route through a gateway that the kernel knows to be on the link.
    pub(crate) fn via(dst: IpNet, gateway: IpAddr, device: IfName) -> Self {
        let (gateway, onlink, is_link_scope, mtu) = (Some(gateway), false, false, None);
        Self::unicast(dst, NextHop { gateway, device, onlink, is_link_scope, mtu })
    }

    /// A route through a gateway inside a tunnel.
    pub(crate) fn onlink(dst: IpNet, gateway: IpAddr, device: IfName) -> Self {
        let (gateway, onlink, is_link_scope, mtu) = (Some(gateway), true, false, None);
        Self::unicast(dst, NextHop { gateway, device, onlink, is_link_scope, mtu })
    }

    /// A route into a device, without a gateway.
    pub(crate) fn into_device(dst: IpNet, device: IfName, is_link_scope: bool) -> Self {
        let is_link_scope = is_link_scope && cidr::of(dst) == Family::V4;
        let (gateway, onlink, mtu) = (None, false, None);
        Self::unicast(dst, NextHop { gateway, device, onlink, is_link_scope, mtu })
    }

    /// Returns the next hop of a unicast route.
    pub fn next_hop(&self) -> Option<NextHop> {
        match self.kind {
            RouteKind::Unicast(next_hop) => Some(next_hop),
            RouteKind::Blackhole => None,
        }
    }

    pub fn device(&self) -> Option<IfName> {
        self.next_hop().map(|hop| hop.device)
    }

    pub fn gateway(&self) -> Option<IpAddr> {
        self.next_hop()?.gateway
    }

    /// Returns the metric that the route has in the kernel. Destination and metric identify a route.
    pub fn metric(&self) -> u32 {
        match self.kind {
            RouteKind::Unicast(_) => default_metric(self.dst),
            RouteKind::Blackhole => BLACKHOLE_METRIC,
        }
    }

    /// Converts the route to its netlink form. `index` is the index of its device. A unicast route
    /// uses its gateway and device, or the next-hop object `nexthop`, which has both.
    pub fn to_kernel(&self, index: Option<IfIndex>, nexthop: Option<u32>) -> route::Route {
        let plain = route::Route { protocol: PROTOCOL, ..route::Route::new(self.dst) };
        let RouteKind::Unicast(hop) = self.kind else {
            let (kind, priority) = (route::KIND_BLACKHOLE, Some(BLACKHOLE_METRIC));
            return route::Route { kind, priority, ..plain };
        };
        let scope = if hop.is_link_scope { route::SCOPE_LINK } else { route::SCOPE_UNIVERSE };
        let plain = route::Route { scope: Some(scope), nexthop, mtu: hop.mtu, ..plain };
        match nexthop {
            Some(_) => plain,
            None => route::Route { gateway: hop.gateway, oif: index, onlink: hop.onlink, ..plain },
        }
    }
}

/// The gateway of a route or of a next-hop object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gateway {
    pub address: IpAddr,
    pub device: IfName,
    pub onlink: bool,
}

impl Gateway {
    /// Returns the gateway of a route, if it has one.
    pub fn of(route: &DesiredRoute) -> Option<Self> {
        let hop = route.next_hop()?;
        Some(Self { address: hop.gateway?, device: hop.device, onlink: hop.onlink })
    }
}

/// Returns the metric that the kernel chooses if a request has none.
pub fn default_metric(dst: IpNet) -> u32 {
    match cidr::of(dst) {
        Family::V4 => 0,
        Family::V6 => 1024,
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredWireguardPeer {
    pub endpoint: SocketAddr,
    /// Subnets that the peer may send from and that are routed to it.
    pub allowed: BTreeSet<IpNet>,
    pub psk: Option<PresharedKey>,
    /// Keepalive interval in seconds.
    pub keepalive: Option<u16>,
}
