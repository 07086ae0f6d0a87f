// SPDX-License-Identifier: Apache-2.0
//! Reads what there is: devices by name, then what hangs on those that are ours; routes by protocol and by
//! device. What pods have is not looked at.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, SystemTime};

use kernel::link::{self, Detail, Link};
use kernel::nexthop::{self, Nexthop, NexthopFilter};
use kernel::route::{self, RouteFilter, TABLE_MAIN};
use kernel::wireguard::{self, PublicKey, Wireguard};
use kernel::{Family, IfIndex, IfName, MacAddr, Netlink, addr, fdb, neigh};
use overlay::desired::{DeviceAddress, DeviceKind, Gateway, VxlanDevice, default_metric};
use overlay::observed::{
    ObservedDevice, ObservedKind, ObservedNexthop, ObservedRoute, ObservedState,
    ObservedWireguardPeer,
};
use overlay::ownership::{Ownership, PROTOCOL};

/// A session of WireGuard ends after so long without a handshake (`REJECT_AFTER_TIME`).
const ALIVE: Duration = Duration::from_secs(180);

/// Which routes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Routes {
    /// Of our protocol, and flannel's on our devices.
    Ours,
    /// All of the main table, where one of others is in the way.
    All,
}

/// What there is, and under which numbers.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) found: ObservedState,
    pub(super) indices: BTreeMap<IfName, IfIndex>,
}

/// What is to be read, and with what.
pub(super) struct Reader<'a> {
    pub(super) nl: &'a Netlink,
    pub(super) wireguard: &'a mut Option<Wireguard>,
    pub(super) scope: &'a Ownership,
    pub(super) routes: Routes,
    /// Whether this process carries the packets of a TUN device.
    pub(super) carries: &'a dyn Fn(IfIndex) -> bool,
}

/// The names of devices with our mark: all links are listed for it.
pub(super) fn marked(nl: &Netlink, mark: &str) -> kernel::Result<BTreeSet<IfName>> {
    let links = link::list(nl)?;
    let ours = links.iter().filter(|link| link.alias.as_deref() == Some(mark));
    Ok(ours.map(|link| link.name).collect())
}

