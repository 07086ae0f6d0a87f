// SPDX-License-Identifier: Apache-2.0
//! What the suite needs of a store under test, and what several of its tests do.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use store::{Entry, Event, Revision, Store, Watch, Watched, WriteResult};
use tokio::time::timeout;

/// Nothing takes this long unless it never ends.
pub const LONG: Duration = Duration::from_secs(30);

pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A store under test.
pub trait Lab {
    /// One more handle on it, that shares nothing with the others, as in another process.
    fn open(&self) -> Later<'_, Arc<dyn Store>>;

    /// Makes it forget all changes up to now.
    fn compact(&self) -> Later<'_, ()>;

    /// The length of the longest value that the suite may write.
    fn longest_value(&self) -> usize {
        store::limit::MAX_VALUE
    }

    /// Keys and values under a prefix, as another program sees them.
    fn witness(&self, prefix: &str) -> Vec<(String, String)>;
}

/// Runs a test to its end as the agent does, in one thread.
pub fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// The revision of a write that must have been done.
#[track_caller]
pub fn done(written: store::Result<WriteResult>) -> Revision {
    match written {
        Ok(WriteResult::Done(revision)) => revision,
        other => panic!("not written: {other:?}"),
    }
}

/// What was in the way of a write.
#[track_caller]
pub fn conflict(written: store::Result<WriteResult>) -> Option<Entry> {
    match written {
        Ok(WriteResult::Conflict(present)) => present,
        other => panic!("no conflict: {other:?}"),
    }
}

/// The next changes, which must come.
pub async fn changes(watch: &mut dyn Watch) -> (Vec<Event>, Revision) {
    match timeout(LONG, watch.next()).await {
        Ok(Ok(Watched::Changes { events, revision })) => (events, revision),
        other => panic!("no changes: {other:?}"),
    }
}

/// The next so many events.
pub async fn events(watch: &mut dyn Watch, count: usize) -> Vec<Event> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(changes(watch).await.0);
    }
    all
}

/// What a watch has made of a list, as every user of a store keeps it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct View(pub BTreeMap<String, (Vec<u8>, Revision)>);

impl View {
    pub async fn list(store: &dyn Store, prefix: &str) -> (Self, Revision) {
        let snapshot = store.list(prefix).await.unwrap();
        let entries = snapshot.entries.into_iter();
        let view = entries.map(|entry| (entry.key, (entry.value, entry.revision))).collect();
        (Self(view), snapshot.revision)
    }

    /// Events must come in order, and each but once.
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
                    assert!(self.0.remove(&key).is_some(), "{key} was not there");
                }
            }
        }
        last
    }

    /// Follows a watch until everything up to a revision has been seen.
    pub async fn follow(&mut self, watch: &mut dyn Watch, from: Revision, until: Revision) {
        let mut at = from;
        while at < until {
            let (events, _) = changes(watch).await;
            at = self.apply(events, at);
        }
    }
}
