// SPDX-License-Identifier: Apache-2.0
//! The file beside the database through which who writes wakes who watches, in any process.
//!
//! The database's own files do not serve: they change before a commit can be seen. This one is
//! written after it. Who is killed between the two wakes nobody, so a watch looks a moment after the
//! database's log was written to, too.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
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
pub struct Bell(File);

impl Bell {
    pub fn open(database: &Path) -> io::Result<Self> {
        schema::private(&beside(database, "-wake")).map(Self)
    }

    /// While this is held nobody else opens the database.
    pub fn lock(&self) -> io::Result<()> {
        self.0.lock()
    }

    pub fn unlock(&self) -> io::Result<()> {
        self.0.unlock()
    }

    pub fn ring(&self) {
        // Where it fails, as on a full disk, watches look by themselves a little later.
        let _ = self.0.write_at(b".", 0);
    }
}

/// The side of who watches.
#[derive(Debug)]
pub struct Ear(Option<Listening>);

#[derive(Debug)]
struct Listening {
    fd: AsyncFd<OwnedFd>,
    /// Which of the watches is that of the log.
    log: i32,
}

/// What was heard last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// Somebody writes, and will ring.
    Write,
    Ring,
}

impl Ear {
    /// Listens from now on. Where the system has no more room for that, it will be deaf.
    pub fn open(database: &Path) -> Self {
        let listening = Listening::open(database);
        if let Err(cause) = &listening {
            tracing::warn!(database = %database.display(), %cause, "no inotify: looking often instead");
        }
        Self(listening.ok())
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
        inotify::add_watch(&fd, beside(database, "-wake"), WatchFlags::MODIFY)?;
        // Whether it is removed: that is no change of what is in it.
        inotify::add_watch(&fd, database, WatchFlags::ATTRIB | WatchFlags::MOVE_SELF)?;
        let log = inotify::add_watch(&fd, beside(database, "-wal"), WatchFlags::MODIFY)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that do not own what they name"
        )]
        let fd = AsyncFd::new(fd)?;
        Ok(Self { fd, log })
    }

    async fn heard(&self) -> Heard {
        let Ok(mut ready) = self.fd.readable().await else { return Heard::Ring };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.fd.get_ref(), &mut buffer);
        let mut heard = Heard::Write;
        // Until there is no more, or the next wait would end at once.
        while let Ok(Ok(watch)) = ready.try_io(|_| Ok(reader.next().map(|event| event.wd())?)) {
            if watch != self.log {
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

fn beside(database: &Path, ending: &str) -> PathBuf {
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
