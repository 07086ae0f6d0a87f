// SPDX-License-Identifier: Apache-2.0
//! Locks of namespaces, for changes that depend on what was read before. They are files that root alone
//! can open: a lock on the namespace's own file could be held by everybody who lives in it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use ::netlink::Errno;

use super::Netns;
use crate::error::{Error, Result};

const DIRECTORY: &str = "/run/podwire/locks";

/// Namespaces come and go; the files stay, and are no more than these for each purpose. Two namespaces
/// with the same file wait for each other now and then.
const FILES: u64 = 256;

/// Whoever holds a lock is done in milliseconds, with iptables in seconds. One that is not was stopped.
const DEADLINE: Duration = Duration::from_secs(20);

/// A namespace's lock; dropping it releases the lock.
#[derive(Debug)]
pub struct Lock {
    _lock: fsutil::Lock,
}

impl Netns {
    /// Waits until nobody else holds this namespace's lock for this purpose, and holds it until the
    /// value that comes back is dropped. After a deadline it is an error, [`Error::is_timed_out`].
    pub fn lock(&self, purpose: &str) -> Result<Lock> {
        let (_, inode) = self.identity()?;
        let name = format!("{purpose}-{}", inode % FILES);
        let opened = match fsutil::open_lock(Path::new(DIRECTORY), &name) {
            // Root of a user namespace only: it has no place for files of its own.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                self.reopen()
            }
            other => other,
        };
        let locked = opened.and_then(|file| fsutil::lock(file, DEADLINE));
        locked.map(|lock| Lock { _lock: lock }).map_err(|cause| {
            let path = format!("{DIRECTORY}/{name}");
            if cause.kind() != ErrorKind::TimedOut {
                return Error::from_io("lock", path, &cause);
            }
            let ext = Some(cause.to_string());
            Error { ext, ..Error::from_errno("lock", path, Errno::TIMEDOUT) }
        })
    }

    /// Locks belong to an opening of the file: one of its own for each holder.
    fn reopen(&self) -> io::Result<File> {
        File::open(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }
}
