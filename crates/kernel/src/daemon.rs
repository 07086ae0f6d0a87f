// SPDX-License-Identifier: Apache-2.0
//! What a program that stays needs of the kernel: waiting for several things at once, signals as one
//! of them, a socket that was opened for it, and who is at the other end of one.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use ::netlink::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{Error, Result};

/// Where the descriptors begin that systemd hands over (`SD_LISTEN_FDS_START`, sd_listen_fds(3)).
const FIRST_INHERITED: i32 = 3;

/// Waits until one of these can be read or is at its end; which ones. None at the time-out.
pub fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<Vec<bool>> {
    let mut polled: Vec<PollFd> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = timeout.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(errno) => Err(Error::from_errno("wait for events", "", errno)),
    }
}

/// The signals that end a daemon, as something to wait for. Open it before any thread is started.
#[derive(Debug)]
pub struct EndSignals {
    fd: OwnedFd,
}

impl EndSignals {
    /// From now on SIGTERM and SIGINT come here and do not end the process.
    pub fn open() -> Result<EndSignals> {
        let fail = || Error::from_io("catch signals", "", &io::Error::last_os_error());
        // SAFETY: a signal set is made valid by `sigemptyset`, and only then given to the kernel.
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
        // SAFETY: the kernel has just given us this descriptor.
        Ok(EndSignals { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }
}

impl AsFd for EndSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The listening socket that systemd, or who acts like it, has opened for this process; call it once.
pub fn inherited_listener() -> Result<UnixListener> {
    const OP: &str = "use inherited socket";
    let object = format!("descriptor {FIRST_INHERITED}");
    let fail = |errno| Error::from_errno(OP, object.clone(), errno);
    // SAFETY: only looked at, and the error is handled where it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(FIRST_INHERITED) };
    let stat = fstat(borrowed).map_err(fail)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(fail(Errno::NOTSOCK));
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC).map_err(fail)?;
    // SAFETY: by the agreement of sd_listen_fds(3) the descriptor is ours alone.
    Ok(unsafe { UnixListener::from_raw_fd(borrowed.as_raw_fd()) })
}

/// Lets this process have as many files and sockets open as it may.
pub fn raise_file_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Nofile, raised)
        .map_err(|errno| Error::from_errno("raise limit of open files", "", errno))
}

/// Whether the process at the other end of a unix socket is root's.
pub fn is_from_root(stream: impl AsFd) -> Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(stream)
        .map_err(|errno| Error::from_errno("ask who is calling", "", errno))?;
    Ok(peer.uid.is_root())
}
