// SPDX-License-Identifier: Apache-2.0
//! The network in either mode: a subnet per node, or routed pods.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use kernel::{Family, IfName};

use crate::ownership::Ownership;
use crate::plan::{Network, Plan, Underlay};
use crate::routed::{RoutedNetwork, leads_out_of_host};

/// The network as this node sees it.
#[derive(Debug)]
pub enum AnyNetwork {
    /// Each node has a subnet.
    Subnets(Box<Network>),
    /// Each node has blocks of addresses.
    Routed(Box<RoutedNetwork>),
}

impl AnyNetwork {
    /// Returns the network if each node has a subnet.
    pub fn subnets(&self) -> Option<&Network> {
        match self {
            Self::Subnets(network) => Some(network),
            Self::Routed(_) => None,
        }
    }

    /// Returns the current plan.
    pub fn plan(&self) -> &Plan {
        match self {
            Self::Subnets(network) => network.plan(),
            Self::Routed(network) => network.plan(),
        }
    }

    /// Returns the underlay that the plan is based on.
    pub fn underlay(&self) -> &Underlay {
        match self {
            Self::Subnets(network) => network.underlay(),
            Self::Routed(network) => network.underlay(),
        }
    }

    /// Returns the address ranges of all pods.
    pub fn prefixes(&self) -> Vec<IpNet> {
        match self {
            Self::Subnets(network) => network.conf().networks.iter().collect(),
            Self::Routed(network) => network.pools().iter().map(|pool| pool.cidr).collect(),
        }
    }

    /// Returns whether pods have addresses of this family.
    pub fn has_family(&self, family: Family) -> bool {
        self.prefixes().iter().any(|prefix| Family::of(prefix.addr()) == family)
    }

    /// Returns the rules of ownership for this network.
    pub fn ownership(&self, owner: &str) -> Ownership {
        match self {
            Self::Subnets(network) => Ownership::new(network.conf(), owner),
            Self::Routed(_) => Ownership::for_routed(owner, self.prefixes()),
        }
    }

    /// Returns whether the plan depends on [`Underlay::on_link`].
    pub fn needs_on_link(&self) -> bool {
        match self {
            Self::Subnets(network) => network.needs_on_link(),
            Self::Routed(network) => network.needs_on_link(),
        }
    }

    /// Returns whether the MTU of pods depends on this interface, besides the underlay.
    pub fn depends_on_mtu_of(&self, interface: &IfName) -> bool {
        matches!(self, Self::Routed(_)) && leads_out_of_host(interface)
    }

    /// Returns the public addresses of all other nodes.
    pub fn public_addresses(&self) -> Vec<IpAddr> {
        match self {
            Self::Subnets(network) => network.public_addresses().collect(),
            Self::Routed(network) => network.public_addresses().collect(),
        }
    }

    /// Returns whether another node publishes this address.
    pub fn has_public_address(&self, address: IpAddr) -> bool {
        match self {
            Self::Subnets(network) => network.has_public_address(address),
            Self::Routed(network) => network.has_public_address(address),
        }
    }

    /// Returns the public addresses of a node.
    pub fn addresses_of(&self, name: &str) -> Vec<IpAddr> {
        let addresses = match self {
            Self::Subnets(network) => {
                network.peers().get(name).map(|(_, lease)| lease.attributes.public)
            }
            Self::Routed(network) => network.nodes().get(name).map(|node| node.addresses),
        };
        addresses.iter().flat_map(|addresses| addresses.iter()).collect()
    }

    /// Records the link that an address of a new node is on, before the node is added.
    pub fn learn_on_link(&mut self, address: IpAddr, link: Option<IfName>) {
        match self {
            Self::Subnets(network) => network.learn_on_link(address, link),
            Self::Routed(network) => network.learn_on_link(address, link),
        }
    }

    /// Sets the links of all nodes' addresses. Returns whether anything has changed.
    pub fn set_on_link(&mut self, on_link: HashMap<IpAddr, IfName>) -> bool {
        match self {
            Self::Subnets(network) => network.set_on_link(on_link),
            Self::Routed(network) => network.set_on_link(on_link),
        }
    }
}

impl From<Network> for AnyNetwork {
    fn from(network: Network) -> Self {
        Self::Subnets(Box::new(network))
    }
}

impl From<RoutedNetwork> for AnyNetwork {
    fn from(network: RoutedNetwork) -> Self {
        Self::Routed(Box::new(network))
    }
}
