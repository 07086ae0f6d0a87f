// SPDX-License-Identifier: Apache-2.0
//! Reads the kernel state: devices by name, then addresses, neighbours and forwarding entries of
//! the agent's devices, and routes by protocol and by device. Interfaces and routes of pods are not
//! read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, SystemTime};

use kernel::link::{self, Detail, Link};
use kernel::nexthop::{self, Nexthop, NexthopFilter};
use kernel::route::{self, KIND_BLACKHOLE, RouteFilter, TABLE_MAIN};
use kernel::wireguard::{self, PublicKey, Wireguard};
use kernel::{Family, IfIndex, IfName, MacAddr, Netlink, addr, fdb, neigh};
use overlay::desired::{DeviceAddress, DeviceKind, Gateway, VxlanDevice, default_metric};
use overlay::observed::{
    ObservedDevice, ObservedKind, ObservedNexthop, ObservedRoute, ObservedState,
    ObservedWireguardPeer,
};
use overlay::ownership::{Ownership, PROTOCOL};

/// A WireGuard session ends this long after the last handshake (`REJECT_AFTER_TIME`).
const SESSION_LIFETIME: Duration = Duration::from_secs(180);

/// The routes to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteSelection {
    /// podwire's routes, and flannel's routes on the agent's devices.
    Own,
    /// Also flannel's blackhole routes, which are removed when the network is set.
    OwnAndBlackholes,
    /// All routes of the main table, to find foreign ones that conflict.
    All,
}

/// The observed state, and the indices of devices.
#[derive(Debug, Default)]
pub(super) struct Observation {
    pub(super) state: ObservedState,
    pub(super) indices: BTreeMap<IfName, IfIndex>,
}

pub(super) struct Observer<'a> {
    pub(super) nl: &'a Netlink,
    pub(super) wireguard: &'a mut Option<Wireguard>,
    pub(super) ownership: &'a Ownership,
    pub(super) routes: RouteSelection,
    /// Returns whether this process carries the packets of a TUN device.
    pub(super) is_served: &'a dyn Fn(IfIndex) -> bool,
}

/// Returns the names of devices that have the owner tag as alias. Lists all links.
pub(super) fn devices_of(nl: &Netlink, owner: &str) -> kernel::Result<BTreeSet<IfName>> {
    let links = link::list(nl)?;
    let own = links.iter().filter(|link| link.alias.as_deref() == Some(owner));
    Ok(own.map(|link| link.name).collect())
}

