// SPDX-License-Identifier: Apache-2.0
//! One step from the observed to the desired state. Every change may be applied twice: setting what
//! exists and removing what is gone succeed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use kernel::wireguard::PublicKey;
use kernel::{IfName, MacAddr};

use crate::backend::extension::ExtensionPeer;
use crate::desired::{
    DesiredDevice, DesiredRoute, DesiredWireguardPeer, DeviceAddress, DeviceKind, Gateway,
    RouteKind, VxlanDevice,
};
use crate::observed::ObservedRoute;

/// A change of kernel state. A starting agent holds four per peer, so large and rare values are boxed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Creates the device with the owner as alias and `accept_ra` 0, and brings it up.
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
    /// Replaces an entry for the same MAC address.
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
    /// Replaces a route with the same destination and metric.
    SetRoute {
        route: DesiredRoute,
        nexthop: Option<u32>,
    },
    RemoveRoute(ObservedRoute),
    /// Replaces the allowed subnets of a WireGuard peer. `keeps_endpoint` leaves the endpoint alone
    /// because the peer may have roamed.
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

/// A change that the kernel can make to an existing device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChange {
    /// Sets the owner as alias.
    Owner,
    Mtu(u32),
    /// The kernel deletes the device's neighbour entries at this change.
    Mac(MacAddr),
    /// Sets lower device, local address and learning.
    Vxlan(VxlanDevice),
    Wireguard {
        public_key: PublicKey,
        listen_port: u16,
    },
    Ipip {
        local: Ipv4Addr,
    },
    Up,
}

/// A foreign object in place of a desired one. The agent reports it and leaves it alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    #[error(
        "device {name} ({observed}) is not managed by podwire but a {desired} of that name is required: rename or remove it"
    )]
    Device { name: IfName, observed: String, desired: &'static str },
    #[error("conflicting route to {dst} (protocol {protocol}): remove it")]
    Route { dst: IpNet, protocol: u8 },
}

impl Conflict {
    /// Returns whether a device is missing because of the conflict, and with it everything on that
    /// device.
    pub fn is_device(&self) -> bool {
        matches!(self, Self::Device { .. })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateDevice(device) => write!(f, "create device {}", DeviceDisplay(device)),
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
            Self::Owner => f.write_str("set owner"),
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
        let RouteKind::Unicast(hop) = &self.kind else {
            return write!(f, "blackhole {}", self.dst);
        };
        write!(f, "{}", self.dst)?;
        if let Some(gateway) = hop.gateway {
            let is_other_family = gateway.is_ipv4() != self.dst.addr().is_ipv4();
            write!(f, " via {}{gateway}", if is_other_family { "inet6 " } else { "" })?;
        }
        write!(f, " dev {}", hop.device)?;
        f.write_str(if hop.is_link_scope { " scope link" } else { "" })?;
        f.write_str(if hop.onlink { " onlink" } else { "" })
    }
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let onlink = if self.onlink { " onlink" } else { "" };
        write!(f, "via {} dev {}{onlink}", self.address, self.device)
    }
}

struct DeviceDisplay<'a>(&'a DesiredDevice);

impl fmt::Display for DeviceDisplay<'_> {
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
