// SPDX-License-Identifier: Apache-2.0
//! What a node's kernel holds, and how ours is told from others'.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use kernel::{Family, IfIndex, IfName, MacAddr, route};
use sha2::{Digest, Sha256};

use crate::family;
use crate::key::{Key, Psk};
use crate::netconf::{Backend, NetConf};
use crate::plan::extension::ExtensionPeer;
use crate::plan::{
    Address, Device, DeviceKind, Route, Wanted, WireguardPeer, ipip, udp, vxlan, wireguard,
};

/// Who made a route or a next hop: a number of our own, so that they are found again after a crash
/// and whatever the configuration was. Numbers of other programs are in iproute2's `rt_protos`.
pub const PROTOCOL: u8 = 112;

/// What is there. Devices of others may be left out, but not those with a name that is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    pub devices: Vec<FoundDevice>,
    pub addresses: BTreeSet<Address>,
    /// Unicast routes of the main table.
    pub routes: Vec<FoundRoute>,
    /// What else is in the place of a route, by whom: blackholes, routes with several gateways and the
    /// like.
    pub barriers: BTreeMap<IpNet, u8>,
    /// All of them: numbers of others must not be taken.
    pub nexthops: BTreeMap<u32, FoundNexthop>,
    /// Permanent ones.
    pub neighbours: BTreeMap<(IfName, IpAddr), MacAddr>,
    /// Permanent ones.
    pub forwarding: BTreeSet<(IfName, MacAddr, IpAddr)>,
    pub wireguard: BTreeMap<(IfName, Key), FoundPeer>,
    /// What commands of the administrator's have been told.
    pub extension: BTreeMap<IpNet, ExtensionPeer>,
}