impl Observer<'_> {
    /// Reads the state, with the devices that have these names.
    pub(super) fn observe(&mut self, names: &BTreeSet<IfName>) -> kernel::Result<Observation> {
        let mut observation = Observation::default();
        let mut own = Vec::new();
        for name in names {
            // The kernel finds devices by alternative names as well.
            let Some(link) = link::by_name(self.nl, *name)?.filter(|link| link.name == *name)
            else {
                continue;
            };
            let device = self.device(&link, &mut observation.state)?;
            observation.indices.insert(*name, link.index);
            if self.ownership.owns_device(&device) {
                own.push(link);
            }
            observation.state.devices.push(device);
        }
        for link in &own {
            self.observe_device(link, &mut observation.state)?;
        }
        self.observe_routes(&own, &mut observation)?;
        Ok(observation)
    }

    fn device(&mut self, link: &Link, state: &mut ObservedState) -> kernel::Result<ObservedDevice> {
        let kind = match (&link.detail, link.kind.as_deref()) {
            (Detail::Vxlan(vxlan), _) => vxlan_kind(vxlan, link.mac),
            (Detail::Ipip(ipip), _) if ipip.remote.is_none() => {
                let local = ipip.local.unwrap_or(Ipv4Addr::UNSPECIFIED);
                Some(DeviceKind::Ipip { local })
            }
            (_, Some("wireguard")) => self.wireguard_kind(link, state)?,
            // A TUN device without this process behind it has to be created again.
            (_, Some("tun")) => (self.is_served)(link.index).then_some(DeviceKind::Tun),
            _ => None,
        };
        let other =
            || ObservedKind::Other(link.kind.clone().unwrap_or_else(|| "device".to_owned()));
        Ok(ObservedDevice {
            name: link.name,
            alias: link.alias.clone(),
            is_up: link.is_up(),
            mtu: link.mtu,
            kind: kind.map_or_else(other, ObservedKind::Known),
        })
    }

    /// Reads a WireGuard device and its peers. Returns `None` if the device was removed meanwhile.
    fn wireguard_kind(
        &mut self,
        link: &Link,
        state: &mut ObservedState,
    ) -> kernel::Result<Option<DeviceKind>> {
        let Some(device) = open(self.wireguard)?.get(link.index)? else { return Ok(None) };
        let now = SystemTime::now();
        for peer in &device.peers {
            let key = (link.name, peer.public_key);
            state.wireguard.insert(key, wireguard_peer(peer, now));
        }
        let public_key = device.public_key.unwrap_or(PublicKey([0; 32]));
        Ok(Some(DeviceKind::Wireguard { public_key, listen_port: device.listen_port }))
    }

    /// Reads addresses, neighbours and forwarding entries of one of the agent's devices.
    fn observe_device(&self, link: &Link, state: &mut ObservedState) -> kernel::Result<()> {
        let device = link.name;
        let addresses = addr::list(self.nl, Some(link.index))?;
        state
            .addresses
            .extend(addresses.iter().map(|addr| DeviceAddress { device, prefix: addr.prefix }));
        if !link.is_kind("vxlan") {
            return Ok(());
        }
        for family in Family::ALL {
            let all = neigh::list(self.nl, family, Some(link.index))?;
            let permanent = all.iter().filter(|neigh| neigh.state & neigh::PERMANENT != 0);
            let with_mac = permanent.filter_map(|neigh| Some(((device, neigh.ip), neigh.mac?)));
            state.neighbours.extend(with_mac);
        }
        let entries = fdb::list(self.nl, link.index)?;
        let entries = entries.iter().filter(|entry| is_unicast(entry));
        let entries = entries.filter_map(|entry| Some((device, entry.mac, entry.dst?)));
        state.forwarding.extend(entries);
        Ok(())
    }

    fn observe_routes(&self, own: &[Link], observation: &mut Observation) -> kernel::Result<()> {
        let nexthops = match self.ownership.nexthops {
            Some(_) => nexthop::list(self.nl, NexthopFilter::default())?,
            None => Vec::new(),
        };
        let main = RouteFilter { table: Some(TABLE_MAIN), ..RouteFilter::default() };
        let mut routes = Vec::new();
        match self.routes {
            RouteSelection::All => routes.extend(route::list(self.nl, main)?),
            RouteSelection::Own | RouteSelection::OwnAndBlackholes => {
                let of = |protocol| RouteFilter { protocol: Some(protocol), ..main };
                routes.extend(route::list(self.nl, of(PROTOCOL))?);
                if self.routes == RouteSelection::OwnAndBlackholes {
                    let flannel = of(route::PROTOCOL_BOOT);
                    let filter = RouteFilter { kind: Some(KIND_BLACKHOLE), ..flannel };
                    routes.extend(route::list(self.nl, filter)?);
                }
                for link in own {
                    let flannel = of(route::PROTOCOL_BOOT);
                    let filter = RouteFilter { oif: Some(link.index), ..flannel };
                    routes.extend(route::list(self.nl, filter)?);
                }
            }
        }
        let mut names = Names::new(self.nl, &observation.indices);
        for one in &nexthops {
            let gateway = names.gateway(one)?;
            let nexthop = ObservedNexthop { gateway, protocol: one.protocol };
            observation.state.nexthops.insert(one.id, nexthop);
        }
        let by_id: HashMap<u32, &Nexthop> = nexthops.iter().map(|one| (one.id, one)).collect();
        for mut route in routes {
            complete(&mut route, &by_id);
            if let Some(index) = route.oif {
                names.of(index)?;
            }
            match ObservedRoute::from_kernel(&route, |index| names.known(index)) {
                Some(observed) => observation.state.routes.push(observed),
                None if route.priority.unwrap_or(0) == default_metric(route.dst) => {
                    observation.state.blocking_routes.insert(route.dst, route.protocol);
                }
                None => {}
            }
        }
        observation.indices = names.into_indices();
        Ok(())
    }
}

