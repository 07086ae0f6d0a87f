// SPDX-License-Identifier: Apache-2.0
//! The last known state of the network, for while the store does not answer. A file keeps it for an agent
//! that is started then.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use store::Revision;

use crate::lease::{Cached, CachedEntry, HeldLease, LeaseBackend, Snapshot, TIME_TO_LIVE};
use crate::managed_file;
use crate::settings::Settings;

/// Delay between a change and the write, because changes come in groups: the agent's own lease arrives a
/// moment after it was written.
const CACHE_WRITE_DELAY: Duration = Duration::from_secs(1);

/// Minimum time between two writes. With thousands of nodes the file is large, and some of them always
/// come or go.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum size of the file: all entries of a store, and as much again for quoting.
const MAX_SIZE: u64 = 2 * store::limit::MAX_TOTAL as u64;

/// The state that outlives an outage of the store.
#[derive(Debug, Default)]
pub(super) struct Cache {
    /// When the store deletes the lease unless it is renewed; `None` if the lease does not expire, or if none is held.
    lease_until: Option<Instant>,
    /// The first answer of the store after an outage.
    pub(super) listed: Option<Snapshot>,
    write_at: Option<Instant>,
    written: Option<Instant>,
}

/// The file. Times are seconds since 1970.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct View {
    /// Identifies the store. Revisions of another one have no meaning for it.
    store: String,
    written: u64,
    /// `None` if the lease does not expire.
    lease_until: Option<u64>,
    revision: u64,
    entries: Vec<CachedEntry>,
}

impl Cache {
    /// Notes that the lease was written or renewed just now.
    pub(super) fn lease_renewed(&mut self, held: &HeldLease) {
        let now = Instant::now();
        self.lease_until = (!held.is_reservation).then(|| now + TIME_TO_LIVE);
        self.write_at.get_or_insert(now + CACHE_WRITE_DELAY);
    }

    /// Returns how long the lease is valid; `None` if it does not expire.
    pub(super) fn lease_left(&self, held: &HeldLease) -> Option<Duration> {
        let until = self.lease_until.filter(|_| !held.is_reservation);
        until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Returns whether the lease has not expired.
    pub(super) fn is_lease_valid(&self, held: &HeldLease) -> bool {
        held.is_reservation || self.lease_until.is_some_and(|until| until > Instant::now())
    }

    /// Returns when the file has to be written; `None` if nothing has changed.
    pub(super) fn write_due(&mut self, leases: &dyn LeaseBackend) -> Option<Instant> {
        if leases.take_changed() {
            self.write_at.get_or_insert(Instant::now() + CACHE_WRITE_DELAY);
        }
        let earliest = self.written.map(|written| written + MIN_WRITE_INTERVAL);
        self.write_at = self.write_at.map(|at| earliest.map_or(at, |earliest| at.max(earliest)));
        self.write_at
    }

    pub(super) async fn write(&mut self, settings: &Settings, leases: &dyn LeaseBackend) {
        self.write_at = None;
        self.written = Some(Instant::now());
        let Some(last) = leases.export_cache() else { return };
        let left = self.lease_until.map(|at| at.saturating_duration_since(Instant::now()));
        let view = View::new(last, store_name(settings, leases), now(), left);
        let text = serde_json::to_string(&view).unwrap_or_default();
        managed_file::write_in_background(view_file(settings), text, true).await;
    }

    /// Fills the backend's mirror from the file of an earlier process. Returns whether the file has a valid
    /// lease of this store.
    pub(super) async fn load(&mut self, settings: &Settings, leases: &dyn LeaseBackend) -> bool {
        let file = view_file(settings);
        let read = move || {
            let read = managed_file::read_at_most(&file, MAX_SIZE).unwrap_or_else(|error| {
                tracing::warn!(%error, file = %file.display(), "ignoring unreadable cache");
                None
            });
            read.and_then(|text| serde_json::from_str::<View>(&text).ok())
        };
        let view = managed_file::in_background(read).await.flatten();
        let Some(view) = view.filter(|view| view.store == store_name(settings, leases)) else {
            return false;
        };
        let left = view.left(now());
        if left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        leases.import_cache(view.cached());
        self.lease_until = left.map(|left| Instant::now() + left);
        true
    }
}

fn store_name(settings: &Settings, leases: &dyn LeaseBackend) -> String {
    format!("{} {}", settings.store.name(), leases.id())
}

impl View {
    fn new(last: Cached, store: String, now: u64, left: Option<Duration>) -> View {
        View {
            store,
            written: now,
            lease_until: left.map(|left| now + left.as_secs()),
            revision: last.revision.0,
            entries: last.entries,
        }
    }

    /// Returns how long the lease is valid; `None` if it does not expire. After the clock was set back it counts as expired.
    fn left(&self, now: u64) -> Option<Duration> {
        let until = self.lease_until?;
        let left = if now < self.written { 0 } else { until.saturating_sub(now) };
        Some(Duration::from_secs(left))
    }

    fn cached(self) -> Cached {
        Cached { revision: Revision(self.revision), entries: self.entries }
    }
}

fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}

/// Path of the file, for this agent's network.
pub(crate) fn view_file(settings: &Settings) -> PathBuf {
    settings.node.state_dir.join(format!("{}.view", settings.node.owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_file_keeps_a_lease_until_it_expires() {
        let entry = CachedEntry {
            key: "/n/config".to_owned(),
            value: "{}".to_owned(),
            revision: 7,
            created: 3,
            expires: true,
        };
        let last = Cached { entries: vec![entry], revision: Revision(9) };
        let view =
            View::new(last.clone(), "etcd /n/".to_owned(), 1000, Some(Duration::from_secs(60)));
        let read: View = serde_json::from_str(&serde_json::to_string(&view).unwrap()).unwrap();
        assert_eq!(read, view);
        let left = |now| read.left(now).map(|left| left.as_secs());
        assert_eq!([1000, 1059, 1060, 9999, 999].map(left), [60, 1, 0, 0, 0].map(Some));
        assert_eq!(read.cached(), last);
        assert_eq!(View::new(last, String::new(), 1000, None).left(u64::MAX), None);
    }
}
