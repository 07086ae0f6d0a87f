// SPDX-License-Identifier: Apache-2.0
//! The wake file beside the database, through which a writer wakes the watches of all processes.
//!
//! The files of the database itself cannot be used, because they change before a commit is visible. The wake file is
//! written after the commit. A writer that is killed in between wakes no watch, so a watch also checks a moment after
//! the database was written. The wake file is also the lock for creating or replacing the database.

use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::schema;

/// Maximum delay between two checks of a watch with inotify.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Delay of a check after a write to the database that was not followed by a wake-up.
const MISSED_WAKE_DELAY: Duration = Duration::from_secs(1);

/// Delay between two checks without inotify.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Wakes the watches of all processes.
#[derive(Debug)]
pub(super) struct Notifier {
    file: File,
    path: PathBuf,
}

impl Notifier {
    pub(super) fn open(database: &Path) -> io::Result<Self> {
        let path = beside(database, "-wake");
        Ok(Self { file: schema::open_private(&path)?, path })
    }

    pub(super) fn notify(&mut self) {
        // Watches use the new file if this one was removed.
        if !is_at(&self.file, &self.path)
            && let Ok(file) = schema::open_private(&self.path)
        {
            self.file = file;
        }
        // If this fails, for example on a full disk, watches check a little later.
        let _ = self.file.write_at(b".", 0);
    }
}

/// The lock for creating or replacing the file of the database. Dropping it releases the lock.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "closing the file releases the lock")] File);

impl Lock {
    /// Waits for the lock.
    pub(super) fn take(database: &Path) -> io::Result<Self> {
        Self::take_with(database, |file| file.lock().map(|()| true))
            .and_then(|lock| lock.ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock)))
    }

    /// Returns `None` if another process has the lock.
    pub(super) fn try_take(database: &Path) -> io::Result<Option<Self>> {
        Self::take_with(database, |file| match file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        })
    }

    fn take_with(
        database: &Path,
        lock: impl Fn(&File) -> io::Result<bool>,
    ) -> io::Result<Option<Self>> {
        let path = beside(database, "-wake");
        loop {
            let file = schema::open_private(&path)?;
            if !lock(&file)? {
                return Ok(None);
            }
            // If this file was removed in the meantime, other processes lock another one.
            if is_at(&file, &path) {
                return Ok(Some(Self(file)));
            }
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let identity = |file: Metadata| (file.dev(), file.ino());
    let (opened, found) = (file.metadata().map(identity), fs::metadata(path).map(identity));
    matches!((opened, found), (Ok(opened), Ok(found)) if opened == found)
}

/// Waits for changes of the database, with inotify if possible.
#[derive(Debug)]
pub(super) struct Listener(Option<Inotify>);

#[derive(Debug)]
struct Inotify {
    fd: AsyncFd<OwnedFd>,
    /// inotify's number for the wake file.
    wake: i32,
    /// Whether a watched file was removed or replaced.
    is_stale: AtomicBool,
}

/// The last inotify event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// The database was written; a wake-up follows.
    Database,
    /// A writer has committed, or a file was removed or replaced.
    Wake,
}

impl Listener {
    /// Starts to watch the files. Without inotify, for example because the system has no more watches, it polls.
    pub(super) fn open(database: &Path) -> Self {
        let inotify = Inotify::open(database);
        // The next read reports a store that was removed.
        if let Err(cause) = &inotify
            && cause.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(database = %database.display(), %cause, "inotify unavailable, polling the store");
        }
        Self(inotify.ok())
    }

    /// Returns whether the watched files are no longer those of the store.
    pub(super) fn is_stale(&self) -> bool {
        self.0.as_ref().is_some_and(|inotify| inotify.is_stale.load(Relaxed))
    }

    /// Returns the time of the next check, if the next entry expires after `due`.
    pub(super) fn next_check(&self, due: Option<Duration>) -> Instant {
        Instant::now() + check_delay(self.0.is_some(), due)
    }

    /// Waits until the database may have changed, at most until `until`. The wait can be cancelled: what it has learned
    /// is in `until`.
    pub(super) async fn wait(&self, until: &mut Instant) {
        let Some(inotify) = &self.0 else { return sleep_until(*until).await };
        while let Ok(Change::Database) = timeout_at(*until, inotify.next_change()).await {
            *until = (*until).min(Instant::now() + MISSED_WAKE_DELAY);
        }
    }
}

impl Inotify {
    fn open(database: &Path) -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let place = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::MODIFY;
        let wake = inotify::add_watch(&fd, beside(database, "-wake"), place)?;
        inotify::add_watch(&fd, database, place)?;
        // Moving the directory changes none of the files in it.
        let directory = database.parent().filter(|path| !path.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        inotify::add_watch(&fd, directory, WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR)?;
        // In write-ahead mode, writes go to the log.
        let _ = inotify::add_watch(&fd, beside(database, "-wal"), WatchFlags::MODIFY);
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that do not own their file descriptor"
        )]
        let fd = AsyncFd::new(fd)?;
        Ok(Self { fd, wake, is_stale: AtomicBool::new(false) })
    }

    async fn next_change(&self) -> Change {
        let Ok(mut ready) = self.fd.readable().await else { return Change::Wake };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.fd.get_ref(), &mut buffer);
        let mut change = Change::Database;
        // Read everything, or the next wait would end at once.
        let mut next =
            || ready.try_io(|_| Ok(reader.next().map(|one| (one.wd(), one.events()))?));
        while let Ok(Ok((watch, events))) = next() {
            let is_write = events == ReadFlags::MODIFY;
            if !is_write {
                self.is_stale.store(true, Relaxed);
            }
            if !is_write || watch == self.wake {
                change = Change::Wake;
            }
        }
        change
    }
}

fn check_delay(has_inotify: bool, due: Option<Duration>) -> Duration {
    let longest = if has_inotify { CHECK_INTERVAL } else { POLL_INTERVAL };
    // The clock has a resolution of one millisecond: an entry is not expired before.
    due.map_or(longest, |due| longest.min(due + Duration::from_millis(1)))
}

pub(super) fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_happens_when_an_entry_expires() {
        let secs = Duration::from_secs;
        assert_eq!(check_delay(true, None), CHECK_INTERVAL);
        assert_eq!(check_delay(false, Some(secs(60))), POLL_INTERVAL);
        assert_eq!(check_delay(true, Some(Duration::ZERO)), Duration::from_millis(1));
        assert_eq!(check_delay(true, Some(secs(90))), CHECK_INTERVAL);
    }

    #[test]
    fn wake_file_is_beside_the_database() {
        assert_eq!(beside(Path::new("/a/b.db"), "-wake"), Path::new("/a/b.db-wake"));
    }
}
