// SPDX-License-Identifier: Apache-2.0
//! A file that is kept: whoever removes or overwrites it finds it again a moment later.

use std::path::Path;

use crate::ear::Ear;
use crate::status::{ConditionKind, RepairKind, StatusHub};

/// A file that is kept, and what is said of it.
#[derive(Debug)]
pub(crate) struct Kept {
    hub: StatusHub,
    ear: Ear,
    /// Whoever changes it then breaks it.
    is_there: bool,
    /// Others tell of files as well: only its own word is taken back.
    has_complained: bool,
}

impl Kept {
    pub(crate) fn new(path: &Path, hub: &StatusHub) -> Kept {
        Kept { hub: hub.clone(), ear: Ear::new(path), is_there: false, has_complained: false }
    }

    /// Whether it was as it should be when last looked at.
    pub(crate) fn is_there(&self) -> bool {
        self.is_there
    }

    /// It was made what it should be, or was it already (false).
    pub(crate) fn put(&mut self, put: &Result<bool, impl std::fmt::Display>) {
        if self.is_there && matches!(put, Ok(true)) {
            let text = format!("put {} back", self.ear.path().display());
            tracing::warn!(change = text, "repaired");
            self.hub.repaired(RepairKind::File, text);
        }
        self.is_there |= put.is_ok();
        self.report(put);
    }

    /// It is going to be another, and nobody has broken it.
    pub(crate) fn is_to_change(&mut self) {
        self.is_there = false;
    }

    /// It was taken away, or was not there (false).
    pub(crate) fn taken(&mut self, taken: &Result<bool, impl std::fmt::Display>) {
        self.is_there = false;
        self.report(taken);
    }

    fn report(&mut self, done: &Result<bool, impl std::fmt::Display>) {
        match done {
            Ok(_) if !self.has_complained => {}
            Ok(_) => self.hub.clear_problem(ConditionKind::Files),
            Err(why) => self.hub.set_problem(ConditionKind::Files, why.to_string()),
        }
        self.has_complained = done.is_err();
    }

    /// Waits until it may be another than it was. The wait can be given up and taken up again.
    pub(crate) async fn next(&mut self) {
        self.ear.next().await;
    }
}
