// SPDX-License-Identifier: Apache-2.0
//! What is wanted, and what changes that. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use kernel::IfName;
use overlay::diff::Conflict;
use overlay::lease::Lease;
use overlay::ownership::Ownership;
use overlay::plan::{Network, PlanChange};

/// News of one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerUpdate {
    /// It has come or changed: [`Network::set_peer`].
    Set {
        /// Its key in the store, or the node's name.
        name: String,
        /// When it came, in a number that all nodes see alike.
        since: u64,
        /// What it says.
        lease: Lease,
    },
    /// It has gone.
    Remove {
        /// Its name.
        name: String,
    },
    /// The path to one of its subnets carries less than pods send, or does no longer.
    Narrow {
        /// Its name.
        name: String,
        /// Which of its subnets.
        subnet: IpNet,
        /// What the path carries.
        mtu: Option<u32>,
    },
}

/// A network, and what of the kernel is its business.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) network: Network,
    pub(super) scope: Ownership,
    /// Where peers are reached, sorted, so that those in a prefix are found.
    pub(super) publics: BTreeSet<IpAddr>,
}

impl Target {
    /// Plans with the news.
    pub(super) fn update(&mut self, update: PeerUpdate) -> PlanChange {
        match update {
            PeerUpdate::Set { name, since, lease } => {
                let before = self.public_of(&name);
                let public = lease.attributes.public;
                let updated = self.network.set_peer(&name, since, lease);
                self.publics.extend(public.iter());
                self.forget(&before);
                updated
            }
            PeerUpdate::Remove { name } => {
                let before = self.public_of(&name);
                let updated = self.network.remove_peer(&name);
                self.forget(&before);
                updated
            }
            PeerUpdate::Narrow { name, subnet, mtu } => {
                self.network.set_path_mtu(&name, subnet, mtu)
            }
        }
    }

    /// Devices are ours from now on, but those that another's are in the way of.
    pub(super) fn take_devices(&mut self, conflicts: &[Conflict]) {
        let mut taken: BTreeSet<IfName> =
            self.network.plan().desired.devices.keys().copied().collect();
        for conflict in conflicts {
            if let Conflict::Device { name, .. } = conflict {
                taken.remove(name);
            }
        }
        self.scope.adopted = taken;
    }

    fn public_of(&self, name: &str) -> Vec<IpAddr> {
        let peer = self.network.peers().get(name);
        peer.map_or_else(Vec::new, |(_, lease)| lease.attributes.public.iter().collect())
    }

    /// Addresses that no peer has any more.
    fn forget(&mut self, addresses: &[IpAddr]) {
        for address in
            addresses.iter().filter(|address| !self.network.has_public_address(**address))
        {
            self.publics.remove(address);
        }
    }
}
