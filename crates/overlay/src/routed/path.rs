// SPDX-License-Identifier: Apache-2.0
//! The paths to other nodes, which the path check probes, and the MTU of those that carry less than pods send.

use std::net::IpAddr;

use kernel::{Family, IfName};

use super::RoutedNetwork;
use crate::cidr;
use crate::desired::{DesiredRoute, DesiredState};
use crate::plan::{PlanChange, Underlay};

/// The path to the pods of another node, for one address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePath {
    /// An address of the node itself that is reached by the same path as its pods.
    pub address: IpAddr,
    /// The tunnel device; `None` for a plain route.
    pub tunnel: Option<IfName>,
}

impl RoutedNetwork {
    /// Returns the path to the pods of a node. If a node has blocks of several pools, a path through a tunnel comes
    /// first. `None` if no route leads to the node.
    pub fn path(&self, name: &str, family: Family) -> Option<NodePath> {
        let node = self.nodes.get(name)?;
        let blocks = self.routes_of(name).filter(|dst| cidr::of(*dst) == family);
        let hops = blocks
            .filter_map(|dst| self.plan.desired.routes.get(&dst).and_then(DesiredRoute::next_hop));
        let is_tunnel = |device: &IfName| self.plan.desired.devices.contains_key(device);
        let mut direct = None;
        for hop in hops {
            if is_tunnel(&hop.device) {
                let end = node.vxlan.get(family).map(|end| end.address);
                let end = match hop.device == super::devices::ipip_name() {
                    true => node.ipip.map(IpAddr::V4),
                    false => end,
                };
                return end.map(|address| NodePath { address, tunnel: Some(hop.device) });
            }
            direct = hop.gateway.map(|address| NodePath { address, tunnel: None });
        }
        direct
    }

    /// Sets the MTU of the path to a node, or `None` if the path carries all that pods send.
    pub fn set_path_mtu(&mut self, name: &str, family: Family, mtu: Option<u32>) -> PlanChange {
        let key = (name.to_owned(), family);
        if !self.nodes.contains_key(name) || self.path_mtus.get(&key).copied() == mtu {
            return PlanChange::None;
        }
        let blocks: Vec<_> = self.routes_of(name).filter(|dst| cidr::of(*dst) == family).collect();
        let (mut before, mut after) = (DesiredState::default(), DesiredState::default());
        for dst in &blocks {
            before.add(self.take_route_part(*dst));
        }
        match mtu {
            Some(mtu) => self.path_mtus.insert(key, mtu),
            None => self.path_mtus.remove(&key),
        };
        for dst in &blocks {
            after.add(self.add_route_part(*dst));
        }
        self.finish(before, after)
    }

    /// Takes over the path MTUs of an earlier plan for nodes that are the same.
    pub fn inherit_path_mtus(&mut self, before: &RoutedNetwork) {
        let ends = |network: &RoutedNetwork| {
            let Underlay { name, index, mtu, addresses, .. } = network.underlay;
            (name, index, mtu, addresses, network.pools.clone())
        };
        if ends(self) != ends(before) {
            return;
        }
        for ((name, family), mtu) in &before.path_mtus {
            if self.nodes.get(name) == before.nodes.get(name) {
                self.set_path_mtu(name, *family, Some(*mtu));
            }
        }
    }

    pub(super) fn with_path_mtu(&self, route: DesiredRoute, name: &str) -> DesiredRoute {
        let key = (name.to_owned(), cidr::of(route.dst));
        match (self.path_mtus.get(&key), route.next_hop()) {
            (Some(mtu), Some(hop)) => DesiredRoute::unicast(route.dst, hop.with_mtu(*mtu)),
            _ => route,
        }
    }

    pub(super) fn forget_path_mtus(&mut self, name: &str) {
        for family in Family::ALL {
            self.path_mtus.remove(&(name.to_owned(), family));
        }
    }
}
