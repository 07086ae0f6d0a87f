// SPDX-License-Identifier: Apache-2.0
//! Check: compares what is assigned with what runs on this node, and the objects in the store with each other. Pure.
//!
//! The state may change while it is read. So a caller looks twice and believes only what it found both times, see
//! [`confirmed`].

mod host;
mod network;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::block::Block;
use crate::calico::{BlockAffinity, Key, Object};
use crate::collect::Collected;
use crate::node::{Content, JournalEntry, Revision, Stored};
use crate::pools::Pools;

/// The network as the store has it.
#[derive(Debug)]
pub struct Network<'a> {
    /// Name of this node.
    pub node: &'a str,
    pub pools: &'a Pools,
    pub nodes: BTreeSet<&'a str>,
    pub blocks: BTreeMap<IpNet, (Revision, &'a Block)>,
    /// By node and block.
    pub affinities: BTreeMap<(&'a str, IpNet), (Revision, &'a BlockAffinity)>,
    /// `None` if they were not read.
    pub handles: Option<BTreeMap<&'a str, Revision>>,
    /// Objects that cannot be read, with the reasons.
    pub malformed: Vec<(&'a Key, &'a str)>,
}

/// This node as it is.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// Addresses that the node has assigned.
    pub assigned: &'a BTreeMap<IpAddr, &'a JournalEntry>,
    /// Addresses that the files of the journal have.
    pub saved: &'a BTreeSet<IpAddr>,
    /// Handles whose network namespace exists.
    pub running: &'a BTreeSet<String>,
    /// Addresses with a route or on an interface.
    pub addresses: &'a BTreeSet<IpAddr>,
    /// Routes to single addresses through an interface of this node, without those that the agent made.
    pub pods: &'a BTreeMap<IpAddr, PodInterface>,
}

/// Interface that a route to a single address leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodInterface {
    pub name: String,
    /// The attachment, if the interface names it.
    pub attachment: Option<InterfaceTag>,
}

/// Attachment that an interface of podwire names in its alias.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceTag {
    pub network: String,
    pub container_id: String,
    pub interface: String,
}

impl InterfaceTag {
    pub fn handle(&self) -> String {
        format!("{}.{}", self.network, self.container_id)
    }
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    pub kind: Kind,
    /// The address, block or object.
    pub object: String,
    pub reason: String,
    pub repair: Repair,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An assigned address that no pod has.
    Leaked,
    /// A pod with an address that is not assigned.
    Missing,
    /// Two claim the same address or block.
    Conflict,
    /// An object of something that does not exist any more.
    Stale,
    /// A block that is in no pool.
    Outside,
    /// An object that cannot be used.
    Invalid,
}

/// How a finding is repaired.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repair {
    /// The state machine of this node carries it out.
    Collect(Collected),
    /// Write the journal file of this address again.
    Save(IpAddr),
    /// Assign the address again to the container that has it.
    Adopt(InterfaceTag, IpAddr),
    /// The agent of this node repairs it when it runs.
    Agent(String),
    /// Task of the administrator.
    Manual(String),
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Leaked => "leaked",
            Self::Missing => "missing",
            Self::Conflict => "conflict",
            Self::Stale => "stale",
            Self::Outside => "outside",
            Self::Invalid => "invalid",
        }
    }
}

impl Repair {
    /// Returns whether [`Finding`]s with this repair are repaired on request.
    pub fn is_automatic(&self) -> bool {
        matches!(self, Self::Collect(_) | Self::Save(_) | Self::Adopt(..))
    }
}

/// Shows the effect of the repair, or the task of the administrator.
impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collect(collected) => f.write_str(match collected {
                Collected::Assignment { .. } | Collected::Allocation { .. } => "release it",
                Collected::EmptyBlock { .. } => "give it back",
                Collected::EndCooldowns { .. } => "end the cool-downs",
                Collected::Departed { .. } => "release what the node had in the block",
                Collected::DepartedAffinity { .. } | Collected::Handle { .. } => "delete it",
            }),
            Self::Save(_) => f.write_str("write the file again"),
            Self::Adopt(tag, _) => write!(f, "assign it to container {}", tag.container_id),
            Self::Agent(node) => write!(f, "the agent of {node} repairs it: start it"),
            Self::Manual(hint) => f.write_str(hint),
        }
    }
}

impl<'a> Network<'a> {
    /// Sorts the objects of the store.
    pub fn new(
        node: &'a str,
        pools: &'a Pools,
        objects: &'a [Stored],
        handles: Option<&'a [(String, Revision)]>,
    ) -> Self {
        let mut network = Self {
            node,
            pools,
            nodes: BTreeSet::new(),
            blocks: BTreeMap::new(),
            affinities: BTreeMap::new(),
            handles: handles.map(|all| all.iter().map(|(id, at)| (id.as_str(), *at)).collect()),
            malformed: Vec::new(),
        };
        for stored in objects {
            network.add(stored);
        }
        network
    }

    fn add(&mut self, stored: &'a Stored) {
        let object = match &stored.content {
            Content::Object(object) => object,
            Content::Deleted => return,
            Content::Malformed(reason) => return self.malformed.push((&stored.key, reason)),
        };
        let revision = stored.revision;
        match (&stored.key, object) {
            (Key::Node(name), _) => drop(self.nodes.insert(name)),
            (Key::Block(cidr), Object::Block(block)) if !block.deleted => {
                self.blocks.insert(*cidr, (revision, block));
            }
            (Key::Affinity { node, block }, Object::Affinity(affinity)) if !affinity.deleted => {
                self.affinities.insert((node, *block), (revision, affinity));
            }
            _ => {}
        }
    }

    /// Returns the blocks that contain an address. If blocks overlap, there are several.
    fn containing(&self, address: IpAddr) -> impl Iterator<Item = &'a Block> {
        let blocks = self.blocks.values().map(|(_, block)| *block);
        blocks.filter(move |block| block.cidr().contains(&address))
    }
}

/// Returns everything that is not as it should be, ordered by kind.
pub fn check(network: &Network<'_>, host: &Host<'_>) -> Vec<Finding> {
    let mut findings = host::check(network, host);
    findings.extend(network::check(network));
    findings.sort();
    findings.dedup_by(|a, b| (a.kind, &a.object) == (b.kind, &b.object));
    findings
}

/// Returns the findings that an earlier look had too.
pub fn confirmed(earlier: &[Finding], now: Vec<Finding>) -> Vec<Finding> {
    let known: BTreeSet<_> = earlier.iter().map(|one| (one.kind, one.object.as_str())).collect();
    now.into_iter().filter(|one| known.contains(&(one.kind, one.object.as_str()))).collect()
}
