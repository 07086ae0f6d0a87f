// SPDX-License-Identifier: Apache-2.0
//! The network as it was last seen, for while the store does not answer; in a file as well, for an agent that is
//! started then.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use store::Revision;

use crate::lease::{Cached, CachedEntry, HeldLease, Snapshot, TIME_TO_LIVE};
use crate::managed_file;
use crate::run::Worker;
use crate::settings::Settings;

/// What has changed may not be all: our own lease is heard of a moment after it was written.
const SETTLED: Duration = Duration::from_secs(1);

/// With thousands of nodes the file is large, and some of them always come or go.
const WRITE_EVERY: Duration = Duration::from_secs(30);

/// Largest file that is read: all entries of a store, and as much again for quoting.
const LARGEST: u64 = 2 * store::limit::MAX_TOTAL as u64;

/// What goes with the lease and with what was last seen.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// When the store takes the lease back unless it is renewed; none where it does not, or where nothing is held.
    lease_until: Option<Instant>,
    /// The first answer of a store that was away.
    pub(super) listed: Option<Snapshot>,
    write_at: Option<Instant>,
    written: Option<Instant>,
}

/// The file. Times are seconds since 1970.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct View {
    /// Revisions of another one have nothing to do with these.
    store: String,
    written: u64,
    /// None where the lease has no end.
    lease_until: Option<u64>,
    revision: u64,
    entries: Vec<CachedEntry>,
}

impl Worker {
    /// The lease was written or renewed just now.
    pub(super) fn lease_is_whole(&mut self, held: &HeldLease) {
        let now = Instant::now();
        self.memory.lease_until = (!held.is_reservation).then(|| now + TIME_TO_LIVE);
        self.memory.write_at.get_or_insert(now + SETTLED);
    }

    /// When the lease is to be renewed.
    pub(super) fn renewal(&self, held: &HeldLease) -> Option<Instant> {
        let until = self.memory.lease_until.filter(|_| !held.is_reservation);
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        self.hub.set_lease_left(left);
        left.map(|left| Instant::now() + left.saturating_sub(self.settings.network.renew_margin))
    }

    /// Whether it is worth asking for what was last seen.
    pub(super) fn may_remember(&self) -> bool {
        self.held.is_some() || view_file(&self.settings).exists()
    }

    /// All that the store had, if the node can go on with it: its lease has not run out, and is of the network.
    pub(super) fn last_seen(&mut self) -> Option<Snapshot> {
        if self.in_force.is_none() {
            self.recall();
        }
        let (last, held) = (self.leases.last_known()?, self.held.as_ref()?);
        let is_good = |until: Instant| until > Instant::now();
        if !held.is_reservation && !self.memory.lease_until.is_some_and(is_good) {
            return None;
        }
        let is_of_another = self
            .choose_configuration(&last)
            .is_ok_and(|judged| !self.leases.may_keep(&judged.pools, &held.lease.subnets));
        (!is_of_another).then_some(last)
    }

    /// What the agent before this one has seen.
    fn recall(&mut self) {
        let file = view_file(&self.settings);
        let read = managed_file::read_at_most(&file, LARGEST).unwrap_or_else(|error| {
            tracing::warn!(%error, file = %file.display(), "ignored");
            None
        });
        let Some(view) = read.and_then(|text| serde_json::from_str::<View>(&text).ok()) else {
            return;
        };
        let left = view.left(now());
        let is_expired = left.is_some_and(|left| left.is_zero());
        if self.held.is_some() || is_expired || view.store != self.store_name() {
            return;
        }
        self.leases.import_cache(view.cached());
        let Some(held) = self.remembered() else { return };
        self.memory.lease_until = left.map(|left| Instant::now() + left);
        if self.settings.node.name.is_none() {
            self.set_name(held.name.clone());
        }
        self.held = Some(held);
    }

    fn store_name(&self) -> String {
        format!("{} {}", self.settings.store.name(), self.leases.id())
    }

    /// When the file is to be written, if it is.
    pub(super) fn view_is_due(&mut self) -> Option<Instant> {
        let Memory { write_at, written, .. } = &mut self.memory;
        if self.leases.take_changed() {
            write_at.get_or_insert(Instant::now() + SETTLED);
        }
        let earliest = written.map(|written| written + WRITE_EVERY);
        *write_at = write_at.map(|at| earliest.map_or(at, |earliest| at.max(earliest)));
        *write_at
    }

    pub(super) fn write_view(&mut self) {
        self.memory.write_at = None;
        self.memory.written = Some(Instant::now());
        let Some(last) = self.leases.export_cache() else { return };
        let left = self.memory.lease_until.map(|at| at.saturating_duration_since(Instant::now()));
        let view = View::new(last, self.store_name(), now(), left);
        let file = view_file(&self.settings);
        let text = serde_json::to_string(&view).unwrap_or_default();
        if let Err(error) = managed_file::replace_secret(&file, &text) {
            tracing::warn!(%error, file = %file.display(), "cannot be written");
        }
    }
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

    /// How long the lease is still good for; none where it has no end. With a clock that was set back nobody knows.
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

/// What was last seen, for this agent's network.
pub(crate) fn view_file(settings: &Settings) -> PathBuf {
    settings.node.state_dir.join(format!("{}.view", settings.node.owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_read_as_it_was_and_a_lease_only_while_it_lasts() {
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
