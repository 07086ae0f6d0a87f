// SPDX-License-Identifier: Apache-2.0
//! The result of a comparison.

use std::fmt;
use std::time::Instant;

use overlay::diff::{Change, Conflict};
use overlay::plan::RejectedPeer;

/// The result of a command or a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Changes that were made, in this order. The caller runs the commands of [`Change::CallAdded`]
    /// and [`Change::CallRemoved`].
    pub changes: Vec<Change>,
    /// Changes that failed. The next comparison retries them.
    pub failures: Vec<Failure>,
    /// Foreign objects that prevent changes.
    pub conflicts: Vec<Conflict>,
    /// Peers that are not served.
    pub rejected: Vec<RejectedPeer>,
    /// `None` without a network.
    pub pod_mtu: Option<u32>,
    /// Number of requests that were sent to the kernel.
    pub requests: usize,
    /// When it was complete; `None` without a network. A report may arrive after the outcome of a later command.
    pub at: Option<Instant>,
}

impl Outcome {
    /// Returns the failures as one error.
    pub(crate) fn summary(&self) -> Result<(), String> {
        match &self.failures[..] {
            [] => Ok(()),
            [only] => Err(only.to_string()),
            [first, rest @ ..] => Err(format!("{first}; and {} more", rest.len())),
        }
    }

    pub(super) fn fail(&mut self, operation: impl fmt::Display, reason: impl fmt::Display) {
        let (operation, reason) = (operation.to_string(), reason.to_string());
        self.failures.push(Failure { operation, reason });
    }
}

/// An operation that failed: a change, or reading kernel state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {reason}")]
pub struct Failure {
    pub operation: String,
    pub reason: String,
}

/// Failures and conflicts that remain after a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Unresolved {
    pub(super) failures: Vec<Failure>,
    pub(super) conflicts: Vec<Conflict>,
}
