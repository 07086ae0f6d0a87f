// SPDX-License-Identifier: Apache-2.0
//! Sends one prepared netlink message from a detached grandchild, so that the caller need not
//! sleep through the kernel's grace periods. The only fork in the product.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use ::netlink::Errno;

/// Returns once the grandchild exists; it belongs to init, so no zombie is left to the caller.
pub(super) fn send_detached(socket: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the child makes async-signal-safe calls only and never returns.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(last_errno()),
        // SAFETY: we are the child of the fork, with one thread.
        0 => unsafe { be_child(socket, bytes) },
        child => child,
    };
    let mut status = 0;
    loop {
        // SAFETY: the pointer is to a local integer.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } != -1 {
            break;
        }
        match last_errno() {
            Errno::INTR => {}
            // SIGCHLD is ignored: the kernel has reaped the child, its status is not known.
            _ => return Ok(()),
        }
    }
    if status == 0 { Ok(()) } else { Err(Errno::AGAIN) }
}

/// Forks again and lets go of all that others wait for: the session, standard input and output
/// (a runtime reads them to the end), and every file, whose locks would otherwise stay held.
///
/// # Safety
/// Only in a forked child: it closes all descriptors but the socket and ends the process.
unsafe fn be_child(socket: RawFd, bytes: &[u8]) -> ! {
    // SAFETY: async-signal-safe calls; all pointers are to memory that outlives them; the
    // descriptors closed are this process's own copies.
    unsafe {
        libc::setsid();
        match libc::fork() {
            0 => {}
            -1 => libc::_exit(1),
            _ => libc::_exit(0),
        }
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

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
