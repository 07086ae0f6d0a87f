// SPDX-License-Identifier: Apache-2.0
//! Operations on kernel objects, one module per object. An operation that changes something only
//! builds a [`Request`]; [`Netlink::apply`] sends any number of requests at once. An operation that
//! reads takes the [`Netlink`] socket, which belongs to the namespace in which it was opened.

pub mod addr;
pub mod bridge_vlan;
pub mod conntrack;
pub mod daemon;
pub mod deferred_close;
mod error;
pub mod ethtool;
pub mod events;
pub mod fdb;
mod genl;
pub mod iptables_legacy;
pub mod link;
pub mod neigh;
mod netlink_ip;
pub mod netns;
pub mod nexthop;
pub mod nft;
pub mod poll;
mod request;
pub mod route;
pub mod rule;
pub mod socket;
pub mod stdio;
pub mod sysctl;
pub mod tc;
pub mod tun;
mod types;
pub mod wireguard;

pub use crate::error::{Error, Result};
pub use crate::netns::Netns;
pub use crate::request::{Netlink, Request};
pub use crate::types::{Family, IfIndex, IfName, IfNameError, MacAddr, MacAddrError};
pub use ::netlink::{Errno, Monitor, Received};
