// SPDX-License-Identifier: Apache-2.0
//! Turns the leases of all nodes into the desired state of this node's kernel.
//!
//! A peer that cannot be served is rejected with a reason and does not affect the others. If subnets
//! overlap, all nodes serve the older one, whatever the order in which they learn of them.

mod any_network;
mod claims;
mod network;
mod previous;
mod rejected;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use kernel::{Family, IfIndex, IfName};

pub use self::any_network::AnyNetwork;
use self::claims::Claims;
pub use self::network::{Network, PeerChange, PlanChange, PreviousBackendState};
use self::previous::NodeBackends;
pub use self::previous::{PreviousBackend, are_distinguishable};
pub use self::rejected::{RejectReason, RejectedPeer};
use crate::backend::{Backend, extension, host_gw, ipip, udp, vxlan, wireguard};
use crate::cidr::{self, Addresses};
use crate::desired::{DesiredRoute, DesiredState};
use crate::lease::Lease;
use crate::netconf::NetConf;

/// This node.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    pub conf: &'a NetConf,
    /// The lease of this node. The devices match the data published in it.
    pub lease: &'a Lease,
    pub underlay: &'a Underlay,
}

/// The network that connects the nodes, as this node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underlay {
    pub name: IfName,
    pub index: IfIndex,
    pub mtu: u32,
    /// Addresses of the interface. A node behind NAT publishes others.
    pub addresses: Addresses,
    /// Public addresses of peers that are on a link of this node, with that link. The agent looks them
    /// up again when routes change.
    pub on_link: HashMap<IpAddr, IfName>,
}

/// A node other than this one.
#[derive(Debug, Clone, Copy)]
pub struct Peer<'a> {
    /// Key in the store, or name of the Kubernetes node.
    pub name: &'a str,
    /// Age of the lease as a number that is the same on all nodes, such as the store revision that
    /// created the key.
    pub created: u64,
    pub lease: &'a Lease,
}

/// Result of planning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub desired: DesiredState,
    /// Largest packet that pods can send to any peer.
    pub pod_mtu: u32,
    pub rejected: Vec<RejectedPeer>,
}

/// Reason why this node cannot join the network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the interface has no {} address", cidr::name(*.0))]
    NoUnderlay(Family),
    #[error("no tunnel of this node can carry its subnet {0}")]
    NoTunnel(IpNet),
    #[error("this node's lease has backend {published:?}, and the configuration has {backend}")]
    OwnData { published: String, backend: &'static str },
    #[error("backend {backend} carries IPv4 only, and the network has no IPv4")]
    Ipv4Only { backend: &'static str },
    #[error("MTU {underlay} of {name} leaves {left} for pods; at least {least} is needed")]
    Mtu { name: IfName, underlay: u32, left: i64, least: u32 },
    #[error("the network {network} contains {address}, which is this node's own")]
    Overlap { network: IpNet, address: IpAddr },
}

/// Plans for a node and all its peers.
pub fn plan(node: &Node<'_>, peers: &[Peer<'_>]) -> Result<Plan, Error> {
    check_networks(node.conf, node.underlay.addresses)?;
    let base = devices(node)?;
    Ok(add_peers(NodeBackends::new(*node), base, peers, &mut Claims::new(node.subnets())))
}