/// Returns the WireGuard socket. Opens it at the first call.
pub(super) fn open(wireguard: &mut Option<Wireguard>) -> kernel::Result<&Wireguard> {
    let socket = match wireguard.take() {
        Some(socket) => socket,
        None => Wireguard::open()?,
    };
    Ok(wireguard.insert(socket))
}

/// Returns `None` for a device with a multicast group or a default remote address, which the
/// agent's devices do not have.
fn vxlan_kind(vxlan: &link::Vxlan, mac: Option<MacAddr>) -> Option<DeviceKind> {
    if vxlan.group.is_some() {
        return None;
    }
    Some(DeviceKind::Vxlan(VxlanDevice {
        vni: vxlan.id,
        mac: mac.unwrap_or(MacAddr([0; 6])),
        lower: vxlan.link.unwrap_or(IfIndex(0)).into(),
        local: vxlan.local.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        port: vxlan.port,
        learning: vxlan.learning,
        gbp: vxlan.gbp,
    }))
}

fn wireguard_peer(peer: &wireguard::Peer, now: SystemTime) -> ObservedWireguardPeer {
    let is_alive = peer.last_handshake.is_some_and(|then| {
        // A handshake in the future was before the clock was set.
        now.duration_since(then).is_ok_and(|elapsed| elapsed < SESSION_LIFETIME)
    });
    ObservedWireguardPeer {
        endpoint: peer.endpoint,
        allowed: peer.allowed_ips.iter().copied().collect(),
        psk: peer.preshared_key.clone(),
        keepalive: Some(peer.keepalive).filter(|seconds| *seconds != 0),
        is_alive,
    }
}

/// Returns whether a forwarding entry is the permanent entry of one node. The plan does not cover
/// broadcast entries, which have the MAC address zero.
pub(super) fn is_unicast(entry: &fdb::Fdb) -> bool {
    entry.flags & fdb::SELF != 0
        && entry.state & neigh::PERMANENT != 0
        && entry.mac != MacAddr([0; 6])
}

/// Adds device and gateway of the next-hop object to a route. With `net.ipv4.nexthop_compat_mode=0`
/// the kernel leaves them out of the route.
pub(crate) fn complete(route: &mut route::Route, nexthops: &HashMap<u32, &Nexthop>) {
    if route.oif.is_some() {
        return;
    }
    let Some(nexthop) = route.nexthop.and_then(|id| nexthops.get(&id)) else { return };
    (route.oif, route.gateway, route.onlink) = (nexthop.oif, nexthop.gateway, nexthop.onlink);
}

/// Names of devices by index. Asks the kernel for each once.
struct Names<'a> {
    nl: &'a Netlink,
    names: HashMap<IfIndex, Option<IfName>>,
}

impl<'a> Names<'a> {
    fn new(nl: &'a Netlink, known: &BTreeMap<IfName, IfIndex>) -> Self {
        let names = known.iter().map(|(name, index)| (*index, Some(*name))).collect();
        Self { nl, names }
    }

    fn known(&self, index: IfIndex) -> Option<IfName> {
        self.names.get(&index).copied().flatten()
    }

    fn of(&mut self, index: IfIndex) -> kernel::Result<Option<IfName>> {
        if let Some(name) = self.names.get(&index) {
            return Ok(*name);
        }
        let name = link::name_of(self.nl, index)?;
        self.names.insert(index, name);
        Ok(name)
    }

    fn gateway(&mut self, nexthop: &Nexthop) -> kernel::Result<Option<Gateway>> {
        let (Some(address), Some(index)) = (nexthop.gateway, nexthop.oif) else { return Ok(None) };
        let device = self.of(index)?;
        Ok(device.map(|device| Gateway { address, device, onlink: nexthop.onlink }))
    }

    fn into_indices(self) -> BTreeMap<IfName, IfIndex> {
        self.names.into_iter().filter_map(|(index, name)| Some((name?, index))).collect()
    }
}
