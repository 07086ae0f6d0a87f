// SPDX-License-Identifier: Apache-2.0
//! The lease of the last run. A node that has another address after a boot is another one to the store;
//! what it wrote itself tells that it is the same.

use std::path::PathBuf;

use crate::lease::{HeldLease, saved_text};
use crate::managed_file;
use crate::run::Worker;
use crate::settings::Settings;

impl Worker {
    /// From now on this one is held.
    pub(super) fn hold(&mut self, held: &HeldLease) {
        self.held = Some(held.clone());
        let text = saved_text(&held.lease);
        if let Err(error) = managed_file::replace(&self.lease_file(), &text) {
            tracing::warn!(%error, file = %self.lease_file().display(), "cannot be written");
        }
    }

    /// The lease of the last run, if it is as it was left.
    pub(super) fn remembered(&self) -> Option<HeldLease> {
        let text = managed_file::read(&self.lease_file()).ok()??;
        self.leases.saved_lease(&text)
    }

    fn lease_file(&self) -> PathBuf {
        lease_file(&self.settings)
    }
}

/// The file, for this agent's network.
pub(crate) fn lease_file(settings: &Settings) -> PathBuf {
    settings.node.state_dir.join(format!("{}.lease", settings.node.owner))
}
