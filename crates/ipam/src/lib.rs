// SPDX-License-Identifier: Apache-2.0
//! Address ranges, range sets and the choice of the next address, as pure functions.
//!
//! The rules are those of the Go plugin host-local. The caller stores the reservations and locks them; it passes in the
//! last address and which addresses are taken.

mod candidates;
mod error;
#[cfg(test)]
mod properties;
mod range;
mod set;

pub use candidates::{Candidates, choose};
pub use error::Error;
pub use range::{Range, RangeConf};
pub use set::{RangeSet, check_disjoint};
