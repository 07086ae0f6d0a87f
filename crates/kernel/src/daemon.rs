// SPDX-License-Identifier: Apache-2.0
//! Process-level calls of a long-running program: termination signals as a descriptor, a listening
//! socket passed by systemd, the limit of open files, and the identity of a client.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;

use ::netlink::Errno;
use rustix::fs::{FileType, fstat};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{Error, Result};

/// First descriptor that systemd passes (`SD_LISTEN_FDS_START`, sd_listen_fds(3)).
const FIRST_INHERITED: i32 = 3;

/// SIGTERM and SIGINT as a readable descriptor. Open it before starting any thread: only threads
/// that are started later inherit the blocked signals.
#[derive(Debug)]
pub struct TerminationSignals {
    fd: OwnedFd,
}

impl TerminationSignals {
    /// Blocks SIGTERM and SIGINT, so that they make the descriptor readable instead of ending the
    /// process.
    pub fn open() -> Result<TerminationSignals> {
        let fail = || Error::from_io("catch signals", "", &io::Error::last_os_error());
        // SAFETY: `sigemptyset` makes the signal set valid before the kernel reads it.
        let fd = unsafe {
            let mut set: libc::sigset_t = zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) < 0 {
                return Err(fail());
            }
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(fail());
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        Ok(TerminationSignals { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }
}

impl AsFd for TerminationSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the listening socket that systemd, or a program like it, opened for this process. Call
/// it at most once: the returned listener owns the descriptor.
pub fn inherited_listener() -> Result<UnixListener> {
    const OP: &str = "use inherited socket";
    let object = format!("descriptor {FIRST_INHERITED}");
    let fail = |errno| Error::from_errno(OP, object.clone(), errno);
    // SAFETY: the descriptor is only inspected, and a descriptor that is not open is an error
    // below.
    let borrowed = unsafe { BorrowedFd::borrow_raw(FIRST_INHERITED) };
    let stat = fstat(borrowed).map_err(fail)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(fail(Errno::NOTSOCK));
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC).map_err(fail)?;
    // SAFETY: sd_listen_fds(3) gives the descriptor to this process alone.
    Ok(unsafe { UnixListener::from_raw_fd(borrowed.as_raw_fd()) })
}

/// Raises the soft limit of open files to the hard limit.
pub fn raise_file_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Nofile, raised)
        .map_err(|errno| Error::from_errno("raise limit of open files", "", errno))
}

/// Returns whether the peer of a unix socket runs as root.
pub fn is_from_root(stream: impl AsFd) -> Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(stream)
        .map_err(|errno| Error::from_errno("read credentials of peer", "", errno))?;
    Ok(peer.uid.is_root())
}
