// SPDX-License-Identifier: Apache-2.0
//! Collection: finds addresses, blocks, affinities and handles that are no longer used.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::Timestamp;
use crate::block::{Attribute, Block};
use crate::node::{Node, Revision};

/// Something to collect. The state machine of the node checks it again and carries it out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Collected {
    /// An address that this node assigned. Nothing is done if it was assigned again in the meantime.
    Assignment { address: IpAddr, handle: String, assigned_at: Timestamp },
    /// An address that another program assigned on this node. Nothing is done if handle or sequence number differ.
    Allocation { block: IpNet, address: IpAddr, handle: String, sequence: u64 },
    /// A block of this node without used addresses.
    EmptyBlock { block: IpNet },
    /// A block without owner whose released addresses have ended their cool-down.
    EndCooldowns { block: IpNet },
    /// Everything of a node that does not exist any more in one block, if the block has not changed.
    Departed { node: String, block: IpNet, revision: Revision },
    /// Affinity of a node that does not exist any more. It is removed only at this revision.
    DepartedAffinity { node: String, block: IpNet, revision: Revision },
    /// A handle without allocations. It is removed only at this revision.
    Handle { id: String, revision: Revision },
}

/// State of the host and the cluster at one time.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    pub at: Timestamp,
    /// Handles whose network namespace exists.
    pub running: &'a BTreeSet<String>,
    /// Addresses with a route or an interface on this host.
    pub addresses: &'a BTreeSet<IpAddr>,
    /// All nodes of the cluster, read after the blocks. `None` if they are unknown.
    pub nodes: Option<&'a BTreeSet<String>>,
    /// Handles to check, with their revisions. `None` if they were not read.
    pub handles: Option<HandleList<'a>>,
}

/// All handles, and the allocations that use them.
///
/// The blocks that the node knows may be old, and handles are not compared when a block is written. So both are read
/// from the store, the handles first: an allocation is written before its handle.
#[derive(Debug, Clone, Copy)]
pub struct HandleList<'a> {
    pub handles: &'a [(String, Revision)],
    pub blocks: &'a [Block],
}

/// Compares what is assigned with what runs.
///
/// An address is collected only if nothing used it in two observations, and for at least the grace period: a container
/// may be starting. Addresses and blocks of a node that does not exist any more are collected at once.
#[derive(Debug)]
pub struct Collector {
    grace: Duration,
    suspects: Suspects,
    /// Handles are observed less often.
    handles: Suspects,
    /// Own blocks that were empty in the last observation.
    empty: BTreeSet<IpNet>,
}

/// When each suspect was first observed.
#[derive(Debug, Default)]
struct Suspects(BTreeMap<Collected, Timestamp>);

/// Time for which an address may be unused before it is collected.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(15 * 60);

impl Collector {
    pub fn new(grace: Duration) -> Self {
        let (suspects, handles) = (Suspects::default(), Suspects::default());
        Self { grace, suspects, handles, empty: BTreeSet::new() }
    }

    /// Returns what can be collected.
    pub fn observe(&mut self, node: &Node, observation: &Observation<'_>) -> Vec<Collected> {
        let mut suspects = leaked_assignments(node, observation);
        suspects.extend(leaked_allocations(node, observation));
        let (at, grace) = (observation.at, self.grace);
        let mut collected = self.suspects.confirm(suspects, at, grace);
        if let Some(list) = observation.handles {
            collected.extend(self.handles.confirm(orphaned_handles(node, list), at, grace));
        }
        collected.extend(self.empty_blocks(node));
        collected.extend(ended_cooldowns(node, at));
        if let Some(nodes) = observation.nodes {
            collected.extend(departed(node, nodes));
        }
        collected
    }

    /// Returns own blocks that were empty twice. One block per address family is kept for the next pod, if its pool
    /// still exists.
    fn empty_blocks(&mut self, node: &Node) -> Vec<Collected> {
        let in_use: BTreeSet<_> = node.assignments().map(|entry| entry.block).collect();
        let is_empty = |block: &Block| block.is_unused() && !in_use.contains(&block.cidr());
        let empty = node.own_blocks().filter(|block| is_empty(block)).map(Block::cidr).collect();
        let earlier = std::mem::replace(&mut self.empty, empty);
        let has_pool = |cidr: &IpNet| node.settings().pools.containing(cidr.network()).is_some();
        let is_ipv6 = |cidr: &IpNet| matches!(cidr, IpNet::V6(_));
        let mut left = [false, true].map(|family| {
            let own = node.own_blocks().map(Block::cidr);
            own.filter(|cidr| is_ipv6(cidr) == family && has_pool(cidr)).count()
        });
        let mut released = Vec::new();
        for cidr in self.empty.intersection(&earlier) {
            let left = &mut left[usize::from(is_ipv6(cidr))];
            if !has_pool(cidr) {
                released.push(Collected::EmptyBlock { block: *cidr });
            } else if *left > 1 {
                *left -= 1;
                released.push(Collected::EmptyBlock { block: *cidr });
            }
        }
        released
    }
}

