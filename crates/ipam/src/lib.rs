// SPDX-License-Identifier: Apache-2.0
//! Assignment of addresses, as pure functions.
//!
//! [`Range`], [`RangeSet`] and [`choose`] have the rules of the Go plugin host-local. The caller stores the reservations
//! and locks them; it passes in the last address and which addresses are taken.
//!
//! The modules have Calico's pools and blocks: [`pools`] chooses pools for a request, [`mod@block`] assigns and releases
//! addresses of one block, and [`calico`] reads and writes the stored objects. [`node`] is the state machine of a node,
//! [`collect`] finds what is no longer used, and [`check`] what is wrong.

pub mod block;
pub mod calico;
mod candidates;
pub mod check;
mod cidr;
pub mod collect;
mod error;
pub mod node;
pub mod pool;
pub mod pools;
#[cfg(test)]
mod properties;
mod range;
mod set;
mod time;

pub use candidates::{Candidates, choose};
pub use error::Error;
pub use range::{Range, RangeConf};
pub use set::{RangeSet, check_disjoint};
pub use time::Timestamp;