impl Reader<'_> {
    /// Reads; of devices those with these names.
    pub(super) fn read(&mut self, names: &BTreeSet<IfName>) -> kernel::Result<Reading> {
        let mut reading = Reading::default();
        let mut ours = Vec::new();
        for name in names {
            // The kernel looks among alternative names, too.
            let Some(link) = link::by_name(self.nl, *name)?.filter(|link| link.name == *name)
            else {
                continue;
            };
            let device = self.device(&link, &mut reading.found)?;
            reading.indices.insert(*name, link.index);
            if self.scope.owns_device(&device) {
                ours.push(link);
            }
            reading.found.devices.push(device);
        }
        for link in &ours {
            self.read_on(link, &mut reading.found)?;
        }
        self.read_routes(&ours, &mut reading)?;
        Ok(reading)
    }

    fn device(&mut self, link: &Link, found: &mut ObservedState) -> kernel::Result<ObservedDevice> {
        let kind = match (&link.detail, link.kind.as_deref()) {
            (Detail::Vxlan(vxlan), _) => vxlan_kind(vxlan, link.mac),
            (Detail::Ipip(ipip), _) if ipip.remote.is_none() => {
                let local = ipip.local.unwrap_or(Ipv4Addr::UNSPECIFIED);
                Some(DeviceKind::Ipip { local })
            }
            (_, Some("wireguard")) => self.wireguard_kind(link, found)?,
            // One whose packets another process carries, or nobody, is of no use.
            (_, Some("tun")) => (self.carries)(link.index).then_some(DeviceKind::Tun),
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

    /// A device with its peers. None where it has gone meanwhile.
    fn wireguard_kind(
        &mut self,
        link: &Link,
        found: &mut ObservedState,
    ) -> kernel::Result<Option<DeviceKind>> {
        let Some(device) = open(self.wireguard)?.get(link.index)? else { return Ok(None) };
        let now = SystemTime::now();
        for peer in &device.peers {
            let key = (link.name, peer.public_key);
            found.wireguard.insert(key, found_peer(peer, now));
        }
        let public_key = device.public_key.unwrap_or(PublicKey([0; 32]));
        Ok(Some(DeviceKind::Wireguard { public_key, listen_port: device.listen_port }))
    }

    /// Addresses, neighbours and forwarding entries of a device of ours.
    fn read_on(&self, link: &Link, found: &mut ObservedState) -> kernel::Result<()> {
        let device = link.name;
        let addresses = addr::list(self.nl, Some(link.index))?;
        found
            .addresses
            .extend(addresses.iter().map(|addr| DeviceAddress { device, prefix: addr.prefix }));
        if !link.is_kind("vxlan") {
            return Ok(());
        }
        for family in Family::ALL {
            let all = neigh::list(self.nl, family, Some(link.index))?;
            let permanent = all.iter().filter(|neigh| neigh.state & neigh::PERMANENT != 0);
            let with_mac = permanent.filter_map(|neigh| Some(((device, neigh.ip), neigh.mac?)));
            found.neighbours.extend(with_mac);
        }
        let entries = fdb::list(self.nl, link.index)?;
        let entries = entries.iter().filter(|entry| is_unicast(entry));
        let entries = entries.filter_map(|entry| Some((device, entry.mac, entry.dst?)));
        found.forwarding.extend(entries);
        Ok(())
    }

    fn read_routes(&self, ours: &[Link], reading: &mut Reading) -> kernel::Result<()> {
        let nexthops = match self.scope.nexthops {
            Some(_) => nexthop::list(self.nl, NexthopFilter::default())?,
            None => Vec::new(),
        };
        let main = RouteFilter { table: Some(TABLE_MAIN), ..RouteFilter::default() };
        let mut routes = Vec::new();
        match self.routes {
            Routes::All => routes.extend(route::list(self.nl, main)?),
            Routes::Ours => {
                let of = |protocol| RouteFilter { protocol: Some(protocol), ..main };
                routes.extend(route::list(self.nl, of(PROTOCOL))?);
                for link in ours {
                    let flannels = of(route::PROTOCOL_BOOT);
                    let filter = RouteFilter { oif: Some(link.index), ..flannels };
                    routes.extend(route::list(self.nl, filter)?);
                }
            }
        }
        let mut names = Names::new(self.nl, &reading.indices);
        for one in &nexthops {
            let gateway = names.gateway(one)?;
            let nexthop = ObservedNexthop { gateway, protocol: one.protocol };
            reading.found.nexthops.insert(one.id, nexthop);
        }
        let by_id: HashMap<u32, &Nexthop> = nexthops.iter().map(|one| (one.id, one)).collect();
        for mut route in routes {
            complete(&mut route, &by_id);
            if let Some(index) = route.oif {
                names.of(index)?;
            }
            match ObservedRoute::from_kernel(&route, |index| names.known(index)) {
                Some(found) => reading.found.routes.push(found),
                None if route.priority.unwrap_or(0) == default_metric(route.dst) => {
                    reading.found.blocking_routes.insert(route.dst, route.protocol);
                }
                None => {}
            }
        }
        reading.indices = names.into_indices();
        Ok(())
    }
}

/// The socket, opened when it is first needed.
pub(super) fn open(wireguard: &mut Option<Wireguard>) -> kernel::Result<&Wireguard> {
    let socket = match wireguard.take() {
        Some(socket) => socket,
        None => Wireguard::open()?,
    };
    Ok(wireguard.insert(socket))
}

/// None for one that also sends to a group, which ours do not.
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

fn found_peer(peer: &wireguard::Peer, now: SystemTime) -> ObservedWireguardPeer {
    let is_alive = peer.last_handshake.is_some_and(|then| {
        // One of the future is one before the clock was set.
        now.duration_since(then).is_ok_and(|since| since < ALIVE)
    });
    ObservedWireguardPeer {
        endpoint: peer.endpoint,
        allowed: peer.allowed_ips.iter().copied().collect(),
        psk: peer.preshared_key.clone(),
        keepalive: Some(peer.keepalive).filter(|seconds| *seconds != 0),
        is_alive,
    }
}

/// One of a node. Where broadcasts go is not the plan's business.
pub(super) fn is_unicast(entry: &fdb::Fdb) -> bool {
    entry.flags & fdb::SELF != 0
        && entry.state & neigh::PERMANENT != 0
        && entry.mac != MacAddr([0; 6])
}

/// What the kernel leaves out where it is told not to repeat a next hop in its routes
/// (`net.ipv4.nexthop_compat_mode`).
pub(crate) fn complete(route: &mut route::Route, nexthops: &HashMap<u32, &Nexthop>) {
    if route.oif.is_some() {
        return;
    }
    let Some(nexthop) = route.nexthop.and_then(|id| nexthops.get(&id)) else { return };
    (route.oif, route.gateway, route.onlink) = (nexthop.oif, nexthop.gateway, nexthop.onlink);
}

/// Names of devices, each asked for once.
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
