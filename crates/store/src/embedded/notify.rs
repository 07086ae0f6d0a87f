// SPDX-License-Identifier: Apache-2.0
//! The file beside the database through which who writes wakes who watches, in any process.
//!
//! The database's own files do not serve: they change before a commit can be seen. This one is
//! written after it. Who is killed between the two wakes nobody, so a watch looks a moment after the
//! database was written to, too. It is also the lock of whoever creates or replaces the database.

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

/// How long a watch goes without looking: one that is woken, one that has heard somebody write and not ring,
/// and one that is deaf.
const WOKEN: Duration = Duration::from_secs(60);
const UNRUNG: Duration = Duration::from_secs(1);
const BLIND: Duration = Duration::from_millis(100);

/// The side of who writes.
#[derive(Debug)]
pub struct Notifier {
    file: File,
    path: PathBuf,
}

impl Notifier {
    pub fn open(database: &Path) -> io::Result<Self> {
        let path = beside(database, "-wake");
        Ok(Self { file: schema::private(&path)?, path })
    }

    pub fn notify(&mut self) {
        // Nobody watches a file that was removed.
        if !is_at(&self.file, &self.path)
            && let Ok(file) = schema::private(&self.path)
        {
            self.file = file;
        }
        // Where it fails, as on a full disk, watches look by themselves a little later.
        let _ = self.file.write_at(b".", 0);
    }
}

/// The right to create or replace the database's file. It ends when it is dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "it unlocks when it is closed")] File);

impl Lock {
    /// Waits for it.
    pub fn take(database: &Path) -> io::Result<Self> {
        Self::take_with(database, |file| file.lock().map(|()| true))
            .and_then(|lock| lock.ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock)))
    }

    /// None if another process has it.
    pub fn try_take(database: &Path) -> io::Result<Option<Self>> {
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
            let file = schema::private(&path)?;
            if !lock(&file)? {
                return Ok(None);
            }
            // Others lock another file if this one was removed meanwhile.
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

/// The side of who watches.
#[derive(Debug)]
pub struct Listener(Option<Listening>);

#[derive(Debug)]
struct Listening {
    fd: AsyncFd<OwnedFd>,
    /// The watch of the file that wakes.
    wake: i32,
    /// A file that is listened to was removed or replaced.
    is_stale: AtomicBool,
}

/// What was heard last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// Somebody writes, and will ring.
    Write,
    Ring,
}

impl Listener {
    /// Listens from now on. Where the system has no more room for that, it will be deaf.
    pub fn open(database: &Path) -> Self {
        let listening = Listening::open(database);
        // A store that was removed is reported by whoever looks.
        if let Err(cause) = &listening
            && cause.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(database = %database.display(), %cause, "no inotify: looking often instead");
        }
        Self(listening.ok())
    }

    /// Whether it listens to files that are no longer the store's.
    pub fn is_stale(&self) -> bool {
        self.0.as_ref().is_some_and(|listening| listening.is_stale.load(Relaxed))
    }

    /// Until when to wait, if something is due after so long.
    pub fn rest(&self, due: Option<Duration>) -> Instant {
        Instant::now() + patience(self.0.is_some(), due)
    }

    /// Returns when there may be something to see, at the latest then. It can be given up and taken up
    /// again: what it has heard is in the time.
    pub async fn wait(&self, until: &mut Instant) {
        let Some(listening) = &self.0 else { return sleep_until(*until).await };
        while let Ok(Heard::Write) = timeout_at(*until, listening.heard()).await {
            *until = (*until).min(Instant::now() + UNRUNG);
        }
    }
}

impl Listening {
    fn open(database: &Path) -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let place = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::MODIFY;
        let wake = inotify::add_watch(&fd, beside(database, "-wake"), place)?;
        inotify::add_watch(&fd, database, place)?;
        // In write-ahead mode what is written is in the log.
        let _ = inotify::add_watch(&fd, beside(database, "-wal"), WatchFlags::MODIFY);
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that do not own what they name"
        )]
        let fd = AsyncFd::new(fd)?;
        Ok(Self { fd, wake, is_stale: AtomicBool::new(false) })
    }

    async fn heard(&self) -> Heard {
        let Ok(mut ready) = self.fd.readable().await else { return Heard::Ring };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.fd.get_ref(), &mut buffer);
        let mut heard = Heard::Write;
        // Until there is no more, or the next wait would end at once.
        let mut next =
            || ready.try_io(|_| Ok(reader.next().map(|one| (one.wd(), one.events()))?));
        while let Ok(Ok((watch, events))) = next() {
            let is_change = events == ReadFlags::MODIFY;
            if !is_change {
                self.is_stale.store(true, Relaxed);
            }
            if !is_change || watch == self.wake {
                heard = Heard::Ring;
            }
        }
        heard
    }
}

fn patience(can_hear: bool, due: Option<Duration>) -> Duration {
    let longest = if can_hear { WOKEN } else { BLIND };
    // One millisecond is the clock's grain: a moment before it is due there is nothing to see.
    due.map_or(longest, |due| longest.min(due + Duration::from_millis(1)))
}

pub fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_when_something_is_due() {
        let secs = Duration::from_secs;
        assert_eq!(patience(true, None), WOKEN);
        assert_eq!(patience(false, Some(secs(60))), BLIND);
        assert_eq!(patience(true, Some(Duration::ZERO)), Duration::from_millis(1));
        assert_eq!(patience(true, Some(secs(90))), WOKEN);
    }

    #[test]
    fn file_stands_beside_the_database() {
        assert_eq!(beside(Path::new("/a/b.db"), "-wake"), Path::new("/a/b.db-wake"));
    }
}
