// SPDX-License-Identifier: Apache-2.0
//! From the leases of all nodes to what this node's kernel should hold, one module a backend.
//!
//! A peer that cannot be served is rejected with the reason, and stops no other. Of subnets that
//! overlap, the one that was there first is served, by all nodes alike and whatever order they
//! learn of them in.

mod claims;
mod network;
mod previous;
mod rejected;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use kernel::{Family, IfIndex, IfName};

use self::claims::Claims;
pub use self::network::{Network, PeerChange, PlanChange, PreviousBackendState};
use self::previous::Ends;
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
    /// Its own: what it publishes is what it must have.
    pub lease: &'a Lease,
    pub underlay: &'a Underlay,
}

/// The network that nodes reach each other over, as this node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underlay {
    pub name: IfName,
    pub index: IfIndex,
    pub mtu: u32,
    /// Of the interface itself; a node behind NAT publishes others.
    pub addresses: Addresses,
    /// Peers' public addresses that the routes say are on a link, with that link: asked for again
    /// when routes change.
    pub on_link: HashMap<IpAddr, IfName>,
}

/// Another node.
#[derive(Debug, Clone, Copy)]
pub struct Peer<'a> {
    /// Its key in the store, or the node's name.
    pub name: &'a str,
    /// When it came, in a number that all nodes see alike, such as the revision that created the
    /// key.
    pub since: u64,
    pub lease: &'a Lease,
}

/// What follows from all leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub desired: DesiredState,
    /// What pods may send at once, whichever peer it goes to.
    pub pod_mtu: u32,
    pub rejected: Vec<RejectedPeer>,
}

/// Why this node cannot take part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the interface has no {} address", cidr::name(*.0))]
    NoUnderlay(Family),
    #[error("no tunnel of this node can carry its subnet {0}")]
    NoTunnel(IpNet),
    #[error("this node's lease is of backend {published:?}, and the configuration's is {backend}")]
    OwnData { published: String, backend: &'static str },
    #[error("backend {backend} carries IPv4 only, and the network has none")]
    Ipv4Only { backend: &'static str },
    #[error("MTU {underlay} of {name} leaves {left} for pods; at least {least} is needed")]
    Mtu { name: IfName, underlay: u32, left: i64, least: u32 },
    #[error("the network {network} contains {address}, which is this node's own")]
    Overlap { network: IpNet, address: IpAddr },
}

/// Plans.
pub fn plan(node: &Node<'_>, peers: &[Peer<'_>]) -> Result<Plan, Error> {
    check_networks(node.conf, node.underlay.addresses)?;
    let base = devices(node)?;
    Ok(fill(Ends::new(*node), base, peers, &mut Claims::new(node.subnets())))
}

/// What there is without any peer, and then all of them in an order that all nodes agree on.
fn fill(ends: Ends<'_>, base: DesiredState, peers: &[Peer<'_>], claims: &mut Claims) -> Plan {
    let mut desired = base;
    let mut sorted: Vec<&Peer<'_>> = peers.iter().collect();
    sorted.sort_by_key(|peer| (peer.since, peer.name, peer.lease.subnets));
    let mut rejected = Vec::new();
    for peer in sorted {
        rejected.extend(serve(ends, peer, claims, &mut desired));
    }
    let pod_mtu = desired.devices.values().map(|device| device.mtu).min();
    Plan { desired, pod_mtu: pod_mtu.unwrap_or(ends.now.underlay.mtu), rejected }
}

/// What there is without any peer.
fn devices(node: &Node<'_>) -> Result<DesiredState, Error> {
    match &node.conf.backend {
        Backend::Vxlan(conf) => vxlan::devices(node, conf),
        Backend::Wireguard(conf) => wireguard::devices(node, conf),
        Backend::Ipip(_) => ipip::devices(node),
        Backend::Udp(_) => udp::devices(node),
        Backend::HostGw | Backend::Alloc | Backend::Extension(_) => Ok(DesiredState::default()),
    }
}

fn serve(
    ends: Ends<'_>,
    peer: &Peer<'_>,
    claims: &mut Claims,
    desired: &mut DesiredState,
) -> Vec<RejectedPeer> {
    let previous = ends.previous_for(&peer.lease.attributes.data);
    let node = &previous.map_or(ends.now, |previous| previous.node(ends.now.underlay));
    let rejection = |subnet, reason| RejectedPeer { peer: peer.name.to_owned(), subnet, reason };
    if let Err(reason) = check_peer(node, peer) {
        return vec![rejection(None, reason)];
    }
    let mut rejected = Vec::new();
    for subnet in peer.lease.subnets.iter() {
        // A family that is switched off here is none of our business.
        let Some(network) = node.conf.networks.get(cidr::of(subnet)) else { continue };
        let served = match network.contains(&subnet) {
            false => Err(RejectReason::OutsideNetwork(network)),
            true => claims
                .check(subnet)
                .and_then(|()| carry(node, peer, subnet, desired))
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

fn carry(
    node: &Node<'_>,
    peer: &Peer<'_>,
    subnet: IpNet,
    desired: &mut DesiredState,
) -> Result<(), RejectReason> {
    match &node.conf.backend {
        Backend::Vxlan(conf) => vxlan::carry(node, conf, peer, subnet, desired),
        Backend::HostGw => host_gw::carry(node, peer, subnet, desired),
        Backend::Wireguard(conf) => wireguard::carry(node, conf, peer, subnet, desired),
        Backend::Ipip(conf) => ipip::carry(node, conf, peer, subnet, desired),
        Backend::Udp(conf) => udp::carry(conf, peer, subnet, desired),
        Backend::Extension(_) => {
            extension::carry(peer, subnet, desired);
            Ok(())
        }
        Backend::Alloc => Ok(()),
    }
}

/// A network that contains the addresses of nodes would route what holds it up into itself.
pub fn check_networks(conf: &NetConf, addresses: Addresses) -> Result<(), Error> {
    for network in conf.networks.iter() {
        let own = addresses.iter();
        if let Some(address) = own.into_iter().find(|address| network.contains(address)) {
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
    // A lease that this node has left behind. Nodes behind one NAT share an address, and only
    // WireGuard can tell them apart.
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
    let is_everybody = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(address.is_loopback() || address.is_multicast() || is_everybody)
}

impl Node<'_> {
    /// Its own subnets, of families that are switched on.
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

/// A route without a tunnel to a peer on a link. A gateway of IPv6 serves IPv4, too.
pub(crate) fn direct(node: &Node<'_>, peer: &Peer<'_>, subnet: IpNet) -> Option<DesiredRoute> {
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

/// What fits into a tunnel. The kernel would cut down more than the interface has, silently.
pub(crate) fn tunnel_mtu(
    node: &Node<'_>,
    desired: Option<u32>,
    overhead: u32,
) -> Result<u32, Error> {
    let underlay = desired.unwrap_or(u32::MAX).min(node.underlay.mtu);
    // IPv6 works with 1280 and more, IPv4 with 68.
    let least = if node.conf.networks.v6().is_some() { 1280 } else { 68 };
    let left = i64::from(underlay) - i64::from(overhead);
    match u32::try_from(left) {
        Ok(mtu) if mtu >= least => Ok(mtu),
        _ => Err(Error::Mtu { name: node.underlay.name, underlay, left, least }),
    }
}

#[cfg(test)]
mod tests;
