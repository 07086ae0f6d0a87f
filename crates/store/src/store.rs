// SPDX-License-Identifier: Apache-2.0
//! What a store is, whichever one it is.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use crate::{Result, limit};

/// What an asynchronous method of a store gives. It is boxed so that a `dyn Store` can be chosen at
/// run time.
///
/// A write may be done although its answer is dropped: whoever gives up waiting does not know.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A moment in a store's history. Every change has one, later changes have greater ones.
///
/// Revisions of different stores, and of different databases, have nothing to do with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A key and its value at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    /// Of its last change: what a compare-and-swap compares with.
    pub revision: Revision,
    /// Of its creation: what everybody agrees on who came first by. A Kubernetes node's is the
    /// second it was made in.
    pub created: Revision,
    /// Whether it has a time to live and goes away unless it is kept. How much of it is left is
    /// not said, as etcd would have to be asked for each key.
    pub expires: bool,
    /// The least length of a value that exceeds [`MAX_VALUE`](crate::limit::MAX_VALUE). `value` is then
    /// empty.
    pub oversized: Option<u64>,
}

impl Entry {
    /// Drops a value, and shortens a key, that exceeds its limit.
    pub(crate) fn bounded(mut self) -> Self {
        self.key = limit::key(self.key);
        if self.value.len() > limit::MAX_VALUE {
            self.oversized = Some(self.value.len() as u64);
            self.value = Vec::new();
        }
        self
    }

    /// Explains why the value is missing, if it is.
    pub fn too_large(&self) -> Option<String> {
        let length = self.oversized?;
        Some(format!("its value has at least {length} bytes; the limit is {}", limit::MAX_VALUE))
    }
}

/// All entries under a prefix, in the order of their keys, and the moment at which that was all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub entries: Vec<Entry>,
    /// A watch from here misses nothing.
    pub revision: Revision,
}

/// A change under a watched prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Created or changed, which may mean to the same value.
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

/// What a watch has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// All changes up to `revision` that were not reported before, oldest first. There may be none:
    /// then the store only says how far it has come, or after an error that it goes on.
    Changes { events: Vec<Event>, revision: Revision },
    /// The store no longer has the changes that come next, or it has another database than before.
    /// The watch is at its end: list again, compare, and watch from the list's revision.
    Compacted,
}

/// What has become of a write that was conditional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// It is done, and durable, as of this revision.
    Done(Revision),
    /// Nothing was done, because this is there (or nothing is) and not what was expected.
    Conflict(Option<Entry>),
}

impl WriteResult {
    pub fn is_done(&self) -> bool {
        matches!(self, WriteResult::Done(_))
    }

    /// What was there instead of what was expected.
    pub fn present(&self) -> Option<&Entry> {
        match self {
            WriteResult::Done(_) => None,
            WriteResult::Conflict(present) => present.as_ref(),
        }
    }
}

/// A place for entries.
///
/// A time to live is counted by the store, in whole seconds or finer, and is never shorter than
/// asked for. A store whose entries live as long as something else (a Kubernetes node) may ignore
/// it. Writes other than [`refresh_ttl`](Store::refresh_ttl) replace it: without one the entry stays for ever.
///
/// What it hands out is bounded, see [`limit`]: a list that exceeds the limits is refused.
///
/// On [`Error::Uncertain`](crate::Error::Uncertain) a write may have happened: list, and look.
pub trait Store: fmt::Debug + Send + Sync {
    /// The entry under a key, if there is one.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Option<Entry>>;

    /// All entries whose keys start with `prefix`, of one and the same moment.
    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Snapshot>;

    /// The changes after `after` to entries whose keys start with `prefix`.
    ///
    /// Nothing is asked of the store before the first [`Watch::next`].
    fn watch(&self, prefix: &str, after: Revision) -> Box<dyn Watch>;

    /// Creates the entry if there is none under its key.
    fn create<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        ttl: Option<Duration>,
    ) -> BoxFuture<'a, WriteResult>;

    /// Replaces value and time to live if the entry has not changed since `expected`.
    fn compare_and_swap<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        expected: Revision,
        ttl: Option<Duration>,
    ) -> BoxFuture<'a, WriteResult>;

    /// Starts the entry's time to live anew, if the entry has not changed since `expected`. The
    /// entry's revision stays, and nobody who watches is told. An entry for ever is left as it is.
    fn refresh_ttl<'a>(&'a self, key: &'a str, expected: Revision) -> BoxFuture<'a, WriteResult>;

    /// Deletes the entry, if given only when it has not changed since `expected`. An entry that
    /// is not there is [`WriteResult::Done`].
    fn delete<'a>(&'a self, key: &'a str, expected: Option<Revision>)
    -> BoxFuture<'a, WriteResult>;

    /// This machine may have other addresses: what is asked next goes over connections that are made
    /// then. Over one whose address is gone no answer would come.
    fn reconnect(&self) {}
}

/// Changes as they happen.
pub trait Watch: fmt::Debug + Send {
    /// Waits for changes. The wait can be given up and taken up again without losing any.
    ///
    /// An error is not the end: the next call goes on from where this one stopped, after a pause
    /// that grows with every failure in a row.
    fn next(&mut self) -> BoxFuture<'_, Watched>;
}
