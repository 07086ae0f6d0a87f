// SPDX-License-Identifier: Apache-2.0
//! What became of a comparison.

use std::fmt;

use overlay::diff::{Change, Conflict};
use overlay::plan::RejectedPeer;

/// What was done, what could not be, and what the network is now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Done, in this order; each shows itself in a line. [`Change::CallAdded`] and
    /// [`Change::CallRemoved`] are the caller's to do.
    pub changes: Vec<Change>,
    /// Not done. They are tried again at the next comparison.
    pub failures: Vec<Failure>,
    /// Things of others that are in the way.
    pub conflicts: Vec<Conflict>,
    /// Peers that are not served.
    pub refused: Vec<RejectedPeer>,
    /// What pods may send at once; none without a network.
    pub pod_mtu: Option<u32>,
    /// How many requests were sent to the kernel.
    pub requests: usize,
}

impl Outcome {
    /// Nothing had to be done, and nothing is wrong.
    pub fn is_quiet(&self) -> bool {
        self.changes.is_empty() && self.failures.is_empty() && self.conflicts.is_empty()
    }

    pub(super) fn fail(&mut self, what: impl fmt::Display, why: impl fmt::Display) {
        self.failures.push(Failure { what: what.to_string(), why: why.to_string() });
    }
}

/// A change that was not possible, or not to be found out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Failure {
    /// What was to be done.
    pub what: String,
    /// Why it was not.
    pub why: String,
}
