// SPDX-License-Identifier: Apache-2.0
//! A store in one file, for the processes of one machine.
//!
//! The file is SQLite's, with a rollback journal, and every write is on disk before it is acknowledged:
//! a process can be killed at any moment, and the machine lose its power. Any number of processes may
//! have it open. Nobody serves it: entries whose time is over are removed by whoever looks next, and
//! old changes are forgotten by whoever writes. Who watches is woken through a second file beside
//! it, `<file>-wake`.
//!
//! Not in write-ahead mode, though a commit takes one `fsync` there and three here: the index of that mode
//! is a mapped file, and whoever truncates it ends all processes that have it open with a bus error.
//!
//! A file that is deleted while a process has it open is restored from there; one that is replaced is gone
//! over to. A damaged file is replaced by its backup, `<file>.backup`, which is written a second after a
//! change and at most every ten seconds.
//!
//! Time to live is counted while the machine runs (also asleep) and does not depend on the wall clock;
//! a boot of the machine starts it anew. The file must lie on a disk of this machine: locks over a network
//! cannot be relied on.

mod clock;
mod copy;
mod database;
mod notify;
mod schema;
mod thread;
mod transaction;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use self::thread::StoreThread;
use self::watch::Watcher;
use crate::{BoxFuture, Entry, Result, Revision, Snapshot, Store, Watch, WriteResult};

/// An open file. Clones share it.
#[derive(Clone, Debug)]
pub struct Embedded {
    thread: Arc<StoreThread>,
    path: PathBuf,
}

impl Embedded {
    /// Opens the store in this file, or makes it, with its directory.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let thread = Arc::new(StoreThread::start(path.clone()).await?);
        Ok(Self { thread, path })
    }

    /// Forgets all changes up to now, so that a watch from an earlier revision ends as
    /// [`Compacted`](crate::Watched::Compacted). Old ones are forgotten without this, too.
    pub async fn compact(&self) -> Result<Revision> {
        self.thread.run(|database| database.compact()).await
    }
}

impl Store for Embedded {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Option<Entry>> {
        let key = key.to_owned();
        Box::pin(self.thread.run(move |database| database.get(&key)))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Snapshot> {
        let prefix = prefix.to_owned();
        Box::pin(self.thread.run(move |database| database.list(&prefix)))
    }

    fn watch(&self, prefix: &str, after: Revision) -> Box<dyn Watch> {
        let thread = Arc::clone(&self.thread);
        Box::new(Watcher::new(thread, &self.path, prefix.to_owned(), after))
    }

    fn create<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        ttl: Option<Duration>,
    ) -> BoxFuture<'a, WriteResult> {
        let (key, value) = (key.to_owned(), value.to_owned());
        Box::pin(self.thread.run(move |database| database.create(&key, &value, ttl)))
    }

    fn compare_and_swap<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        expected: Revision,
        ttl: Option<Duration>,
    ) -> BoxFuture<'a, WriteResult> {
        let (key, value) = (key.to_owned(), value.to_owned());
        Box::pin(
            self.thread.run(move |database| database.compare_and_swap(&key, &value, expected, ttl)),
        )
    }

    fn refresh_ttl<'a>(&'a self, key: &'a str, expected: Revision) -> BoxFuture<'a, WriteResult> {
        let key = key.to_owned();
        Box::pin(self.thread.run(move |database| database.refresh_ttl(&key, expected)))
    }

    fn delete<'a>(
        &'a self,
        key: &'a str,
        expected: Option<Revision>,
    ) -> BoxFuture<'a, WriteResult> {
        let key = key.to_owned();
        Box::pin(self.thread.run(move |database| database.delete(&key, expected)))
    }
}