impl Suspects {
    /// Takes the suspects of an observation. Returns those that were observed before, at least the grace period ago.
    fn confirm(
        &mut self,
        suspects: Vec<Collected>,
        now: Timestamp,
        grace: Duration,
    ) -> Vec<Collected> {
        let earlier = std::mem::take(&mut self.0);
        let mut confirmed = Vec::new();
        for suspect in suspects {
            let first = earlier.get(&suspect).copied();
            if first.is_some_and(|first| now.since(first) >= grace) {
                confirmed.push(suspect.clone());
            }
            self.0.insert(suspect, first.unwrap_or(now));
        }
        confirmed
    }
}

/// Returns addresses of this node's journal whose containers do not run. If one address of a handle is in use, all are.
fn leaked_assignments(node: &Node, observation: &Observation<'_>) -> Vec<Collected> {
    let used: BTreeSet<_> = node
        .assignments()
        .filter(|entry| observation.addresses.contains(&entry.address))
        .map(|entry| &entry.attachment.handle)
        .collect();
    let leaked = node.assignments().filter(|entry| {
        let attachment = &entry.attachment;
        attachment.tunnel.is_none()
            && !used.contains(&attachment.handle)
            && !observation.running.contains(&attachment.handle)
    });
    let leaked = leaked.map(|entry| Collected::Assignment {
        address: entry.address,
        handle: entry.attachment.handle.clone(),
        assigned_at: entry.assigned_at,
    });
    leaked.collect()
}

/// Returns addresses that Calico assigned on this node and whose containers do not run.
fn leaked_allocations(node: &Node, observation: &Observation<'_>) -> Vec<Collected> {
    let is_meant = |attribute: &Attribute| {
        attribute.node() == Some(node.name())
            && !node.wrote(attribute)
            && !attribute.is_cooling()
            && !attribute.secondary.contains_key("type")
    };
    let mut allocations = Vec::new();
    let mut used = BTreeSet::new();
    for block in node.blocks() {
        for (ordinal, allocation) in block.allocations().filter(|(_, a)| is_meant(&a.attribute)) {
            let Some(handle) = allocation.attribute.handle() else { continue };
            let address = block.address(ordinal);
            if observation.addresses.contains(&address) || observation.running.contains(handle) {
                used.insert(handle);
            }
            allocations.push((block.cidr(), address, handle, allocation.sequence));
        }
    }
    let leaked = allocations.into_iter().filter(|(_, _, handle, _)| !used.contains(handle));
    let leaked = leaked.map(|(block, address, handle, sequence)| Collected::Allocation {
        block,
        address,
        handle: handle.to_owned(),
        sequence,
    });
    leaked.collect()
}

fn orphaned_handles(node: &Node, list: HandleList<'_>) -> Vec<Collected> {
    let mut used: BTreeSet<_> =
        node.assignments().map(|entry| entry.attachment.handle.as_str()).collect();
    for block in list.blocks {
        used.extend(block.allocations().filter_map(|(_, a)| a.attribute.handle()));
    }
    let orphans = list.handles.iter().filter(|(id, _)| !used.contains(id.as_str()));
    orphans
        .map(|(id, revision)| Collected::Handle { id: id.clone(), revision: *revision })
        .collect()
}

/// Returns blocks that only wait for the end of cool-downs, and that no other node writes.
fn ended_cooldowns(node: &Node, now: Timestamp) -> Vec<Collected> {
    let cooldown = node.settings().config.cooldown;
    let is_done = |attribute: &Attribute| match attribute.released_at {
        Some(released) => now.since(released) >= cooldown,
        None => attribute.reserved_by().is_some(),
    };
    let blocks = node.blocks().filter(|block| {
        let is_cooling = block.allocations().any(|(_, a)| a.attribute.is_cooling());
        let is_done = block.allocations().all(|(_, a)| is_done(&a.attribute));
        match block.owner() {
            Some(owner) => owner == node.name() && is_cooling && is_done,
            None => block.affinity.is_none() && is_done,
        }
    });
    blocks.map(|block| Collected::EndCooldowns { block: block.cidr() }).collect()
}

/// Returns what nodes left behind that do not exist any more.
fn departed(node: &Node, nodes: &BTreeSet<String>) -> Vec<Collected> {
    let is_departed = |name: &&str| *name != node.name() && !nodes.contains(*name);
    let mut collected = Vec::new();
    for (revision, block) in node.block_revisions() {
        let users = block.allocations().filter_map(|(_, allocation)| {
            let attribute = &allocation.attribute;
            attribute.node().or_else(|| attribute.reserved_by())
        });
        // The block changes with the first node, so others follow in the next observation.
        if let Some(gone) = block.owner().into_iter().chain(users).find(is_departed) {
            let (node, block) = (gone.to_owned(), block.cidr());
            collected.push(Collected::Departed { node, block, revision });
        }
    }
    for (owner, block, revision) in node.affinities().filter(|(owner, ..)| is_departed(owner)) {
        let node = owner.to_owned();
        collected.push(Collected::DepartedAffinity { node, block, revision });
    }
    collected
}
