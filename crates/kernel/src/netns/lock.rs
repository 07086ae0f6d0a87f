// SPDX-License-Identifier: Apache-2.0
//! Locks of namespaces, for changes that depend on an earlier read. The lock files are accessible
//! to root only: a lock on the namespace's own file could be held by any process in the namespace.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use ::netlink::Errno;

use super::Netns;
use crate::error::{Error, Result};

const DIRECTORY: &str = "/run/podwire/locks";

/// Maximum number of lock files per purpose. The files stay when namespaces go, so namespaces share
/// them; two namespaces with the same file occasionally wait for each other.
const MAX_FILES: u64 = 256;

/// Maximum time to wait. A holder needs milliseconds, with iptables seconds; one that needs longer
/// was stopped.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A held lock of a namespace; dropping it releases the lock.
#[derive(Debug)]
pub struct Lock {
    _lock: fsutil::Lock,
}

impl Netns {
    /// Acquires the lock of this namespace for a purpose. Fails with [`Error::is_timed_out`] if
    /// another process holds it too long.
    pub fn lock(&self, purpose: &str) -> Result<Lock> {
        let (_, inode) = self.identity()?;
        let name = format!("{purpose}-{}", inode % MAX_FILES);
        let opened = match fsutil::open_lock(Path::new(DIRECTORY), &name) {
            // Root of a user namespace cannot create the lock file: lock the namespace file
            // instead.
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
        let locked = opened.and_then(|file| fsutil::lock(file, TIMEOUT));
        locked.map(|lock| Lock { _lock: lock }).map_err(|cause| {
            let path = format!("{DIRECTORY}/{name}");
            if cause.kind() != ErrorKind::TimedOut {
                return Error::from_io("lock", path, &cause);
            }
            let ext = Some(cause.to_string());
            Error { ext, ..Error::from_errno("lock", path, Errno::TIMEDOUT) }
        })
    }

    /// Opens the namespace file again, because a lock belongs to an open file description.
    fn reopen(&self) -> io::Result<File> {
        File::open(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }
}
