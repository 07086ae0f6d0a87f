// SPDX-License-Identifier: Apache-2.0
//! The network over many machines, as values. [`netconf`] says what the network is, [`allocate`]
//! which subnet a node takes, [`publish`] and [`lease`] what it tells the others, in flannel's
//! words; [`plan`] turns the leases of all nodes into what one node's kernel should hold, and
//! [`diff`] into what has to change there. Nothing here touches kernel, store or clock.

pub mod allocate;
pub mod backend;
mod cidr;
pub mod desired;
pub mod diff;
pub mod lease;
pub mod mac;
pub mod netconf;
pub mod observed;
pub mod ownership;
pub mod plan;
pub mod publish;
pub mod stale_bridge;
pub mod subnet_env;

pub use crate::cidr::{Addresses, PerFamily, Prefixes};
