// SPDX-License-Identifier: Apache-2.0
//! Inputs and outputs of the state machine of a node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::block::{Attribute, BlockError};
use crate::calico::{IpamConfig, Key, Object};
use crate::collect::Collected;
use crate::pools::{ChoiceError, Pools, Reservations};

/// Revision of an object in the store. A later change of any object has a greater revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub u64);

/// Identifies an operation, so that its result can be matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// Identifies a request, so that its reply can be matched. Chosen by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Settings of the network, and labels of this node.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub pools: Pools,
    pub config: IpamConfig,
    pub reservations: Reservations,
    pub node_labels: BTreeMap<String, String>,
}

/// User of an address: an interface of a container, or a tunnel of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Calico's handle: `<network>.<container>`, or such as `vxlan-tunnel-addr-<node>`.
    pub handle: String,
    pub network: String,
    pub container_id: String,
    pub interface: String,
    /// Path of the network namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Inode of the network namespace. A path can be reused, an inode tells whether it is still the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_inode: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// Only for tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Tunnel>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
}

/// A tunnel whose device has an address from a pool. The names are Calico's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tunnel {
    #[serde(rename = "ipipTunnelAddress")]
    Ipip,
    #[serde(rename = "vxlanTunnelAddress")]
    Vxlan,
    #[serde(rename = "vxlanV6TunnelAddress")]
    VxlanV6,
}

/// Request for addresses. Either all are assigned, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignRequest {
    pub attachment: Attachment,
    pub ipv4: bool,
    pub ipv6: bool,
    /// Names or CIDRs. Empty stands for all eligible pools.
    pub ipv4_pools: Vec<String>,
    pub ipv6_pools: Vec<String>,
    /// If not empty, exactly these addresses are assigned.
    pub addresses: Vec<IpAddr>,
    pub namespace_labels: BTreeMap<String, String>,
    /// The request fails if it has to wait for the store longer than this.
    pub deadline: Timestamp,
}

/// One assigned address as kept in a file on the node, so that the node knows it after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    pub address: IpAddr,
    pub block: IpNet,
    pub assigned_at: Timestamp,
    #[serde(flatten)]
    pub attachment: Attachment,
}

#[derive(Debug, Clone)]
pub enum Event {
    Settings(Settings),
    /// The entries on disk, once before the first list.
    Journal(Vec<JournalEntry>),
    /// All blocks and affinities at one revision.
    Listed {
        at: Revision,
        objects: Vec<Stored>,
    },
    /// A block or affinity changed. Changes may be repeated and may come in any order.
    Changed(Stored),
    StoreDone {
        id: OpId,
        outcome: Outcome,
    },
    /// Files were written or removed, or could not be.
    JournalDone {
        id: OpId,
        result: Result<(), String>,
    },
    Assign {
        ticket: Ticket,
        request: AssignRequest,
    },
    /// Without interface: all interfaces with this handle.
    Release {
        ticket: Ticket,
        handle: String,
        interface: Option<String>,
    },
    /// Releases everything of the network except these pairs of container and interface.
    Gc {
        ticket: Ticket,
        network: String,
        valid: BTreeSet<(String, String)>,
    },
    /// Decisions of the collector.
    Collect(Vec<Collected>),
    /// Time has passed, see [`Node::next_tick`](crate::node::Node::next_tick).
    Tick,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Store(StoreOp),
    Journal(JournalOp),
    Reply {
        ticket: Ticket,
        reply: Reply,
    },
    /// Something an administrator should know.
    Report(Problem),
}

/// An operation on one object of the store.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreOp {
    pub id: OpId,
    pub key: Key,
    pub verb: Verb,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Verb {
    Read,
    Create(Object),
    /// Only if the revision is still this one.
    Replace(Revision, Object),
    Delete(Revision),
}

/// Result of a store operation.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Written. For a deletion: the revision of the deletion.
    Done(Revision),
    /// Nothing was written. The object as it is now, or `None` if it does not exist.
    Current(Option<Box<Stored>>),
    /// Unknown whether the write happened, or the store refused it.
    Unreachable(String),
}

/// State of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    pub key: Key,
    pub revision: Revision,
    pub content: Content,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    Object(Object),
    Deleted,
    /// The object exists but cannot be read.
    Malformed(String),
}

/// Changes of the files on disk, which are carried out in the order of the operations. A file is removed only if it has
/// this entry: the address may have been assigned again.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalOp {
    pub id: OpId,
    pub write: Vec<JournalEntry>,
    pub remove: Vec<JournalEntry>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Assigned(Vec<Assigned>),
    /// The addresses that were released. Nothing to release is success.
    Released(Vec<IpAddr>),
    Failed(AssignError),
}

