// SPDX-License-Identifier: Apache-2.0
//! Address ranges, sets of ranges and the choice of the next address, as pure functions.
//!
//! The rules are host-local's. Where reservations are kept, and how two processes stay out of each
//! other's way, is the caller's business: it passes in the last address and what is taken.
//! [`subnet_env`] is how a node's daemon tells the plugins which ranges are theirs, and [`stale_bridge`] what both
//! say when the bridge is still that of another range.

mod candidates;
mod error;
#[cfg(test)]
mod properties;
mod range;
mod set;
pub mod stale_bridge;
pub mod subnet_env;

pub use candidates::{Candidates, choose};
pub use error::Error;
pub use range::{Range, RangeConf};
pub use set::{RangeSet, check_disjoint};