impl Found {
    /// What is there when all that is wanted has been made, with next hops of these numbers.
    pub fn made(wanted: &Wanted, scope: &Scope, nexthops: &BTreeMap<Gateway, u32>) -> Self {
        let device = |device: &Device| FoundDevice {
            name: device.name,
            alias: Some(scope.mark.clone()),
            is_up: true,
            mtu: device.mtu,
            kind: FoundKind::Known(device.kind),
        };
        let number = |route: &Route| nexthops.get(&Gateway::of(route)?).copied();
        let route = |route: &Route| FoundRoute {
            route: *route,
            metric: default_metric(route.dst),
            protocol: PROTOCOL,
            nexthop: number(route),
        };
        let nexthop = |route: &Route| {
            let gateway = Gateway::of(route);
            Some((number(route)?, FoundNexthop { gateway, protocol: PROTOCOL }))
        };
        let peer = |peer: &WireguardPeer| FoundPeer {
            endpoint: Some(peer.endpoint),
            allowed: peer.allowed.clone(),
            psk: peer.psk,
            keepalive: peer.keepalive,
            is_alive: false,
        };
        let forwarding = wanted.forwarding.iter().map(|((device, mac), dst)| (*device, *mac, *dst));
        Self {
            devices: wanted.devices.values().map(device).collect(),
            addresses: wanted.addresses.clone(),
            barriers: BTreeMap::new(),
            routes: wanted.routes.values().map(route).collect(),
            nexthops: wanted.routes.values().filter_map(nexthop).collect(),
            neighbours: wanted.neighbours.clone(),
            forwarding: forwarding.collect(),
            wireguard: wanted.wireguard.iter().map(|(key, one)| (*key, peer(one))).collect(),
            extension: wanted.extension.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundDevice {
    pub name: IfName,
    pub alias: Option<String>,
    pub is_up: bool,
    pub mtu: u32,
    pub kind: FoundKind,
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundKind {
    Known(DeviceKind),
    /// The kernel's word for it.
    Other(String),
}

impl FoundKind {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Known(kind) => kind.name(),
            Self::Other(name) => name,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundRoute {
    pub route: Route,
    pub metric: u32,
    pub protocol: u8,
    pub nexthop: Option<u32>,
}

/// A next hop object: routes that share a device are found by it without searching all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundNexthop {
    /// None for a group, a blackhole and the like.
    pub gateway: Option<Gateway>,
    pub protocol: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gateway {
    pub address: IpAddr,
    pub device: IfName,
    pub onlink: bool,
}

impl Gateway {
    /// That of a route, if it has one.
    pub fn of(route: &Route) -> Option<Self> {
        let (address, device, onlink) = (route.gateway?, route.device, route.onlink);
        Some(Self { address, device, onlink })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPeer {
    pub endpoint: Option<SocketAddr>,
    pub allowed: BTreeSet<IpNet>,
    pub psk: Option<Psk>,
    pub keepalive: Option<u16>,
    /// It was heard of in the last three minutes, so its endpoint is where it is now: a peer may
    /// roam.
    pub is_alive: bool,
}

/// What is ours to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// The alias of our devices.
    pub mark: String,
    /// Names that we and flannel give, with the kind of device each is. One of these is taken over.
    pub names: BTreeMap<IfName, &'static str>,
    /// Names of devices that we made or took over, whatever others have written on them since.
    pub taken: BTreeSet<IfName>,
    /// The network's, and the one it was before, if it has changed.
    pub networks: Vec<IpNet>,
    /// Numbers of next hops that are ours to give. None for kernels before 5.3.
    pub nexthops: Option<RangeInclusive<u32>>,
    /// Numbers below are in use, where [`Found::nexthops`] has not all of them.
    pub nexthops_from: u32,
}

/// All numbers that any of our agents gives; others count from one.
pub const NEXTHOPS: RangeInclusive<u32> = 0x7000_0000..=0x7fff_ffff;

impl Scope {
    /// For a configuration. `mark` tells apart agents of several networks on one node.
    pub fn new(conf: &NetConf, mark: &str) -> Self {
        let vni = match &conf.backend {
            Backend::Vxlan(vxlan) => vxlan.vni,
            // flannel's default.
            _ => 1,
        };
        Self::of(mark, vni, conf.networks.iter().collect())
    }

    /// For removing every trace: what bears our mark, wherever it leads. Only routes of kernels without next
    /// hops bear none, and are known by the networks that they lead to.
    pub fn of_everything(mark: &str, networks: Vec<IpNet>) -> Self {
        Self { names: BTreeMap::new(), ..Self::of(mark, 1, networks) }
    }

    fn of(mark: &str, vni: u32, networks: Vec<IpNet>) -> Self {
        let names = BTreeMap::from([
            (vxlan::device_name(vni, Family::V4), "vxlan"),
            (vxlan::device_name(vni, Family::V6), "vxlan"),
            (wireguard::device_name(Family::V4), "wireguard"),
            (wireguard::device_name(Family::V6), "wireguard"),
            (ipip::device_name(), "ipip"),
            (udp::device_name(), "tun"),
        ]);
        let nexthops = nexthops_of(mark);
        Self {
            mark: mark.to_owned(),
            names,
            taken: BTreeSet::new(),
            networks,
            nexthops_from: *nexthops.start(),
            nexthops: Some(nexthops),
        }
    }

    /// Whether a device is ours, or flannel's that we take over. One with an alias is another agent's.
    pub fn has_device(&self, device: &FoundDevice) -> bool {
        let is_of_our_kind = || self.names.get(&device.name) == Some(&device.kind.name());
        match &device.alias {
            Some(alias) if *alias == self.mark => true,
            Some(_) => self.taken.contains(&device.name) && is_of_our_kind(),
            None => is_of_our_kind(),
        }
    }

    /// Whether a route goes through a next hop of ours; none where it bears no agent's number.
    pub(super) fn has_nexthop(&self, route: &FoundRoute) -> Option<bool> {
        let id = route.nexthop.filter(|id| NEXTHOPS.contains(id))?;
        Some(self.nexthops.as_ref().is_some_and(|ours| ours.contains(&id)))
    }

    /// Whether a prefix is inside one of the networks.
    pub(super) fn has_prefix(&self, prefix: IpNet) -> bool {
        self.networks.iter().any(|network| network.contains(&prefix))
    }
}

/// Whether agents with these marks would take each other's next hops for their own.
pub fn share_nexthops(one: &str, other: &str) -> bool {
    nexthops_of(one) == nexthops_of(other)
}

/// The share of an agent: what it finds there and does not want, it removes.
fn nexthops_of(mark: &str) -> RangeInclusive<u32> {
    let [share, ..] = Sha256::digest(mark).0;
    let first = NEXTHOPS.start() + (u32::from(share) << 20);
    first..=first + 0xf_ffff
}

/// The metric that the kernel gives where none is asked for.
pub fn default_metric(dst: IpNet) -> u32 {
    match family::of(dst) {
        Family::V4 => 0,
        Family::V6 => 1024,
    }
}

impl FoundRoute {
    /// A route as the kernel shows it. None where it is not a unicast route of the main table
    /// through one device; one through a next hop object has to be completed by what the object
    /// says.
    pub fn from_kernel(
        found: &route::Route,
        name_of: impl Fn(IfIndex) -> Option<IfName>,
    ) -> Option<Self> {
        if found.table != route::TABLE_MAIN || found.kind != route::KIND_UNICAST {
            return None;
        }
        let is_link_scope = found.dst.addr().is_ipv4() && found.scope == Some(route::SCOPE_LINK);
        let route = Route {
            dst: found.dst,
            gateway: found.gateway,
            device: name_of(found.oif?)?,
            onlink: found.onlink,
            is_link_scope,
            mtu: found.mtu,
        };
        let metric = found.priority.unwrap_or(0);
        Some(Self { route, metric, protocol: found.protocol, nexthop: found.nexthop })
    }

    /// The kernel's form, to be removed: by its gateway and device, which the object has, too.
    pub fn to_kernel(&self, index: IfIndex) -> route::Route {
        let scope = None;
        let priority = Some(self.metric).filter(|metric| *metric != 0);
        let route = self.route.to_kernel(index, self.nexthop);
        route::Route { protocol: self.protocol, priority, scope, ..route }
    }
}

impl Route {
    /// The kernel's form: through its gateway and device, or a next hop object that has them.
    pub fn to_kernel(&self, index: IfIndex, nexthop: Option<u32>) -> route::Route {
        let scope = if self.is_link_scope { route::SCOPE_LINK } else { route::SCOPE_UNIVERSE };
        let plain = route::Route {
            protocol: PROTOCOL,
            scope: Some(scope),
            nexthop,
            mtu: self.mtu,
            ..route::Route::new(self.dst)
        };
        if nexthop.is_some() {
            return plain;
        }
        route::Route { gateway: self.gateway, oif: Some(index), onlink: self.onlink, ..plain }
    }
}
