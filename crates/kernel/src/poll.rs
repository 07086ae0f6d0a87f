// SPDX-License-Identifier: Apache-2.0
//! Waiting for several descriptors at once, and waking a thread that waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ::netlink::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, write};

use crate::error::{Error, Result};

/// Waits until one of the descriptors is readable or at its end. Returns for each descriptor
/// whether it is ready; none is ready after the timeout or an interruption by a signal.
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

/// Wakes a thread that waits for the kernel. Several calls of [`Waker::wake`] before the thread
/// waits again count as one.
#[derive(Debug)]
pub struct Waker {
    fd: OwnedFd,
}

/// Reasons why [`Waker::wait`] returned; both are false after the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// The source is readable.
    pub is_readable: bool,
    /// Another thread called [`Waker::wake`]. The waker is reset.
    pub woken: bool,
}

impl Waker {
    /// Opens an event descriptor (eventfd(2)).
    pub fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        fd.map(|fd| Self { fd }).map_err(|errno| Error::from_errno("create waker", "", errno))
    }

    /// Wakes the waiting thread. The write fails only if the counter is full, and then the thread
    /// wakes anyway.
    pub fn wake(&self) {
        let _ = write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Waits until `source` is readable, another thread calls [`Waker::wake`], or the deadline
    /// passes.
    pub fn wait(&self, source: impl AsFd, deadline: Option<Instant>) -> Result<Ready> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let ready = wait_readable(&[source.as_fd(), self.fd.as_fd()], left)?;
        let ready = Ready { is_readable: ready[0], woken: ready[1] };
        if ready.woken {
            let _ = read(&self.fd, &mut [0_u8; 8]);
        }
        Ok(ready)
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn waker_reports_each_reason_and_resets() {
        let (reader, mut writer) = io::pipe().unwrap();
        let waker = Waker::new().unwrap();
        let soon = || Some(Instant::now() + Duration::from_millis(1));
        let ready = |is_readable, woken| Ready { is_readable, woken };
        assert_eq!(waker.wait(&reader, soon()).unwrap(), ready(false, false));
        waker.wake();
        waker.wake();
        assert_eq!(waker.wait(&reader, None).unwrap(), ready(false, true));
        assert_eq!(waker.wait(&reader, soon()).unwrap(), ready(false, false));
        writer.write_all(b"x").unwrap();
        assert_eq!(waker.wait(&reader, None).unwrap(), ready(true, false));
        waker.wake();
        assert_eq!(waker.wait(&reader, None).unwrap(), ready(true, true));
    }

    #[test]
    fn waker_used_by_another_thread_ends_the_wait() {
        let (reader, _writer) = io::pipe().unwrap();
        let waker = Arc::new(Waker::new().unwrap());
        let other = Arc::clone(&waker);
        let thread = thread::spawn(move || other.wake());
        assert!(waker.wait(&reader, None).unwrap().woken);
        thread.join().unwrap();
    }
}