/// An assigned address and its pool. The pool is missing if it has been deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    pub address: IpAddr,
    pub pool: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    #[error(transparent)]
    Pool(#[from] ChoiceError),
    #[error(transparent)]
    Address(#[from] BlockError),
    #[error("address {0} is in no pool that is enabled")]
    NotInPool(IpAddr),
    #[error("address {address} is in block {block} of {owner}, and strictAffinity is set")]
    OtherNode { address: IpAddr, block: IpNet, owner: String },
    #[error("address {address}: block {block} cannot be claimed: {reason}")]
    Block { address: IpAddr, block: IpNet, reason: String },
    #[error("no free {family} address in pools {pools}: {reason}")]
    Exhausted { family: &'static str, pools: String, reason: &'static str },
    #[error("the request names no address family and no address")]
    Nothing,
    #[error("the attachment is being released; try again")]
    Leaving,
    #[error("the attachment was released during the request")]
    Cancelled,
    #[error("waiting for the store: {0}")]
    Waiting(String),
    #[error("journal: {0}")]
    Journal(String),
}

impl AssignError {
    /// Returns whether the same request may succeed later without any change of settings.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Leaving
                | Self::Waiting(_)
                | Self::Journal(_)
                | Self::Address(BlockError::Cooling { .. })
        )
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error(
        "address {address} of {handle} is also assigned to {user}; delete the pod {handle} belongs to"
    )]
    Lost { address: IpAddr, handle: String, user: String },
    #[error("{key} is ignored: {reason}")]
    Malformed { key: String, reason: String },
    #[error("journal entry of {address} is ignored: {reason}")]
    JournalEntry { address: IpAddr, reason: String },
}

impl Attachment {
    /// Attribute that marks allocations of podwire, with the interface as value.
    const MARK: &str = "podwire";

    /// Value of the mark without an interface. Old API servers of Kubernetes refuse an empty text.
    const NO_INTERFACE: &str = "-";

    fn mark(&self) -> &str {
        if self.interface.is_empty() { Self::NO_INTERFACE } else { &self.interface }
    }

    /// Returns the attribute of the addresses of this attachment.
    pub(crate) fn attribute(&self, node: &str, time: Timestamp) -> Arc<Attribute> {
        let mut secondary = BTreeMap::from([
            ("node".to_owned(), node.to_owned()),
            (Self::MARK.to_owned(), self.mark().to_owned()),
        ]);
        if let Some(pod) = &self.pod {
            secondary.insert("namespace".to_owned(), pod.namespace.clone());
            secondary.insert("pod".to_owned(), pod.name.clone());
        }
        match self.tunnel {
            Some(tunnel) => secondary.insert("type".to_owned(), tunnel.to_string()),
            None => secondary.insert("timestamp".to_owned(), time.to_go_string()),
        };
        Arc::new(Attribute { handle: Some(self.handle.clone()), secondary, ..Attribute::default() })
    }

    /// Returns whether an attribute was written for this attachment on this node, by podwire or by Calico.
    pub(crate) fn has_attribute(&self, attribute: &Attribute, node: &str) -> bool {
        let interface = attribute.secondary.get(Self::MARK);
        attribute.handle() == Some(&self.handle)
            && attribute.node() == Some(node)
            && interface.is_none_or(|interface| *interface == self.mark())
    }

    /// Returns whether podwire on this node wrote the attribute, for an attachment or for its reserve.
    pub(crate) fn wrote(node: &str, attribute: &Attribute) -> bool {
        attribute.reserved_by() == Some(node)
            || attribute.node() == Some(node) && attribute.secondary.contains_key(Self::MARK)
    }
}

impl JournalEntry {
    /// Returns the attribute under which the entry is stored, also after a restart.
    pub(crate) fn attribute(&self, node: &str) -> Arc<Attribute> {
        self.attachment.attribute(node, self.assigned_at)
    }
}

impl Tunnel {
    /// Returns Calico's handle for the address of this tunnel.
    pub fn handle(self, node: &str) -> String {
        match self {
            Self::Ipip => format!("ipip-tunnel-addr-{node}"),
            Self::Vxlan => format!("vxlan-tunnel-addr-{node}"),
            Self::VxlanV6 => format!("vxlan-v6-tunnel-addr-{node}"),
        }
    }
}

impl fmt::Display for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipip => "ipipTunnelAddress",
            Self::Vxlan => "vxlanTunnelAddress",
            Self::VxlanV6 => "vxlanV6TunnelAddress",
        })
    }
}
