// SPDX-License-Identifier: Apache-2.0
//! A store under test, and helpers that several tests share.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use store::{Entry, Event, Revision, Store, Watch, Watched, WriteResult};
use tokio::time::timeout;

/// Deadline for everything that is expected to happen.
pub const LONG: Duration = Duration::from_secs(30);

pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A store under test.
pub trait Lab {
    /// Opens another handle, which shares nothing with the others, as in another process.
    fn open(&self) -> LocalFuture<'_, Arc<dyn Store>>;

    /// Drops the history of the store.
    fn compact(&self) -> LocalFuture<'_, ()>;

    /// Returns keys and values under a prefix, read by another program.
    fn external_entries(&self, prefix: &str) -> Vec<(String, String)>;
}

/// Runs a test in one thread, as the agent does.
pub fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Returns the revision of a write that must have succeeded.
#[track_caller]
pub fn done(written: store::Result<WriteResult>) -> Revision {
    match written {
        Ok(WriteResult::Done(revision)) => revision,
        other => panic!("not written: {other:?}"),
    }
}

/// Returns the present entry of a write that must have failed.
#[track_caller]
pub fn conflict(written: store::Result<WriteResult>) -> Option<Entry> {
    match written {
        Ok(WriteResult::Conflict(present)) => present,
        other => panic!("no conflict: {other:?}"),
    }
}

/// Waits for the next changes.
pub async fn changes(watch: &mut dyn Watch) -> (Vec<Event>, Revision) {
    match timeout(LONG, watch.next()).await {
        Ok(Ok(Watched::Changes { events, revision })) => (events, revision),
        other => panic!("no changes: {other:?}"),
    }
}

/// Waits for the next `count` events.
pub async fn events(watch: &mut dyn Watch, count: usize) -> Vec<Event> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(changes(watch).await.0);
    }
    all
}

/// A copy of the entries, kept up to date with the events of a watch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct View(pub BTreeMap<String, (Vec<u8>, Revision)>);

impl View {
    pub async fn list(store: &dyn Store, prefix: &str) -> (Self, Revision) {
        let snapshot = store.list(prefix).await.unwrap();
        let entries = snapshot.entries.into_iter();
        let view = entries.map(|entry| (entry.key, (entry.value, entry.revision))).collect();
        (Self(view), snapshot.revision)
    }

    /// Applies events, which must come in order and only once. Returns the revision of the last one.
    #[track_caller]
    pub fn apply(&mut self, events: Vec<Event>, after: Revision) -> Revision {
        let mut last = after;
        for event in events {
            assert!(event.revision() > last, "{event:?} came after {last}");
            last = event.revision();
            match event {
                Event::Put(entry) => {
                    self.0.insert(entry.key, (entry.value, entry.revision));
                }
                Event::Deleted { key, .. } => {
                    assert!(self.0.remove(&key).is_some(), "{key} is unknown");
                }
            }
        }
        last
    }

    /// Follows a watch until it has reached a revision.
    pub async fn follow(&mut self, watch: &mut dyn Watch, from: Revision, until: Revision) {
        let mut at = from;
        while at < until {
            let (events, _) = changes(watch).await;
            at = self.apply(events, at);
        }
    }
}
