// SPDX-License-Identifier: Apache-2.0
//! The network that connects the pods of all nodes, as pure functions on values. Nothing in this crate
//! accesses the kernel, the store or the clock.
//!
//! - [`netconf`] parses the network configuration, and [`backend`] the part of its backend.
//! - [`allocate`] chooses the subnet of a node.
//! - [`publish`] and [`lease`] produce and parse the data that nodes publish, in flannel's format.
//! - [`plan`] turns the leases of all nodes into the [`desired`] state of one node's kernel.
//! - [`routed`] does the same for routed pods: blocks of addresses from pools instead of a subnet per node.
//! - [`diff`] compares it with the [`observed`] state, within the limits of [`ownership`].

pub mod allocate;
pub mod backend;
mod cidr;
pub mod desired;
pub mod diff;
pub mod lease;
mod mac;
pub mod netconf;
pub mod observed;
pub mod ownership;
pub mod plan;
pub mod publish;
pub mod routed;
pub mod stale_bridge;
pub mod subnet_env;

pub use crate::cidr::{Addresses, PerFamily, Prefixes};
