// SPDX-License-Identifier: Apache-2.0
//! Routed pods: each pod has an address of its own, and nodes own blocks of addresses that they take
//! from pools. The plan routes the blocks of other nodes, and single addresses that a node borrowed
//! from another node's block, by the encapsulation of their pool.
//!
//! Unlike a subnet, a block may contain addresses of other nodes: the longest prefix wins.

mod devices;
mod path;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use kernel::{Family, IfName, MacAddr};

pub(crate) use self::devices::known_devices;
pub use self::devices::{Tunnel, leads_out_of_host, tunnel_mac};
pub use self::path::NodePath;
use crate::cidr::{self, Addresses, PerFamily};
use crate::desired::{DesiredRoute, DesiredState};
use crate::plan::{Error, PeerChange, Plan, PlanChange, RejectReason, RejectedPeer, Underlay};

/// How packets between nodes are encapsulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encapsulation {
    /// Plain routes. They work only between nodes on one link.
    #[default]
    None,
    Vxlan(When),
    /// IPv4 in IPv4.
    Ipip(When),
}

/// Which packets are encapsulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Always,
    /// Only packets to nodes that are not on a link of this node.
    CrossSubnet,
}

/// A range of addresses with one encapsulation. Pools do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutedPool {
    pub cidr: IpNet,
    pub encapsulation: Encapsulation,
}

/// What a node publishes about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RoutedNode {
    /// Addresses by which other nodes reach the node.
    pub addresses: Addresses,
    /// The end of its VXLAN tunnel of each family.
    pub vxlan: PerFamily<VxlanEnd>,
    /// Address of its IPIP tunnel.
    pub ipip: Option<std::net::Ipv4Addr>,
}

/// One node's end of a VXLAN tunnel. IPv4 packets use a tunnel over IPv4, IPv6 packets one over IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VxlanEnd {
    pub mac: MacAddr,
    /// Address of the device, which is the gateway for other nodes.
    pub address: IpAddr,
}

/// The network as one node sees it. Adding, changing or removing a block costs the same whatever the
/// number of blocks.
#[derive(Debug)]
pub struct RoutedNetwork {
    name: String,
    own: RoutedNode,
    underlay: Underlay,
    pools: Vec<RoutedPool>,
    nodes: BTreeMap<String, RoutedNode>,
    /// Blocks and borrowed addresses, with the name of their node.
    routes: BTreeMap<IpNet, String>,
    /// The same by node.
    by_node: BTreeMap<String, BTreeSet<IpNet>>,
    rejected: BTreeMap<(String, Option<IpNet>), RejectReason>,
    /// MTU of the paths that carry less than pods send.
    path_mtus: BTreeMap<(String, Family), u32>,
    /// Number of nodes that publish each address.
    public_addresses: HashMap<IpAddr, usize>,
    plan: Plan,
}

/// Everything that a [`RoutedNetwork`] starts with.
#[derive(Debug, Clone, Default)]
pub struct RoutedState {
    pub pools: Vec<RoutedPool>,
    /// Other nodes by name.
    pub nodes: BTreeMap<String, RoutedNode>,
    /// Blocks and borrowed addresses of all nodes, with the name of their node.
    pub routes: BTreeMap<IpNet, String>,
}

impl RoutedNetwork {
    /// Plans for the node `name`, which publishes `own`.
    pub fn new(
        name: String,
        own: RoutedNode,
        underlay: Underlay,
        state: RoutedState,
    ) -> Result<Self, Error> {
        let RoutedState { pools, nodes, routes } = state;
        for pool in &pools {
            if let Some(address) = underlay.addresses.iter().find(|one| pool.cidr.contains(one)) {
                return Err(Error::Overlap { network: pool.cidr, address });
            }
        }
        let mut by_node: BTreeMap<String, BTreeSet<IpNet>> = BTreeMap::new();
        for (dst, node) in &routes {
            by_node.entry(node.clone()).or_default().insert(*dst);
        }
        let mut public_addresses = HashMap::new();
        for address in nodes.values().flat_map(|node| node.addresses.iter()) {
            *public_addresses.entry(address).or_insert(0) += 1;
        }
        let plan =
            Plan { desired: DesiredState::default(), pod_mtu: underlay.mtu, rejected: Vec::new() };
        let rejected = BTreeMap::new();
        let mut network = Self {
            name,
            own,
            underlay,
            pools,
            nodes,
            routes,
            by_node,
            rejected,
            path_mtus: BTreeMap::new(),
            public_addresses,
            plan,
        };
        network.replan()?;
        Ok(network)
    }

