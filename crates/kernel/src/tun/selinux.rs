// SPDX-License-Identifier: Apache-2.0
//! Tap interfaces with an SELinux label. An interface gets the label of the process that creates
//! it; `attr/sockcreate`, the label of new sockets, has no effect. A process with several threads
//! cannot change its label, so a forked child changes its own label, creates the interface and
//! exits.

use std::ffi::CStr;

use ::netlink::Errno;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{Failure, NewTap};

const LABEL: &CStr = c"/proc/thread-self/attr/current";
/// Bit of the child's exit status: setting the label failed. The error numbers of these calls are
/// smaller.
const LABEL_FAILED: i32 = 0x80;

fn run_child(tap: &NewTap<'_>, label: &CStr) -> Result<i32, Errno> {
    // SAFETY: the child makes async-signal-safe calls only and never returns.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(last_error()),
        // SAFETY: ends the child without running the exit handlers of the parent.
        0 => unsafe { libc::_exit(child_main(tap, label)) },
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

/// Creates a tap interface with a label.
pub(super) fn create_tap(tap: &NewTap<'_>, label: &CStr) -> Result<(), Failure> {
    match run_child(tap, label).map_err(Failure::Tap)? {
        0 => Ok(()),
        status if status & LABEL_FAILED != 0 => Err(Failure::Label(errno(status & !LABEL_FAILED))),
        status => Err(Failure::Tap(errno(status))),
    }
}

/// Returns the exit status of the child.
fn child_main(tap: &NewTap<'_>, label: &CStr) -> i32 {
    if let Err(errno) = set_label(label) {
        return errno.raw_os_error() | LABEL_FAILED;
    }
    super::create_tap(tap).map_or_else(Errno::raw_os_error, |()| 0)
}

fn set_label(label: &CStr) -> Result<(), Errno> {
    let file = openat(CWD, LABEL, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, label.to_bytes()).map(drop)
}

fn errno(number: i32) -> Errno {
    Errno::from_raw_os_error(number)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
