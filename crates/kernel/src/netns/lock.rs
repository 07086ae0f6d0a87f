// SPDX-License-Identifier: Apache-2.0
//! Locks of namespaces, for changes that depend on what was read before. They are files that root alone
//! can open: a lock on the namespace's own file could be held by everybody who lives in it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ::netlink::Errno;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, mkdir, openat};
use rustix::io::retry_on_intr;

use super::Netns;
use crate::error::{Error, Result};

const DIRECTORY: &str = "/run/podwire/locks";

/// Namespaces come and go; the files stay, and are no more than these for each purpose. Two namespaces
/// with the same file wait for each other now and then.
const FILES: u64 = 256;

/// Whoever holds a lock is done in milliseconds, with iptables in seconds. One that is not was stopped.
const DEADLINE: Duration = Duration::from_secs(20);

/// A namespace's lock; closing the file lets go of it.
#[derive(Debug)]
pub struct Lock {
    _file: OwnedFd,
}

impl Netns {
    /// Waits until nobody else holds this namespace's lock for this purpose, and holds it until the
    /// value that comes back is dropped. After a deadline it is an error, [`Error::is_timed_out`].
    pub fn lock(&self, purpose: &str) -> Result<Lock> {
        let (_, inode) = self.identity()?;
        let path = format!("{DIRECTORY}/{purpose}-{}", inode % FILES);
        let opened = match open(&path) {
            // Root of a user namespace only: it has no place for files of its own.
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => self.reopen(),
            other => other,
        };
        let locked = opened.and_then(|file| lock(file, DEADLINE));
        locked.map(|file| Lock { _file: file }).map_err(|errno| {
            let held = format!("another process has held it for {} s", DEADLINE.as_secs());
            let ext = (errno == Errno::TIMEDOUT).then_some(held);
            Error { ext, ..Error::from_errno("lock", path, errno) }
        })
    }

    /// Locks belong to an opening of the file: one of its own for each holder.
    fn reopen(&self) -> std::result::Result<OwnedFd, Errno> {
        let own = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        openat(CWD, own, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }
}

fn open(path: &str) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::RUSR | Mode::WUSR;
    match openat(CWD, path, flags, mode) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    for (directory, mode) in [("/run/podwire", 0o755), (DIRECTORY, 0o700)] {
        match mkdir(directory, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    openat(CWD, path, flags, mode)
}

/// There is no call that waits for a lock with a deadline: a thread waits, and we wait for the thread. One
/// that is too late lets go of the lock at once.
fn lock(file: OwnedFd, deadline: Duration) -> std::result::Result<OwnedFd, Errno> {
    match retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => return Ok(file),
        Err(Errno::WOULDBLOCK) => {}
        Err(errno) => return Err(errno),
    }
    let (tell, told) = mpsc::sync_channel(1);
    let wait = move || {
        let locked = retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
        // Nobody listens any more after the deadline.
        let _ = tell.send(locked.map(|()| file));
    };
    let waiter = thread::Builder::new().stack_size(64 << 10).spawn(wait);
    waiter.map_err(|cause| Errno::from_io_error(&cause).unwrap_or(Errno::AGAIN))?;
    told.recv_timeout(deadline).unwrap_or(Err(Errno::TIMEDOUT))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_lock_is_waited_for_until_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let another = || OwnedFd::from(File::create(&path).unwrap());
        let held = lock(another(), Duration::ZERO).unwrap();
        let short = Duration::from_millis(50);
        assert_eq!(lock(another(), short).unwrap_err(), Errno::TIMEDOUT);
        let waiting = another();
        let waiter = thread::spawn(move || lock(waiting, Duration::from_secs(10)));
        drop(held);
        // The one that was too late lets go as well.
        drop(waiter.join().unwrap().unwrap());
        lock(another(), Duration::from_secs(10)).unwrap();
    }
}
