// SPDX-License-Identifier: Apache-2.0
//! Address pools as the command-line tool shows and changes them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// `GET`: a [`View`].
pub const VIEW: &str = "/pools";

/// `POST`: a [`Change`], answered by `{}` or an [`ipam::Failure`](crate::ipam::Failure).
pub const CHANGE: &str = "/pools/change";

/// `POST`: a [`ReleaseAddress`], answered by an [`ipam::ReleaseResponse`](crate::ipam::ReleaseResponse).
pub const RELEASE_ADDRESS: &str = "/pools/release";

/// `POST`: a [`CheckRequest`], answered by a [`CheckReport`].
pub const CHECK: &str = "/pools/check";

/// All pools and blocks, as the node knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct View {
    /// Name of the node that answers.
    pub node: String,
    /// Pools in use, ordered by name.
    pub pools: Vec<PoolView>,
    /// Pools and objects that are not used, with the reason.
    pub rejected: Vec<String>,
    /// Blocks of all nodes, ordered by address.
    pub blocks: Vec<BlockView>,
    /// Addresses of blocks of other nodes.
    pub borrowed: Vec<BorrowedView>,
    /// Addresses that this node has assigned.
    pub assigned: Vec<AssignedView>,
}

/// A pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolView {
    /// Name of the object.
    pub name: String,
    /// The addresses.
    pub cidr: String,
    /// Prefix length of the blocks.
    pub block_size: u8,
    /// Such as `vxlan-cross-subnet`.
    pub encapsulation: String,
    /// Whether packets that leave all pools are masqueraded.
    pub nat_outgoing: bool,
    /// Whether no addresses are assigned.
    pub disabled: bool,
    /// Number of addresses; the largest number if there are more.
    pub size: u64,
    /// Addresses that pods and tunnels have.
    pub used: u64,
    /// Number of blocks that nodes have.
    pub blocks: u64,
    /// Selector of nodes; empty for all.
    pub node_selector: String,
    /// Selector of namespaces; empty for all.
    pub namespace_selector: String,
    /// Whether only requests that name the pool get an address.
    pub manual: bool,
}

/// A block.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BlockView {
    /// The addresses.
    pub cidr: String,
    /// Name of its node; empty if it has none.
    pub node: String,
    /// Number of addresses.
    pub size: u64,
    /// Addresses that pods and tunnels have.
    pub used: u64,
    /// Addresses that the node has set aside.
    pub reserved: u64,
    /// Released addresses in their cool-down.
    pub cooling: u64,
    /// The part of `used` that other nodes have.
    pub borrowed: u64,
    /// Addresses that can be assigned.
    pub free: u64,
}

/// An address that a node has from a block of another node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BorrowedView {
    /// The address, as text.
    pub address: String,
    /// The block.
    pub block: String,
    /// Name of the node that has the address.
    pub node: String,
}

/// An address with its user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AssignedView {
    /// The address, as text.
    pub address: String,
    /// The handle in the store.
    pub handle: String,
    /// Interface in the container; empty for a tunnel of the node.
    pub interface: String,
    /// Namespace and name of the pod, if known.
    pub pod: String,
    /// Path of the network namespace.
    pub netns: String,
}

/// A change of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "change")]
pub enum Change {
    /// Creates a pool. Fails if the name is taken or the pool is not valid.
    Create(NewPool),
    /// Stops assigning addresses of the pool, or starts again.
    Disable {
        /// Name of the pool.
        name: String,
        /// The new state.
        disabled: bool,
    },
    /// Deletes a pool without used addresses.
    Delete {
        /// Name of the pool.
        name: String,
    },
}

/// A pool to create.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NewPool {
    /// Name of the object.
    pub name: String,
    /// The addresses.
    pub cidr: String,
    /// Prefix length of the blocks; 0 for the default.
    pub block_size: u8,
    /// One of `none`, `vxlan`, `vxlan-cross-subnet`, `ipip` and `ipip-cross-subnet`.
    pub encapsulation: String,
    /// Whether packets that leave all pools are masqueraded.
    pub nat_outgoing: bool,
    /// Selector of nodes; empty for all.
    pub node_selector: String,
    /// Selector of namespaces; empty for all.
    pub namespace_selector: String,
    /// Whether only requests that name the pool get an address.
    pub manual: bool,
}

/// Releases one address of the answering node, or of a node that does not exist any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseAddress {
    /// The address.
    pub address: IpAddr,
    /// Also if its pod exists.
    #[serde(default)]
    pub force: bool,
}

/// Compares what is assigned with what runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckRequest {
    /// Repair what can be repaired safely.
    pub fix: bool,
}

/// Result of a check: the numbers of compared objects, and the findings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckReport {
    /// Name of the node that answers.
    pub node: String,
    /// Number of nodes.
    pub nodes: u64,
    /// Number of blocks of all nodes.
    pub blocks: u64,
    /// Number of addresses of pods and tunnels of all nodes.
    pub addresses: u64,
    /// Number of addresses that this node has assigned.
    pub assigned: u64,
    /// Number of handles; `None` if the store does not list them.
    pub handles: Option<u64>,
    /// Ordered by problem.
    pub findings: Vec<FindingView>,
}

/// Something that is wrong, or was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FindingView {
    /// One of `leaked`, `missing`, `conflict`, `stale`, `outside` and `invalid`.
    pub problem: String,
    /// Address, block or object.
    pub object: String,
    /// Description of the problem.
    pub reason: String,
    /// Effect of the repair, or the task of the administrator.
    pub repair: String,
    /// Whether `fix` repairs it.
    pub automatic: bool,
    /// Whether it was repaired.
    pub repaired: bool,
}
