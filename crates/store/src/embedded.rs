// SPDX-License-Identifier: Apache-2.0
//! A store in one file, shared by the processes of one machine.
//!
//! The file is an SQLite database with a rollback journal. Every write is on disk before it is acknowledged, so a
//! process may be killed and the machine may lose power at any moment. Any number of processes can open it; there is
//! no server. The next reader removes expired entries, and writers drop old events. A writer wakes watches in all
//! processes through a second file, `<file>-wake`.
//!
//! The write-ahead mode of SQLite is not used, although a commit needs one `fsync` there and three here. Its index is a
//! mapped file: a program that truncates it kills all processes that have it open with a bus error.
//!
//! A file that is deleted while a process has it open is restored by that process. If the file is replaced, all
//! processes switch to the new one. A damaged file is replaced by its backup, `<file>.backup`, which is written one
//! second after a change and at most every ten seconds.
//!
//! Times to live run on a clock that counts while the machine runs or sleeps and that does not depend on the wall
//! clock. After a boot they start again. The file must be on a local disk, because locks over a network are unreliable.

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

/// An open store. Clones share it.
#[derive(Clone, Debug)]
pub struct Embedded {
    thread: Arc<StoreThread>,
    path: PathBuf,
}

impl Embedded {
    /// Opens the store in this file. Creates the file and its directory if they do not exist.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let thread = Arc::new(StoreThread::start(path.clone()).await?);
        Ok(Self { thread, path })
    }

    /// Drops the history of changes, so that a watch from an earlier revision ends with
    /// [`Compacted`](crate::Watched::Compacted). Old changes are also dropped without this.
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
