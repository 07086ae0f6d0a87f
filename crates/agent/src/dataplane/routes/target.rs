// SPDX-License-Identifier: Apache-2.0
//! The desired state and its updates. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use kernel::IfName;
use overlay::diff::Conflict;
use overlay::lease::Lease;
use overlay::ownership::Ownership;
use overlay::plan::{Network, PlanChange};

/// A change of one peer. Names are keys of the store, or node names with Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerUpdate {
    /// A new or changed peer: [`Network::set_peer`].
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
}

/// The network with its desired state, and the rules of ownership for changes.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) network: Network,
    pub(super) ownership: Ownership,
    /// Public addresses of all peers, sorted to find those inside a prefix.
    pub(super) public_addresses: BTreeSet<IpAddr>,
}

impl Target {
    /// Updates the plan.
    pub(super) fn update(&mut self, update: PeerUpdate) -> PlanChange {
        match update {
            PeerUpdate::Set { name, since, lease } => {
                let before = self.public_addresses_of(&name);
                let public = lease.attributes.public;
                let change = self.network.set_peer(&name, since, lease);
                self.public_addresses.extend(public.iter());
                self.remove_unused_addresses(&before);
                change
            }
            PeerUpdate::Remove { name } => {
                let before = self.public_addresses_of(&name);
                let change = self.network.remove_peer(&name);
                self.remove_unused_addresses(&before);
                change
            }
            PeerUpdate::PathMtu { name, subnet, mtu } => {
                self.network.set_path_mtu(&name, subnet, mtu)
            }
        }
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

    fn public_addresses_of(&self, name: &str) -> Vec<IpAddr> {
        let peer = self.network.peers().get(name);
        peer.map_or_else(Vec::new, |(_, lease)| lease.attributes.public.iter().collect())
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
