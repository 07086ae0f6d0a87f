// SPDX-License-Identifier: Apache-2.0
//! The lease of the last run. A node with another address after a boot is unknown to the store; the saved
//! lease proves that it is the same node.

use std::path::PathBuf;

use crate::lease::{HeldLease, LeaseBackend, saved_text};
use crate::managed_file;
use crate::settings::Settings;

/// Path of the file, for this agent's network.
pub(crate) fn lease_file(settings: &Settings) -> PathBuf {
    settings.node.state_dir.join(format!("{}.lease", settings.node.owner))
}

/// Writes the file.
pub(super) async fn save(settings: &Settings, held: &HeldLease) {
    managed_file::write_in_background(lease_file(settings), saved_text(&held.lease), false).await;
}

/// Returns the lease of the last run, if the store has it unchanged.
pub(super) fn read(settings: &Settings, leases: &dyn LeaseBackend) -> Option<HeldLease> {
    let text = managed_file::read(&lease_file(settings)).ok()??;
    leases.saved_lease(&text)
}
