// SPDX-License-Identifier: Apache-2.0
//! State that earlier runs have saved on the node's disk. A node with another address after a boot is unknown to the
//! store; the saved lease proves that it is the same node.

use std::path::PathBuf;
use std::sync::Arc;

use overlay::Prefixes;
use text::ErrorChain;

use crate::lease::{HeldLease, LeaseBackend, saved_text};
use crate::managed_file::{self, in_background};
use crate::node_files::subnet_env;
use crate::overlay::previous_backend::Backends;
use crate::settings::Settings;

/// The files of earlier runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct SavedState {
    /// The lease of the last run, as it was written.
    lease: Option<String>,
    /// The subnets that this node had when an agent, or flanneld, last ran here.
    pub subnets: Option<Prefixes>,
    /// A backend that peers may still use needs the private key of WireGuard.
    pub needs_wireguard: bool,
}

impl SavedState {
    /// Reads the files. Blocks.
    pub(super) fn read(settings: &Settings) -> SavedState {
        let env = subnet_env::read(&settings.files.subnet_env).inspect_err(
            |error| tracing::warn!(error = %ErrorChain(error), "ignoring unreadable subnet file"),
        );
        SavedState {
            lease: managed_file::read(&lease_file(settings)).ok().flatten(),
            subnets: env.ok().flatten().and_then(|env| Prefixes::of(env.subnets)),
            needs_wireguard: Backends::read(settings).have_wireguard(),
        }
    }

    /// Like [`read`](Self::read), but on another thread.
    pub(super) async fn read_in_background(settings: &Arc<Settings>) -> SavedState {
        let settings = Arc::clone(settings);
        in_background(move || Self::read(&settings)).await.unwrap_or_default()
    }

    /// Returns the lease of the last run, if the store has it unchanged.
    pub(super) fn lease(&self, leases: &dyn LeaseBackend) -> Option<HeldLease> {
        leases.saved_lease(self.lease.as_deref()?)
    }
}

/// Path of the saved lease, for this agent's network.
pub(crate) fn lease_file(settings: &Settings) -> PathBuf {
    settings.node.state_dir.join(format!("{}.lease", settings.node.owner))
}

/// Writes the saved lease.
pub(super) async fn save_lease(settings: &Settings, held: &HeldLease) {
    managed_file::write_in_background(lease_file(settings), saved_text(&held.lease), false).await;
}