/// Adds all peers to the base state, in an order that is the same on all nodes.
fn add_peers(
    node: NodeBackends<'_>,
    base: DesiredState,
    peers: &[Peer<'_>],
    claims: &mut Claims,
) -> Plan {
    let mut desired = base;
    let mut sorted: Vec<&Peer<'_>> = peers.iter().collect();
    sorted.sort_by_key(|peer| (peer.created, peer.name, peer.lease.subnets));
    let mut rejected = Vec::new();
    for peer in sorted {
        rejected.extend(add_peer(node, peer, claims, &mut desired));
    }
    let pod_mtu = desired.devices.values().map(|device| device.mtu).min();
    Plan { desired, pod_mtu: pod_mtu.unwrap_or(node.current.underlay.mtu), rejected }
}

/// Returns the desired state without peers: devices, their addresses, and routes to the whole network.
fn devices(node: &Node<'_>) -> Result<DesiredState, Error> {
    match &node.conf.backend {
        Backend::Vxlan(conf) => vxlan::devices(node, conf),
        Backend::Wireguard(conf) => wireguard::devices(node, conf),
        Backend::Ipip(_) => ipip::devices(node),
        Backend::Udp(_) => udp::devices(node),
        Backend::HostGw | Backend::Alloc | Backend::Extension(_) => Ok(DesiredState::default()),
    }
}

/// Adds one peer to the desired state. Returns its subnets that cannot be served.
fn add_peer(
    node: NodeBackends<'_>,
    peer: &Peer<'_>,
    claims: &mut Claims,
    desired: &mut DesiredState,
) -> Vec<RejectedPeer> {
    let previous = node.previous_for(&peer.lease.attributes.data);
    let node = &previous.map_or(node.current, |previous| previous.node(node.current.underlay));
    let rejection = |subnet, reason| RejectedPeer { peer: peer.name.to_owned(), subnet, reason };
    if let Err(reason) = check_peer(node, peer) {
        return vec![rejection(None, reason)];
    }
    let mut rejected = Vec::new();
    for subnet in peer.lease.subnets.iter() {
        // The network does not have this family.
        let Some(network) = node.conf.networks.get(cidr::of(subnet)) else { continue };
        let served = match network.contains(&subnet) {
            false => Err(RejectReason::OutsideNetwork(network)),
            true => claims
                .check(subnet)
                .and_then(|()| add_subnet(node, peer, subnet, desired))
                .map(|()| claims.add(subnet, peer.name)),
        };
        if let (Ok(()), Some(route)) = (&served, previous.and_then(|one| one.route(subnet))) {
            desired.routes.entry(subnet).or_insert(route);
        }
        if let Err(reason) = served {
            rejected.push(rejection(Some(subnet), reason));
        }
    }
    rejected
}

fn add_subnet(
    node: &Node<'_>,
    peer: &Peer<'_>,
    subnet: IpNet,
    desired: &mut DesiredState,
) -> Result<(), RejectReason> {
    match &node.conf.backend {
        Backend::Vxlan(conf) => vxlan::add_subnet(node, conf, peer, subnet, desired),
        Backend::HostGw => host_gw::add_subnet(node, peer, subnet, desired),
        Backend::Wireguard(conf) => wireguard::add_subnet(node, conf, peer, subnet, desired),
        Backend::Ipip(conf) => ipip::add_subnet(node, conf, peer, subnet, desired),
        Backend::Udp(conf) => udp::add_subnet(conf, peer, subnet, desired),
        Backend::Extension(_) => {
            extension::add_subnet(peer, subnet, desired);
            Ok(())
        }
        Backend::Alloc => Ok(()),
    }
}

/// Checks that the network does not contain the node's own addresses. Otherwise the network's routes would
/// lead the packets of the tunnel into the tunnel.
pub fn check_networks(conf: &NetConf, addresses: Addresses) -> Result<(), Error> {
    for network in conf.networks.iter() {
        if let Some(address) = addresses.iter().find(|address| network.contains(address)) {
            return Err(Error::Overlap { network, address });
        }
    }
    Ok(())
}

fn check_peer(node: &Node<'_>, peer: &Peer<'_>) -> Result<(), RejectReason> {
    let data = &peer.lease.attributes.data;
    let ours = node.conf.backend.name();
    if !data.is_compatible_with(&node.conf.backend) {
        return Err(peer.other_backend(ours));
    }
    if let Some(public) = peer.lease.attributes.public.iter().find(|one| !is_node_address(*one)) {
        return Err(RejectReason::NotANodeAddress(public));
    }
    // A lease with this node's address is a stale lease of this node. WireGuard is the exception:
    // nodes behind one NAT share an address, and their keys tell them apart.
    if matches!(node.conf.backend, Backend::Wireguard(_)) {
        return Ok(());
    }
    let own = node.lease.attributes.public;
    match peer.lease.attributes.public.iter().find(|public| own.iter().any(|ours| ours == *public))
    {
        Some(public) => Err(RejectReason::OwnAddress(public)),
        None => Ok(()),
    }
}

fn is_node_address(address: IpAddr) -> bool {
    let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(address.is_loopback() || address.is_multicast() || is_broadcast)
}

impl Node<'_> {
    /// Returns this node's subnets of the families that the network has.
    pub(crate) fn subnets(&self) -> impl Iterator<Item = IpNet> {
        let networks = self.conf.networks;
        let subnets = self.lease.subnets;
        Family::ALL
            .into_iter()
            .filter(move |family| networks.get(*family).is_some())
            .filter_map(move |family| subnets.get(family))
    }
}

impl Peer<'_> {
    pub(crate) fn other_backend(&self, ours: &'static str) -> RejectReason {
        RejectReason::Backend { theirs: self.lease.attributes.data.kind().to_owned(), ours }
    }
}

/// Returns a route without a tunnel, if the peer is on a link of this node. An IPv6 gateway can serve
/// IPv4 too.
pub(crate) fn direct_route(
    node: &Node<'_>,
    peer: &Peer<'_>,
    subnet: IpNet,
) -> Option<DesiredRoute> {
    let gateways: &[Family] = match cidr::of(subnet) {
        Family::V4 => &Family::ALL,
        Family::V6 => &[Family::V6],
    };
    gateways.iter().find_map(|family| {
        let gateway = peer.lease.attributes.public.get(*family)?;
        let device = node.underlay.on_link.get(&gateway)?;
        Some(DesiredRoute::via(subnet, gateway, *device))
    })
}

/// Returns the MTU of a tunnel device. `configured` is the MTU of the underlay from the configuration. The
/// MTU of the interface limits it, because the kernel would silently do the same.
pub(crate) fn tunnel_mtu(
    node: &Node<'_>,
    configured: Option<u32>,
    overhead: u32,
) -> Result<u32, Error> {
    let underlay = configured.unwrap_or(u32::MAX).min(node.underlay.mtu);
    // The minimum MTU of IPv6 is 1280, that of IPv4 is 68.
    let least = if node.conf.networks.v6().is_some() { 1280 } else { 68 };
    let left = i64::from(underlay) - i64::from(overhead);
    match u32::try_from(left) {
        Ok(mtu) if mtu >= least => Ok(mtu),
        _ => Err(Error::Mtu { name: node.underlay.name, underlay, left, least }),
    }
}

#[cfg(test)]
mod tests;
