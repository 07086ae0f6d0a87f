// SPDX-License-Identifier: Apache-2.0
//! Sends one prepared netlink message from a child that outlives us, so that the caller need
//! not sleep through the kernel's grace periods. The only fork in the product.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};

use ::netlink::Errno;

/// Children of this process that have not been reaped yet; every removal reaps those that have ended,
/// and init what is left when the process ends. One fork, not two: a second one costs 0.15 ms more.
static CHILDREN: Mutex<Vec<libc::pid_t>> = Mutex::new(Vec::new());

/// Returns once the child exists.
pub(super) fn send(socket: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    // A thread that panicked here has left a list of numbers, which cannot be half-made.
    let mut children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    children.retain(|child| is_running(*child));
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the child makes async-signal-safe calls only and never returns.
    match unsafe { libc::fork() } {
        -1 => {
            let error = std::io::Error::last_os_error();
            Err(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
        }
        // SAFETY: we are the child of the fork, with one thread.
        0 => unsafe { be_child(socket, bytes) },
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
/// Only in a forked child: it closes all descriptors but the socket and ends the process.
unsafe fn be_child(socket: RawFd, bytes: &[u8]) -> ! {
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
        close_range(3, socket - 1);
        close_range(socket + 1, RawFd::MAX);
        libc::send(socket, bytes.as_ptr().cast(), bytes.len(), 0);
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
