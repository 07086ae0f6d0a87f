// SPDX-License-Identifier: Apache-2.0
//! A tap interface with an SELinux label. It bears the label of the process that makes it (the one for
//! new sockets in `attr/sockcreate` has no effect on it), and a process with several threads cannot
//! change its own. So a child takes the label, makes the interface and ends.

use std::ffi::CStr;

use ::netlink::Errno;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{NewTap, Refusal};

const LABEL: &CStr = c"/proc/thread-self/attr/current";
/// Of the child's exit status: it was the label. Error numbers of these calls are below.
const OF_LABEL: i32 = 0x80;

fn make_in_child(tap: &NewTap<'_>, label: &CStr) -> Result<i32, Errno> {
    // SAFETY: the child makes async-signal-safe calls only and never returns.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(last_error()),
        // SAFETY: ends the child without running what the parent has planned for its own end.
        0 => unsafe { libc::_exit(be_child(tap, label)) },
        child => child,
    };
    let mut status = 0;
    loop {
        // SAFETY: `status` outlives the call.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
            break;
        }
        if last_error() != Errno::INTR {
            return Err(last_error());
        }
    }
    if libc::WIFEXITED(status) { Ok(libc::WEXITSTATUS(status)) } else { Err(Errno::INTR) }
}

pub(super) fn make(tap: &NewTap<'_>, label: &CStr) -> Result<(), Refusal> {
    match make_in_child(tap, label).map_err(Refusal::Tap)? {
        0 => Ok(()),
        status if status & OF_LABEL != 0 => Err(Refusal::Label(errno(status & !OF_LABEL))),
        status => Err(Refusal::Tap(errno(status))),
    }
}

fn be_child(tap: &NewTap<'_>, label: &CStr) -> i32 {
    if let Err(errno) = take(label) {
        return errno.raw_os_error() | OF_LABEL;
    }
    super::make(tap).map_or_else(Errno::raw_os_error, |()| 0)
}

fn take(label: &CStr) -> Result<(), Errno> {
    let file = openat(CWD, LABEL, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, label.to_bytes()).map(drop)
}

fn errno(number: i32) -> Errno {
    Errno::from_raw_os_error(number)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
