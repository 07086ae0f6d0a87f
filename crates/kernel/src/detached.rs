// SPDX-License-Identifier: Apache-2.0
//! A child that outlives us, so that the caller need not sleep through the kernel's grace periods: it
//! sends one prepared netlink message, or only holds sockets until it ends. The only other fork in the
//! product is for a tap with a label of its own, and is waited for ([`crate::tun`]).

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use ::netlink::Errno;

use crate::parked;

/// How long parked sockets are held. Whoever closes one before the kernel has freed what was removed
/// waits for that, *and holds the lock that every change of nf_tables takes*: with 12 ms of grace, the
/// next plugin's change would take 12 ms. There is no event for the end of it.
const GRACE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Children of this process that have not been reaped yet; every new one reaps those that have ended,
/// and init what is left when the process ends. One fork, not two: a second one costs 0.15 ms more.
static CHILDREN: Mutex<Vec<libc::pid_t>> = Mutex::new(Vec::new());

/// Sends a message from a child, which takes the parked sockets with it; returns once the child exists.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    start(&parked::take(), Some((socket.as_fd().as_raw_fd(), bytes)))
}

/// Leaves the sockets to a child; the caller closes its own copies.
pub(crate) fn hold(sockets: &[OwnedFd]) -> Result<(), Errno> {
    start(sockets, None)
}

fn start(held: &[OwnedFd], message: Option<(RawFd, &[u8])>) -> Result<(), Errno> {
    let mut kept: Vec<RawFd> = held.iter().map(AsRawFd::as_raw_fd).collect();
    kept.extend(message.map(|(socket, _)| socket));
    kept.sort_unstable();
    // A thread that panicked here has left a list of numbers, which cannot be half-made.
    let mut children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    children.retain(|child| is_running(*child));
    // SAFETY: the child makes async-signal-safe calls only and never returns.
    match unsafe { libc::fork() } {
        -1 => {
            let error = std::io::Error::last_os_error();
            Err(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
        }
        // SAFETY: we are the child of the fork, with one thread.
        0 => unsafe { be_child(&kept, !held.is_empty(), message) },
        child => {
            children.push(child);
            Ok(())
        }
    }
}

fn is_running(child: libc::pid_t) -> bool {
    // SAFETY: no status is asked for. 0 is "still running"; anything else is final.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) == 0 }
}

/// Lets go of all that others wait for: the process group, standard input and output (a runtime
/// reads them to the end), and every file, whose locks would otherwise stay held. Not the
/// session: a new one is a new scheduling group (`sched_autogroup`), which on a busy machine
/// waits its turn behind all others.
///
/// # Safety
/// Only in a forked child: it closes all descriptors but those kept and ends the process.
unsafe fn be_child(kept: &[RawFd], holds_parked: bool, message: Option<(RawFd, &[u8])>) -> ! {
    // SAFETY: async-signal-safe calls; all pointers are to memory that outlives them; the
    // descriptors closed are this process's own copies.
    unsafe {
        libc::setpgid(0, 0);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for standard in 0..=2 {
            if null == -1 {
                libc::close(standard);
            } else {
                libc::dup2(null, standard);
            }
        }
        let mut first = 3;
        for fd in kept {
            close_range(first, fd - 1);
            first = fd + 1;
        }
        close_range(first, RawFd::MAX);
        if let Some((socket, bytes)) = message {
            libc::send(socket, bytes.as_ptr().cast(), bytes.len(), 0);
        }
        if holds_parked {
            libc::nanosleep(&GRACE, std::ptr::null_mut());
        }
        libc::_exit(0);
    }
}

/// # Safety
/// The descriptors must not be used any more.
unsafe fn close_range(first: RawFd, last: RawFd) {
    if first <= last {
        // SAFETY: promised by the caller. Kernels before 5.9 answer ENOSYS: then they stay open.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}
