// SPDX-License-Identifier: Apache-2.0
//! Deferred close: a background child closes sockets and finishes removals, so that a plugin does
//! not wait for the kernel's grace periods.
//!
//! The kernel frees objects removed from nf_tables after a grace period of 5 to 20 ms. A process
//! that closes a netfilter socket earlier waits for the rest of it, even if that socket removed
//! nothing. So sockets stay open until a child inherits them: the child that removes an interface
//! ([`crate::link::remove_in_background`]), or a child started for them at the end of the process
//! ([`close_in_background`]).
//!
//! The state is process-wide because its causes are. The grace period concerns every netfilter
//! socket of the process, whoever opened it; `fork` copies the descriptors of the whole process;
//! and only the process can reap its children. A value passed to every socket would carry the same
//! lists through all callers of `Nft::open`, and through `cni`, which does not know the kernel.
//!
//! The only other fork in the product creates a tap device with a security label, and is waited for
//! ([`crate::tun`]).

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use ::netlink::Errno;

/// How long a child keeps sockets open before it exits. A close during the grace period waits, *and
/// holds the lock that every change of nf_tables takes*: with 12 ms of grace period, the next
/// plugin's change would take 12 ms. The kernel sends no event when the grace period ends.
const HOLD_TIME: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Duplicates of sockets whose close is deferred.
static DEFERRED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Set once this process has removed something from nf_tables.
static HAS_REMOVED: AtomicBool = AtomicBool::new(false);

/// Children that have not been reaped. Each new child reaps those that have exited; init reaps the
/// rest after this process has exited. A second fork, which would avoid the list, costs 0.15 ms.
static CHILDREN: Mutex<Vec<libc::pid_t>> = Mutex::new(Vec::new());

/// Records that this process has removed something from nf_tables.
pub(crate) fn note_removal() {
    HAS_REMOVED.store(true, Ordering::Relaxed);
}

/// Keeps a netfilter socket open through a duplicate descriptor, if this process has removed
/// something. Call it before the socket is dropped.
pub(crate) fn defer_close(socket: impl AsFd) {
    if !HAS_REMOVED.load(Ordering::Relaxed) {
        return;
    }
    // Without a free descriptor the close is not deferred, and only takes longer.
    if let Ok(duplicate) = socket.as_fd().try_clone_to_owned() {
        DEFERRED.lock().unwrap_or_else(PoisonError::into_inner).push(duplicate);
    }
}

/// Starts a child that closes the deferred sockets, if there are any. If the fork fails, this
/// process closes them itself, which only takes longer.
pub fn close_in_background() {
    let deferred = take_deferred();
    if !deferred.is_empty() {
        let _ = start_child(&deferred, None);
    }
}

/// Sends a message from a child, which also takes the deferred sockets. Returns once the child
/// exists.
pub(crate) fn send_in_background(socket: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    start_child(&take_deferred(), Some((socket.as_fd().as_raw_fd(), bytes)))
}

fn take_deferred() -> Vec<OwnedFd> {
    std::mem::take(&mut *DEFERRED.lock().unwrap_or_else(PoisonError::into_inner))
}

fn start_child(deferred: &[OwnedFd], message: Option<(RawFd, &[u8])>) -> Result<(), Errno> {
    let mut kept: Vec<RawFd> = deferred.iter().map(AsRawFd::as_raw_fd).collect();
    kept.extend(message.map(|(socket, _)| socket));
    kept.sort_unstable();
    // A thread that panicked cannot have left a half-written list of process ids.
    let mut children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    children.retain(|child| is_running(*child));
    // SAFETY: the child makes only async-signal-safe calls and never returns.
    match unsafe { libc::fork() } {
        -1 => {
            let error = std::io::Error::last_os_error();
            Err(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
        }
        // SAFETY: this is the forked child, which has one thread.
        0 => unsafe { run_child(&kept, !deferred.is_empty(), message) },
        child => {
            children.push(child);
            Ok(())
        }
    }
}

fn is_running(child: libc::pid_t) -> bool {
    // SAFETY: the kernel writes no status. 0 means "still running", every other result is final.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) == 0 }
}

/// Runs in the child. It first releases everything that others wait for: the process group,
/// standard input and output (a runtime reads them to the end), and every other file, because its
/// locks would stay held. It stays in the session: a new session is a new scheduling group
/// (`sched_autogroup`), which on a busy machine waits behind all others.
///
/// # Safety
/// Only for a forked child: it closes all descriptors except `kept` and ends the process.
unsafe fn run_child(kept: &[RawFd], has_deferred: bool, message: Option<(RawFd, &[u8])>) -> ! {
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
        if has_deferred {
            libc::nanosleep(&HOLD_TIME, std::ptr::null_mut());
        }
        libc::_exit(0);
    }
}

/// # Safety
/// The descriptors must not be used afterwards.
unsafe fn close_range(first: RawFd, last: RawFd) {
    if first <= last {
        // SAFETY: promised by the caller. Kernels before 5.9 return ENOSYS and keep them open.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}