    /// Returns the current plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the underlay that the plan is based on.
    pub fn underlay(&self) -> &Underlay {
        &self.underlay
    }

    /// Returns the pools.
    pub fn pools(&self) -> &[RoutedPool] {
        &self.pools
    }

    /// Returns the other nodes by name.
    pub fn nodes(&self) -> &BTreeMap<String, RoutedNode> {
        &self.nodes
    }

    /// Returns the blocks and borrowed addresses of a node.
    pub fn routes_of(&self, node: &str) -> impl Iterator<Item = IpNet> {
        self.by_node.get(node).into_iter().flatten().copied()
    }

    /// Returns whether the plan depends on [`Underlay::on_link`].
    pub fn needs_on_link(&self) -> bool {
        let is_tunnel_only = |pool: &RoutedPool| {
            matches!(
                pool.encapsulation,
                Encapsulation::Vxlan(When::Always) | Encapsulation::Ipip(When::Always)
            )
        };
        !self.pools.iter().all(is_tunnel_only)
    }

    /// Returns the public addresses of all other nodes.
    pub fn public_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.public_addresses.keys().copied()
    }

    /// Returns whether another node publishes this address.
    pub fn has_public_address(&self, address: IpAddr) -> bool {
        self.public_addresses.contains_key(&address)
    }

    /// Records the link that an address of a new node is on, before the node is added. Addresses of
    /// known nodes are left alone.
    pub fn learn_on_link(&mut self, address: IpAddr, link: Option<IfName>) {
        match link {
            _ if self.has_public_address(address) => {}
            Some(link) => drop(self.underlay.on_link.insert(address, link)),
            None => drop(self.underlay.on_link.remove(&address)),
        }
    }

    /// Sets the links of all nodes' addresses. Returns whether anything has changed.
    pub fn set_on_link(&mut self, on_link: HashMap<IpAddr, IfName>) -> bool {
        if self.underlay.on_link == on_link {
            return false;
        }
        self.underlay.on_link = on_link;
        // The devices are the same as before, and these could be planned.
        let _ = self.replan();
        true
    }

    /// Adds or changes another node, or removes it. Its routes stay in the plan's input.
    pub fn set_node(&mut self, name: &str, node: Option<RoutedNode>) -> PlanChange {
        if name == self.name || self.nodes.get(name) == node.as_ref() {
            return PlanChange::None;
        }
        let is_shared = self.rejected.values().any(RejectReason::depends_on_another_peer);
        let before = self.take_node_part(name);
        self.forget_path_mtus(name);
        if let Some(old) = self.nodes.remove(name) {
            for address in old.addresses.iter() {
                self.forget_public_address(address);
            }
        }
        if let Some(node) = node {
            for address in node.addresses.iter() {
                *self.public_addresses.entry(address).or_insert(0) += 1;
            }
            self.nodes.insert(name.to_owned(), node);
        }
        if is_shared {
            // Another node may be served now. The devices are the same as before.
            let _ = self.replan();
            return PlanChange::Full;
        }
        let after = self.add_node_part(name);
        self.finish(before, after)
    }

    /// Gives a block or a borrowed address to a node, or removes it.
    pub fn set_route(&mut self, dst: IpNet, node: Option<&str>) -> PlanChange {
        if self.routes.get(&dst).map(String::as_str) == node {
            return PlanChange::None;
        }
        let before = self.take_route_part(dst);
        if let Some(old) = self.routes.remove(&dst)
            && let Some(all) = self.by_node.get_mut(&old)
        {
            all.remove(&dst);
            if all.is_empty() {
                self.by_node.remove(&old);
            }
        }
        if let Some(node) = node {
            self.routes.insert(dst, node.to_owned());
            self.by_node.entry(node.to_owned()).or_default().insert(dst);
        }
        let after = self.add_route_part(dst);
        self.finish(before, after)
    }

    /// Plans everything again.
    fn replan(&mut self) -> Result<(), Error> {
        let tunnels = self.own_tunnels();
        let desired = devices::desired(&self.own, &self.underlay, &tunnels)?;
        let pod_mtu = desired.devices.values().map(|device| device.mtu).min();
        let pod_mtu = pod_mtu.unwrap_or(self.underlay.mtu).min(self.underlay.mtu);
        self.plan = Plan { desired, pod_mtu, rejected: Vec::new() };
        self.rejected.clear();
        for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
            self.add_end(&name);
        }
        for dst in self.routes.keys().copied().collect::<Vec<_>>() {
            self.add_route_part(dst);
        }
        self.list_rejected();
        Ok(())
    }

    /// Returns the tunnels that the pools need on this node.
    fn own_tunnels(&self) -> BTreeSet<Tunnel> {
        self.pools.iter().filter_map(Tunnel::of).collect()
    }

    fn forget_public_address(&mut self, address: IpAddr) {
        if let Some(count) = self.public_addresses.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.public_addresses.remove(&address);
            }
        }
    }

    fn finish(&mut self, before: DesiredState, after: DesiredState) -> PlanChange {
        self.list_rejected();
        match before == after {
            true => PlanChange::None,
            false => PlanChange::Peer(Box::new(PeerChange { before, after })),
        }
    }

    fn list_rejected(&mut self) {
        let rejected = self.rejected.iter().map(|((peer, subnet), reason)| RejectedPeer {
            peer: peer.clone(),
            subnet: *subnet,
            reason: reason.clone(),
        });
        self.plan.rejected = rejected.collect();
    }

    /// Removes the ends of a node's tunnels and its routes from the plan, and returns them.
    fn take_node_part(&mut self, name: &str) -> DesiredState {
        let mut part = self.end_of(name).unwrap_or_default();
        self.rejected.remove(&(name.to_owned(), None));
        self.plan.desired.subtract(&part);
        for dst in self.routes_of(name).collect::<Vec<_>>() {
            part.add(self.take_route_part(dst));
        }
        part
    }

    fn add_node_part(&mut self, name: &str) -> DesiredState {
        let mut part = self.add_end(name);
        for dst in self.routes_of(name).collect::<Vec<_>>() {
            part.add(self.add_route_part(dst));
        }
        part
    }

    /// Adds the ends of a node's tunnels to the plan and returns them.
    fn add_end(&mut self, name: &str) -> DesiredState {
        match self.end_of(name) {
            Ok(part) => {
                self.plan.desired.add(part.clone());
                part
            }
            Err(reason) => {
                self.rejected.insert((name.to_owned(), None), reason);
                DesiredState::default()
            }
        }
    }

    /// Returns neighbour and forwarding entries for the ends of a node's tunnels.
    fn end_of(&self, name: &str) -> Result<DesiredState, RejectReason> {
        let Some(node) = self.nodes.get(name) else { return Ok(DesiredState::default()) };
        self.check_node(node)?;
        let mut part = DesiredState::default();
        for family in Family::ALL {
            let own = self.own.vxlan.get(family);
            let device = devices::vxlan_name(family);
            let (Some(own), Some(end), Some(public), true) = (
                own,
                node.vxlan.get(family),
                node.addresses.get(family),
                self.plan.desired.devices.contains_key(&device),
            ) else {
                continue;
            };
            if own.mac == end.mac {
                return Err(RejectReason::OwnMac(end.mac));
            }
            let other = self.plan.desired.forwarding.get(&(device, end.mac));
            if other.is_some_and(|other| *other != public) {
                return Err(RejectReason::MacTaken(end.mac));
            }
            part.neighbours.insert((device, end.address), end.mac);
            part.forwarding.insert((device, end.mac), public);
        }
        Ok(part)
    }

    fn check_node(&self, node: &RoutedNode) -> Result<(), RejectReason> {
        let own = self.own.addresses;
        let is_own = |address: &IpAddr| own.iter().any(|ours| ours == *address);
        node.addresses.iter().find(is_own).map_or(Ok(()), |own| Err(RejectReason::OwnAddress(own)))
    }

    fn take_route_part(&mut self, dst: IpNet) -> DesiredState {
        let mut part = DesiredState::default();
        if let Some(name) = self.routes.get(&dst) {
            self.rejected.remove(&(name.clone(), Some(dst)));
        }
        if let Some(route) = self.plan.desired.routes.remove(&dst) {
            part.routes.insert(dst, route);
        }
        part
    }

    /// Adds the route to a block or a borrowed address to the plan and returns it.
    fn add_route_part(&mut self, dst: IpNet) -> DesiredState {
        let mut part = DesiredState::default();
        let Some(name) = self.routes.get(&dst) else { return part };
        match self.route(dst, name) {
            Ok(Some(route)) => {
                let route = self.with_path_mtu(route, name);
                self.plan.desired.routes.insert(dst, route);
                part.routes.insert(dst, route);
            }
            Ok(None) => {}
            Err(reason) => drop(self.rejected.insert((name.clone(), Some(dst)), reason)),
        }
        part
    }

    /// Returns the route to a block or a borrowed address. This node's own blocks have blackhole routes,
    /// so that packets to unused addresses do not loop; the routes to its pods are more specific.
    fn route(&self, dst: IpNet, name: &str) -> Result<Option<DesiredRoute>, RejectReason> {
        if name == self.name {
            // An address that this node borrowed belongs to a pod here, whose plugin has set the route.
            let is_block = dst.prefix_len() < dst.max_prefix_len();
            return Ok(is_block.then(|| DesiredRoute::blackhole(dst)));
        }
        let pool = self.pools.iter().find(|pool| pool.cidr.contains(&dst));
        let pool = pool.ok_or(RejectReason::OutsidePools)?;
        let node = self.nodes.get(name).ok_or(RejectReason::UnknownNode)?;
        self.check_node(node)?;
        let direct = || self.direct_route(dst, node);
        match pool.encapsulation {
            Encapsulation::None => {
                let public = node.addresses.get(cidr::of(dst));
                let missing =
                    || public.map_or(RejectReason::NoCommonUnderlay, RejectReason::NotOnLink);
                direct().ok_or_else(missing).map(Some)
            }
            Encapsulation::Vxlan(when) => {
                if when == When::CrossSubnet
                    && let Some(route) = direct()
                {
                    return Ok(Some(route));
                }
                let family = cidr::of(dst);
                let end = node.vxlan.get(family);
                let end = end.ok_or(RejectReason::NoTunnelAddress { encapsulation: "VXLAN" })?;
                if node.addresses.get(family).is_none() || self.own.addresses.get(family).is_none()
                {
                    return Err(RejectReason::NoCommonUnderlay);
                }
                if self.own.vxlan.get(family).is_none() {
                    return Err(RejectReason::NoOwnTunnelAddress { encapsulation: "VXLAN" });
                }
                Ok(Some(DesiredRoute::onlink(dst, end.address, devices::vxlan_name(family))))
            }
            Encapsulation::Ipip(when) => {
                if cidr::of(dst) == Family::V6 {
                    return Err(RejectReason::Ipv4Only { backend: "IPIP" });
                }
                if when == When::CrossSubnet
                    && let Some(route) = direct()
                {
                    return Ok(Some(route));
                }
                let public =
                    node.addresses.get(Family::V4).ok_or(RejectReason::NoCommonUnderlay)?;
                Ok(Some(DesiredRoute::onlink(dst, public, devices::ipip_name())))
            }
        }
    }

    /// Returns a route without encapsulation, if the node is on a link of this node.
    fn direct_route(&self, dst: IpNet, node: &RoutedNode) -> Option<DesiredRoute> {
        let gateway = node.addresses.get(cidr::of(dst))?;
        let device = self.underlay.on_link.get(&gateway)?;
        Some(DesiredRoute::via(dst, gateway, *device))
    }
}

#[cfg(test)]
mod tests;
