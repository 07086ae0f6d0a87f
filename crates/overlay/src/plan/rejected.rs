// SPDX-License-Identifier: Apache-2.0
//! Peers and subnets that the plan leaves out, with the reason. Other peers are not affected.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use kernel::MacAddr;

/// A peer, or one of its subnets, that is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedPeer {
    /// Name of the peer.
    pub peer: String,
    /// The rejected subnet, or `None` if all subnets of the peer are rejected.
    pub subnet: Option<IpNet>,
    pub reason: RejectReason,
}

impl fmt::Display for RejectedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subnet {
            Some(subnet) => write!(f, "{subnet} of {} is not served: {}", self.peer, self.reason),
            None => write!(f, "{} is not served: {}", self.peer, self.reason),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    #[error("it overlaps this node's own subnet {0}")]
    OwnSubnet(IpNet),
    #[error("it overlaps {subnet} of {peer}, which is older")]
    Overlap { subnet: IpNet, peer: String },
    #[error("it is not inside the network {0}")]
    OutsideNetwork(IpNet),
    #[error("its public address {0} is this node's own")]
    OwnAddress(IpAddr),
    #[error("its public address {0} cannot be the address of a node")]
    NotANodeAddress(IpAddr),
    #[error("it publishes BackendType {theirs:?}, and this node's backend is {ours}")]
    Backend { theirs: String, ours: &'static str },
    #[error("it publishes VNI {theirs}, and this node's is {ours}")]
    Vni { theirs: u32, ours: u32 },
    #[error("it publishes the MAC address {0}, which is this node's own")]
    OwnMac(MacAddr),
    #[error("it publishes the MAC address {0}, which another peer has")]
    MacTaken(MacAddr),
    #[error("it publishes this node's own public key")]
    OwnKey,
    #[error("it publishes the public key of a peer with another address")]
    KeyTaken,
    #[error("it publishes neither BackendData nor BackendV6Data, and {backend} needs one of them")]
    NoData { backend: &'static str },
    #[error("the two nodes have no address family in common")]
    NoCommonUnderlay,
    #[error("{0} is not on a link of this node, which a route without encapsulation requires")]
    NotOnLink(IpAddr),
    #[error("it is not inside any pool")]
    OutsidePools,
    #[error("its node has published no address")]
    UnknownNode,
    #[error("its node has published no address of its {encapsulation} tunnel")]
    NoTunnelAddress { encapsulation: &'static str },
    #[error("this node has no address for its {encapsulation} tunnel yet")]
    NoOwnTunnelAddress { encapsulation: &'static str },
    #[error("{backend} carries IPv4 only")]
    Ipv4Only { backend: &'static str },
}

impl RejectReason {
    /// Returns whether one of the nodes does not have everything yet, as when it has just started.
    pub fn is_incomplete(&self) -> bool {
        matches!(
            self,
            Self::UnknownNode | Self::NoTunnelAddress { .. } | Self::NoOwnTunnelAddress { .. }
        )
    }

    /// Returns whether the reason may disappear when another peer changes or leaves.
    pub(crate) fn depends_on_another_peer(&self) -> bool {
        matches!(self, Self::Overlap { .. } | Self::MacTaken(_) | Self::KeyTaken)
    }
}
