// SPDX-License-Identifier: Apache-2.0
//! One step from what is observed to what is desired. Each may be done twice, and removing what is gone
//! is success.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use kernel::{IfName, MacAddr};

use crate::backend::extension::ExtensionPeer;
use crate::desired::{
    DesiredDevice, DesiredRoute, DesiredWireguardPeer, DeviceAddress, DeviceKind, Gateway,
    VxlanDevice,
};
use crate::observed::ObservedRoute;
use kernel::wireguard::PublicKey;

/// There are four for each peer when an agent starts, so what is large and rare is behind a pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// With our mark as its alias, up, and with `accept_ra` 0.
    CreateDevice(DesiredDevice),
    ChangeDevice {
        name: IfName,
        to: DeviceChange,
    },
    RemoveDevice(IfName),
    AddAddress(DeviceAddress),
    RemoveAddress(DeviceAddress),
    SetNeighbour {
        device: IfName,
        ip: IpAddr,
        mac: MacAddr,
    },
    RemoveNeighbour {
        device: IfName,
        ip: IpAddr,
    },
    /// In place of where the address was.
    SetForwarding {
        device: IfName,
        mac: MacAddr,
        dst: IpAddr,
    },
    RemoveForwarding {
        device: IfName,
        mac: MacAddr,
        dst: IpAddr,
    },
    AddNexthop {
        id: u32,
        gateway: Gateway,
    },
    RemoveNexthop {
        id: u32,
    },
    /// In place of another to this destination.
    SetRoute {
        route: DesiredRoute,
        nexthop: Option<u32>,
    },
    RemoveRoute(ObservedRoute),
    /// Its subnets become exactly these. The endpoint is left alone where the peer may have roamed.
    SetPeer {
        device: IfName,
        key: PublicKey,
        peer: Box<DesiredWireguardPeer>,
        keeps_endpoint: bool,
    },
    RemovePeer {
        device: IfName,
        key: PublicKey,
    },
    CallAdded(ExtensionPeer),
    CallRemoved(ExtensionPeer),
}

/// What can be changed of a device that stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChange {
    /// The owner as its alias.
    Owner,
    Mtu(u32),
    /// The kernel forgets the device's neighbours at that.
    Mac(MacAddr),
    /// Lower device, local address, learning.
    Vxlan(VxlanDevice),
    Wireguard {
        public_key: PublicKey,
        listen_port: u16,
    },
    Ipip {
        local: std::net::Ipv4Addr,
    },
    Up,
}

/// Something of others that is in the way, and stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    #[error(
        "device {name} is a {observed} that is not ours; a {desired} of that name is needed: rename or remove it"
    )]
    Device { name: IfName, observed: String, desired: &'static str },
    #[error("a route to {dst} of protocol {protocol} is in the way: remove it")]
    Route { dst: IpNet, protocol: u8 },
}

impl Conflict {
    /// Whether nothing of the network can be on a device for it.
    pub fn is_device(&self) -> bool {
        matches!(self, Self::Device { .. })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateDevice(device) => write!(f, "create device {}", Shown(device)),
            Self::ChangeDevice { name, to } => write!(f, "change device {name}: {to}"),
            Self::RemoveDevice(name) => write!(f, "remove device {name}"),
            Self::AddAddress(DeviceAddress { device, prefix }) => {
                write!(f, "add address {prefix} dev {device}")
            }
            Self::RemoveAddress(DeviceAddress { device, prefix }) => {
                write!(f, "remove address {prefix} dev {device}")
            }
            Self::SetNeighbour { device, ip, mac } => {
                write!(f, "set neighbour {ip} lladdr {mac} dev {device}")
            }
            Self::RemoveNeighbour { device, ip } => write!(f, "remove neighbour {ip} dev {device}"),
            Self::SetForwarding { device, mac, dst } => {
                write!(f, "set forwarding {mac} dst {dst} dev {device}")
            }
            Self::RemoveForwarding { device, mac, dst } => {
                write!(f, "remove forwarding {mac} dst {dst} dev {device}")
            }
            Self::AddNexthop { id, gateway } => write!(f, "add nexthop {id} {gateway}"),
            Self::RemoveNexthop { id } => write!(f, "remove nexthop {id}"),
            Self::SetRoute { route, nexthop: None } => write!(f, "set route {route}"),
            Self::SetRoute { route, nexthop: Some(id) } => write!(f, "set route {route} nhid {id}"),
            Self::RemoveRoute(observed) => write!(f, "remove route {}", observed.route),
            Self::SetPeer { device, key, peer, .. } => {
                let allowed: Vec<String> = peer.allowed.iter().map(IpNet::to_string).collect();
                let (endpoint, allowed) = (peer.endpoint, allowed.join(","));
                write!(f, "set peer {key} endpoint {endpoint} allowed {allowed} dev {device}")
            }
            Self::RemovePeer { device, key } => write!(f, "remove peer {key} dev {device}"),
            Self::CallAdded(peer) => write!(f, "call SubnetAddCommand for {}", peer.subnet),
            Self::CallRemoved(peer) => write!(f, "call SubnetRemoveCommand for {}", peer.subnet),
        }
    }
}

impl fmt::Display for DeviceChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner => f.write_str("mark it as ours"),
            Self::Mtu(mtu) => write!(f, "mtu {mtu}"),
            Self::Mac(mac) => write!(f, "address {mac}"),
            Self::Vxlan(vxlan) => {
                let VxlanDevice { local, lower, learning, .. } = vxlan;
                write!(f, "local {local} dev {lower} learning {learning}")
            }
            Self::Wireguard { public_key, listen_port } => {
                write!(f, "key {public_key} port {listen_port}")
            }
            Self::Ipip { local } => write!(f, "local {local}"),
            Self::Up => f.write_str("up"),
        }
    }
}

impl fmt::Display for DesiredRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dst)?;
        if let Some(gateway) = self.gateway {
            let is_other = gateway.is_ipv4() != self.dst.addr().is_ipv4();
            write!(f, " via {}{gateway}", if is_other { "inet6 " } else { "" })?;
        }
        write!(f, " dev {}", self.device)?;
        f.write_str(if self.is_link_scope { " scope link" } else { "" })?;
        f.write_str(if self.onlink { " onlink" } else { "" })
    }
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let onlink = if self.onlink { " onlink" } else { "" };
        write!(f, "via {} dev {}{onlink}", self.address, self.device)
    }
}

struct Shown<'a>(&'a DesiredDevice);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DesiredDevice { name, mtu, kind } = self.0;
        write!(f, "{name} type {} mtu {mtu}", kind.name())?;
        match kind {
            DeviceKind::Vxlan(VxlanDevice { vni, mac, lower, local, port, learning, gbp }) => {
                write!(f, " id {vni} address {mac} local {local} dev {lower} dstport {port}")?;
                f.write_str(if *learning { "" } else { " nolearning" })?;
                f.write_str(if *gbp { " gbp" } else { "" })
            }
            DeviceKind::Wireguard { public_key, listen_port } => {
                write!(f, " key {public_key} port {listen_port}")
            }
            DeviceKind::Ipip { local } => write!(f, " local {local}"),
            DeviceKind::Tun => Ok(()),
        }
    }
}
