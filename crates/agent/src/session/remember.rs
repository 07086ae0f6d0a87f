// SPDX-License-Identifier: Apache-2.0
//! The lease of the last run. A node that has another address after a boot is another one to the store;
//! what it wrote itself tells that it is the same.

use std::path::PathBuf;

use overlay::lease::Lease;
use store::Snapshot;

use crate::file;
use crate::leases::{Held, NodeSeen, NodeState, Seen};
use crate::options::Settings;
use crate::run::Worker;

impl Worker {
    /// From now on this one is held.
    pub(super) fn hold(&mut self, held: &Held) {
        self.held = Some(held.clone());
        let text = written(&held.lease);
        if let Err(error) = file::replace(&self.lease_file(), &text) {
            tracing::warn!(%error, file = %self.lease_file().display(), "cannot be written");
        }
    }

    /// The lease of the last run, if it is as it was left.
    pub(super) fn remembered(&self, snapshot: &Snapshot) -> Option<Held> {
        let text = file::read(&self.lease_file()).ok()??;
        let (name, _) = text.split_once(' ')?;
        self.leases.leases_in(name, snapshot).find_map(|(entry, seen)| match seen {
            Seen::Node(NodeSeen { name, revision, state: NodeState::In { lease, .. } })
                if written(&lease) == text =>
            {
                Some(Held { name, lease: *lease, revision, is_reservation: !entry.expires })
            }
            _ => None,
        })
    }

    fn lease_file(&self) -> PathBuf {
        lease_file(&self.settings)
    }
}

/// The file, for this agent's network.
pub(crate) fn lease_file(settings: &Settings) -> PathBuf {
    settings.state_dir.join(format!("{}.lease", settings.mark))
}

/// Key and value, as they stand in the store.
pub(super) fn written(lease: &Lease) -> String {
    format!("{} {}\n", lease.key(), lease.attributes.print())
}
