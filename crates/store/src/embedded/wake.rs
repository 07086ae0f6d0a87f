// SPDX-License-Identifier: Apache-2.0
//! The file beside the database through which who writes wakes who watches, in any process.
//!
//! The database's own files do not serve: they change before a commit can be seen. This one is
//! written after it. Who is killed between the two wakes nobody, so a watch looks now and then, too.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::schema;

/// How long a watch that can be woken, or cannot, goes without looking.
const WOKEN: Duration = Duration::from_secs(1);
const BLIND: Duration = Duration::from_millis(100);

/// The side of who writes.
#[derive(Debug)]
pub struct Bell(File);

impl Bell {
    pub fn open(database: &Path) -> io::Result<Self> {
        schema::private(&path_of(database)).map(Self)
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
pub struct Ear(Option<AsyncFd<OwnedFd>>);

impl Ear {
    /// Listens from now on. Where the system has no more room for that, it will be deaf.
    pub fn open(database: &Path) -> Self {
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that do not own what they name"
        )]
        let listen = || -> io::Result<AsyncFd<OwnedFd>> {
            let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            inotify::add_watch(&fd, path_of(database), WatchFlags::MODIFY)?;
            AsyncFd::new(fd)
        };
        let listening = listen();
        if let Err(cause) = &listening {
            tracing::warn!(database = %database.display(), %cause, "no inotify: looking often instead");
        }
        Self(listening.ok())
    }

    /// Until when to wait, if something is due after so long.
    pub fn rest(&self, due: Option<Duration>) -> Instant {
        Instant::now() + patience(self.0.is_some(), due)
    }

    /// Returns when there may be something to see, at the latest then.
    pub async fn wait(&self, until: Instant) {
        match &self.0 {
            Some(fd) => drop(timeout_at(until, heard(fd)).await),
            None => sleep_until(until).await,
        }
    }
}

async fn heard(fd: &AsyncFd<OwnedFd>) {
    let Ok(mut ready) = fd.readable().await else { return };
    let mut buffer = [0_u8; 4096];
    // What was heard does not matter. Until there is no more, or the next wait would end at once.
    while let Ok(Ok(_)) = ready.try_io(|fd| Ok(rustix::io::read(fd, &mut buffer)?)) {}
}

fn patience(can_hear: bool, due: Option<Duration>) -> Duration {
    let longest = if can_hear { WOKEN } else { BLIND };
    // One millisecond is the clock's grain: a moment before it is due there is nothing to see.
    due.map_or(longest, |due| longest.min(due + Duration::from_millis(1)))
}

fn path_of(database: &Path) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push("-wake");
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
        assert_eq!(patience(true, Some(secs(60))), WOKEN);
    }

    #[test]
    fn file_stands_beside_the_database() {
        assert_eq!(path_of(Path::new("/a/b.db")), Path::new("/a/b.db-wake"));
    }
}
