// SPDX-License-Identifier: Apache-2.0
//! The desired state and its updates. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use kernel::{Family, IfName};
use overlay::diff::Conflict;
use overlay::lease::Lease;
use overlay::ownership::Ownership;
use overlay::plan::{AnyNetwork, PlanChange};
use overlay::routed::RoutedNode;

/// A change of one peer. Names are keys of the store, or node names with Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerUpdate {
    /// A new or changed peer: `overlay::plan::Network::set_peer`.
    Set {
        name: String,
        /// When the peer was created, as a number that is the same on all nodes.
        since: u64,
        lease: Lease,
    },
    Remove {
        name: String,
    },
    /// The MTU of the path to a subnet, or `None` if the path carries all that pods send.
    PathMtu {
        name: String,
        subnet: IpNet,
        mtu: Option<u32>,
    },
    /// Routed pods: a new, changed or removed node.
    Node {
        name: String,
        node: Option<RoutedNode>,
    },
    /// Routed pods: the node of a block or of a borrowed address.
    Route {
        dst: IpNet,
        node: Option<String>,
    },
}

/// The network with its desired state, and the rules of ownership for changes.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) network: AnyNetwork,
    pub(super) ownership: Ownership,
    /// Public addresses of all peers, sorted to find those inside a prefix.
    pub(super) public_addresses: BTreeSet<IpAddr>,
}

impl Target {
    /// Updates the plan. An update for the other mode changes nothing.
    pub(super) fn update(&mut self, update: PeerUpdate) -> PlanChange {
        let name = match &update {
            PeerUpdate::Set { name, .. }
            | PeerUpdate::Remove { name }
            | PeerUpdate::Node { name, .. } => Some(name.clone()),
            PeerUpdate::PathMtu { .. } | PeerUpdate::Route { .. } => None,
        };
        let before = name.as_ref().map(|name| self.network.addresses_of(name));
        let change = match (&mut self.network, update) {
            (AnyNetwork::Subnets(network), PeerUpdate::Set { name, since, lease }) => {
                network.set_peer(&name, since, lease)
            }
            (AnyNetwork::Subnets(network), PeerUpdate::Remove { name }) => {
                network.remove_peer(&name)
            }
            (AnyNetwork::Subnets(network), PeerUpdate::PathMtu { name, subnet, mtu }) => {
                network.set_path_mtu(&name, subnet, mtu)
            }
            (AnyNetwork::Routed(network), PeerUpdate::Node { name, node }) => {
                network.set_node(&name, node)
            }
            (AnyNetwork::Routed(network), PeerUpdate::PathMtu { name, subnet, mtu }) => {
                network.set_path_mtu(&name, Family::of(subnet.addr()), mtu)
            }
            (AnyNetwork::Routed(network), PeerUpdate::Route { dst, node }) => {
                network.set_route(dst, node.as_deref())
            }
            _ => PlanChange::None,
        };
        if let (Some(name), Some(before)) = (name, before) {
            self.public_addresses.extend(self.network.addresses_of(&name));
            self.remove_unused_addresses(&before);
        }
        change
    }

    /// Marks all desired devices as the agent's, except those with a conflict.
    pub(super) fn adopt_devices(&mut self, conflicts: &[Conflict]) {
        let mut adopted: BTreeSet<IfName> =
            self.network.plan().desired.devices.keys().copied().collect();
        for conflict in conflicts {
            if let Conflict::Device { name, .. } = conflict {
                adopted.remove(name);
            }
        }
        self.ownership.adopted = adopted;
    }

    /// Removes those of the addresses that no peer has any more.
    fn remove_unused_addresses(&mut self, addresses: &[IpAddr]) {
        for address in addresses {
            if !self.network.has_public_address(*address) {
                self.public_addresses.remove(address);
            }
        }
    }
}
