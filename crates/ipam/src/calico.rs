// SPDX-License-Identifier: Apache-2.0
//! Calico's objects as Calico stores them.
//!
//! [`etcd`] has the keys and values of an etcd store (libcalico-go/lib/backend/model and, for resources,
//! lib/apis and api/pkg/apis/projectcalico/v3). [`crd`] has the custom resources of the group
//! `crd.projectcalico.org/v1` (lib/backend/k8s/resources). Fields of another writer that podwire does not know are kept
//! when an object is written back.

mod block;
pub mod crd;
pub mod etcd;
mod fields;
mod hash;
mod node;
mod objects;
mod pool;
#[cfg(test)]
mod tests;

use std::fmt;

use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::block::Block;
use crate::pool::PoolConf;

pub use hash::hostname_label;
pub use node::{NodeResource, VxlanTunnel};
pub use objects::{AffinityState, BlockAffinity, Handle, IpamConfig, Reservation};

/// Identity of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Block(IpNet),
    /// Claim of a node on a block.
    Affinity {
        node: String,
        block: IpNet,
    },
    Handle(String),
    Config,
    Pool(String),
    Reservation(String),
    /// A Calico node. In Kubernetes it consists of annotations of the node, see [`NodeResource`].
    Node(String),
}

/// An object with its content.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    Block(Block),
    Affinity(BlockAffinity),
    Handle(Handle),
    Config(IpamConfig),
    Pool(PoolConf),
    Reservation(Reservation),
    Node(NodeResource),
}

/// Error for an object that cannot be read. The error concerns only this object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {reason}")]
pub struct Malformed {
    pub object: String,
    pub reason: String,
}

/// Fields of an object that podwire does not know.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Preserved {
    /// Fields beside `spec`, such as `metadata`. Empty for objects that have no `spec`.
    pub envelope: Map<String, Value>,
    /// Fields in `spec`, or of the object itself if it has no `spec`.
    pub spec: Map<String, Value>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(cidr) => write!(f, "IPAMBlock {cidr}"),
            Self::Affinity { node, block } => write!(f, "BlockAffinity {block} of node {node}"),
            Self::Handle(id) => write!(f, "IPAMHandle {id}"),
            Self::Config => f.write_str("IPAMConfig default"),
            Self::Pool(name) => write!(f, "IPPool {name}"),
            Self::Reservation(name) => write!(f, "IPReservation {name}"),
            Self::Node(name) => write!(f, "Node {name}"),
        }
    }
}
