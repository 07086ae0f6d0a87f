// SPDX-License-Identifier: Apache-2.0
//! The network over many machines, as values. [`netconf`] says what the network is, [`allocate`]
//! which subnet a node takes, [`publish`] and [`lease`] what it tells the others, in flannel's
//! words; [`plan`] turns the leases of all nodes into what one node's kernel should hold, and
//! [`difference`] into what has to change there. Nothing here touches kernel, store or clock.

pub mod allocate;
pub mod difference;
mod family;
mod key;
pub mod lease;
pub mod mac;
pub mod netconf;
pub mod plan;
pub mod publish;

pub use crate::family::{Addresses, PerFamily, Prefixes};
pub use crate::key::{Key, KeyError, Psk};
