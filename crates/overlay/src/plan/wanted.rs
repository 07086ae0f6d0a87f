// SPDX-License-Identifier: Apache-2.0
//! What a node's kernel should hold. Devices are named, as they may not be there yet and have no
//! index.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use ipnet::{IpNet, Ipv4Net};
use kernel::{Family, IfIndex, IfName, MacAddr};

use super::extension::ExtensionPeer;
use crate::family;
use crate::key::{Key, Psk};

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted {
    pub devices: BTreeMap<IfName, Device>,
    pub addresses: BTreeSet<Address>,
    /// In the main table, by destination.
    pub routes: BTreeMap<IpNet, Route>,
    /// Which hardware address an address on a tunnel has.
    pub neighbours: BTreeMap<(IfName, IpAddr), MacAddr>,
    /// Behind which node a hardware address on a tunnel is.
    pub forwarding: BTreeMap<(IfName, MacAddr), IpAddr>,
    pub wireguard: BTreeMap<(IfName, Key), WireguardPeer>,
    /// Where the program behind the TUN device sends packets for a subnet.
    pub udp: BTreeMap<Ipv4Net, SocketAddrV4>,
    /// Subnets that commands of the administrator's are told of.
    pub extension: BTreeMap<IpNet, ExtensionPeer>,
}

impl Wanted {
    /// With a peer's part, which has no device.
    pub(super) fn add(&mut self, part: Wanted) {
        self.routes.extend(part.routes);
        self.neighbours.extend(part.neighbours);
        self.forwarding.extend(part.forwarding);
        self.wireguard.extend(part.wireguard);
        self.udp.extend(part.udp);
        self.extension.extend(part.extension);
    }

    /// Without a peer's part.
    pub(super) fn subtract(&mut self, part: &Wanted) {
        without(&mut self.routes, &part.routes);
        without(&mut self.neighbours, &part.neighbours);
        without(&mut self.forwarding, &part.forwarding);
        without(&mut self.wireguard, &part.wireguard);
        without(&mut self.udp, &part.udp);
        without(&mut self.extension, &part.extension);
    }

    /// Whether a peer's part has anything that is there already.
    pub(super) fn meets(&self, part: &Wanted) -> bool {
        part.routes.keys().any(|key| self.routes.contains_key(key))
            || part.neighbours.keys().any(|key| self.neighbours.contains_key(key))
            || part.forwarding.keys().any(|key| self.forwarding.contains_key(key))
            || part.wireguard.keys().any(|key| self.wireguard.contains_key(key))
    }
}

fn without<K: Ord, V>(all: &mut BTreeMap<K, V>, part: &BTreeMap<K, V>) {
    for key in part.keys() {
        all.remove(key);
    }
}

/// A device of ours. It is up, and takes no router's word: `accept_ra` is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    pub name: IfName,
    pub mtu: u32,
    pub kind: DeviceKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    Vxlan(VxlanDevice),
    /// The private key is the agent's business; the public one tells whether it is the right one.
    Wireguard {
        public_key: Key,
        listen_port: u16,
    },
    /// To any remote.
    Ipip {
        local: Ipv4Addr,
    },
    /// Made and read by the agent itself.
    Tun,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VxlanDevice {
    pub vni: u32,
    pub mac: MacAddr,
    /// The device that packets leave by.
    pub lower: Lower,
    pub local: IpAddr,
    pub port: u16,
    pub learning: bool,
    pub gbp: bool,
}

/// A device below a tunnel. Its number is which it is; its name is for people, where it is known.
#[derive(Debug, Clone, Copy)]
pub struct Lower {
    pub index: IfIndex,
    pub name: Option<IfName>,
}

impl PartialEq for Lower {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index
    }
}

impl Eq for Lower {}

impl From<IfIndex> for Lower {
    fn from(index: IfIndex) -> Self {
        Self { index, name: None }
    }
}

impl fmt::Display for Lower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => name.fmt(f),
            None => self.index.fmt(f),
        }
    }
}

impl DeviceKind {
    /// What the kernel calls it.
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
pub struct Address {
    pub device: IfName,
    pub prefix: IpNet,
}

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    pub dst: IpNet,
    /// One of IPv6 may serve IPv4, but not the other way round.
    pub gateway: Option<IpAddr>,
    pub device: IfName,
    /// The gateway is on the link although no route says so.
    pub onlink: bool,
    /// IPv4: what is reached is on the link itself.
    pub is_link_scope: bool,
    /// What the path carries, where that is less than the device takes.
    pub mtu: Option<u32>,
}

impl Route {
    /// Through a gateway that the kernel knows to be on the link.
    pub(super) fn via(dst: IpNet, gateway: IpAddr, device: IfName) -> Self {
        let (onlink, is_link_scope, mtu) = (false, false, None);
        Self { dst, gateway: Some(gateway), device, onlink, is_link_scope, mtu }
    }

    /// Through a gateway in a tunnel.
    pub(super) fn onlink(dst: IpNet, gateway: IpAddr, device: IfName) -> Self {
        Self { onlink: true, ..Self::via(dst, gateway, device) }
    }

    /// Into a device.
    pub(super) fn into_device(dst: IpNet, device: IfName, is_link_scope: bool) -> Self {
        let is_link_scope = is_link_scope && family::of(dst) == Family::V4;
        Self { dst, gateway: None, device, onlink: false, is_link_scope, mtu: None }
    }
}

/// A peer of WireGuard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireguardPeer {
    pub endpoint: SocketAddr,
    /// What it may send and is sent.
    pub allowed: BTreeSet<IpNet>,
    pub psk: Option<Psk>,
    /// In seconds.
    pub keepalive: Option<u16>,
}
