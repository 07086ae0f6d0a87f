// SPDX-License-Identifier: Apache-2.0
//! The interface of every store.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use crate::{Result, limit};

/// The future of an asynchronous method, boxed so that a store can be chosen at run time.
///
/// A write may be carried out although its future was dropped.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A point in the history of a store. Each change has its own, and later changes have greater ones.
///
/// Revisions of different stores, or of different databases, cannot be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    /// Revision of the last change. A compare-and-swap compares it.
    pub revision: Revision,
    /// Revision of the creation. All nodes use it to agree on which entry is older.
    pub created: Revision,
    /// Whether the entry has a time to live and is deleted if it is not refreshed. The remaining time is not included,
    /// because etcd needs another request for it.
    pub expires: bool,
    /// Minimum length of a value that exceeds [`max_value`](crate::limit::max_value). `value` is empty then.
    pub oversized: Option<u64>,
}

impl Entry {
    /// Drops a value that exceeds the limit, and shortens such a key.
    pub(crate) fn bounded(mut self) -> Self {
        self.key = limit::shorten_key(self.key);
        if self.value.len() > limit::max_value(&self.key) {
            self.oversized = Some(self.value.len() as u64);
            self.value = Vec::new();
        }
        self
    }

    /// Explains why the value was dropped, if it was.
    pub fn too_large(&self) -> Option<String> {
        let length = self.oversized?;
        let limit = limit::max_value(&self.key);
        Some(format!("its value has at least {length} bytes; the limit is {limit}"))
    }
}

/// All entries under a prefix at one revision, ordered by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub entries: Vec<Entry>,
    /// A watch that starts here misses nothing.
    pub revision: Revision,
}

/// A change under a watched prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Created or changed. The value may be the same as before.
    Put(Entry),
    /// Deleted or expired.
    Deleted { key: String, revision: Revision },
}

impl Event {
    pub fn key(&self) -> &str {
        match self {
            Event::Put(entry) => &entry.key,
            Event::Deleted { key, .. } => key,
        }
    }

    pub fn revision(&self) -> Revision {
        match self {
            Event::Put(entry) => entry.revision,
            Event::Deleted { revision, .. } => *revision,
        }
    }
}

/// A report of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// All changes up to `revision` that were not reported before, oldest first. The list is empty if the store only
    /// reports its revision, or if the watch works again after an error.
    Changes { events: Vec<Event>, revision: Revision },
    /// The store no longer has the next changes, or its database was replaced. The watch has ended: list again, and
    /// watch from the revision of the list.
    Compacted,
}

/// The result of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// The write is durable and has this revision.
    Done(Revision),
    /// Nothing was written, because the condition does not hold. Contains the present entry, if there is one.
    Conflict(Option<Entry>),
}

impl WriteResult {
    pub fn is_done(&self) -> bool {
        matches!(self, WriteResult::Done(_))
    }

    /// Returns the present entry that caused the conflict.
    pub fn present(&self) -> Option<&Entry> {
        match self {
            WriteResult::Done(_) => None,
            WriteResult::Conflict(present) => present.as_ref(),
        }
    }
}

/// A key-value store.
///
/// The store counts times to live, with a resolution of at least one second. An entry never lives shorter than asked
/// for. All writes except [`refresh_ttl`](Store::refresh_ttl) replace the time to live: without one, the entry stays.
///
/// The size of answers is limited, see [`limit`]. A list that exceeds the limits fails.
///
/// After [`Error::Uncertain`](crate::Error::Uncertain) a write may have been carried out: list to find out.
pub trait Store: fmt::Debug + Send + Sync {
    /// Returns the entry of a key, if there is one.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Option<Entry>>;

    /// Lists all entries whose keys start with `prefix`, as of one revision.
    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Snapshot>;

    /// Watches entries whose keys start with `prefix`, for changes after `after`.
    ///
    /// The first request is made by the first call of [`Watch::next`].
    fn watch(&self, prefix: &str, after: Revision) -> Box<dyn Watch>;

    /// Creates an entry if its key is free.
    fn create<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        ttl: Option<Duration>,
    ) -> BoxFuture<'a, WriteResult>;

    /// Replaces the value and the time to live if the entry has not changed since `expected`.
    fn compare_and_swap<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        expected: Revision,
        ttl: Option<Duration>,
    ) -> BoxFuture<'a, WriteResult>;

    /// Restarts the time to live if the entry has not changed since `expected`. The revision stays the same, and watches
    /// report nothing. An entry without a time to live stays as it is.
    fn refresh_ttl<'a>(&'a self, key: &'a str, expected: Revision) -> BoxFuture<'a, WriteResult>;

    /// Deletes an entry, if `expected` is given only if it has not changed since. Deleting an entry that does not exist
    /// is [`WriteResult::Done`].
    fn delete<'a>(&'a self, key: &'a str, expected: Option<Revision>)
    -> BoxFuture<'a, WriteResult>;

    /// Makes later requests use new connections. Call this when the addresses of the machine may have changed, because
    /// no answer arrives over a connection whose address is gone.
    fn reconnect(&self) {}
}

/// A watch of a prefix.
pub trait Watch: fmt::Debug + Send {
    /// Waits for changes. The wait can be cancelled without losing changes.
    ///
    /// After an error the next call continues from the same revision, after a delay that grows with every failure.
    fn next(&mut self) -> BoxFuture<'_, Watched>;
}
