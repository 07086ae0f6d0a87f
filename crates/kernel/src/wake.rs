// SPDX-License-Identifier: Apache-2.0
//! Waking a thread that waits for the kernel: a bell that other threads ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use ::netlink::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, write};

use crate::error::{Error, Result};

/// Rung by any thread, heard by the one that waits. Rings that nobody heard are one.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
}

/// Why a wait has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Woken {
    /// What was waited for can be read.
    pub is_readable: bool,
    /// The bell was rung; it is quiet again.
    pub is_rung: bool,
}

impl Bell {
    /// A bell.
    pub fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        fd.map(|fd| Self { fd }).map_err(|errno| Error::from_errno("make a bell", "", errno))
    }

    /// Rings it. It cannot fail: a bell that has been rung too often is rung all the same.
    pub fn ring(&self) {
        let _ = write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Waits until `source` can be read, the bell is rung, or the deadline, if there is one, has come.
    pub fn wait(&self, source: impl AsFd, deadline: Option<Instant>) -> Result<Woken> {
        let mut both = [PollFd::new(&source, PollFlags::IN), PollFd::new(&self.fd, PollFlags::IN)];
        match poll(&mut both, deadline.map(time_left).as_ref()) {
            // The caller has the deadline and comes back.
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::from_errno("wait", "", errno)),
        }
        let [is_readable, is_rung] = both.map(|one| !one.revents().is_empty());
        if is_rung {
            let _ = read(&self.fd, &mut [0_u8; 8]);
        }
        Ok(Woken { is_readable, is_rung })
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn time_left(deadline: Instant) -> Timespec {
    let left = deadline.saturating_duration_since(Instant::now());
    Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_cause_is_told_and_the_bell_is_quiet_afterwards() {
        let (reader, mut writer) = io::pipe().unwrap();
        let bell = Arc::new(Bell::new().unwrap());
        let soon = || Some(Instant::now() + Duration::from_millis(1));
        let woken = |is_readable, is_rung| Woken { is_readable, is_rung };
        assert_eq!(bell.wait(&reader, soon()).unwrap(), woken(false, false));
        bell.ring();
        bell.ring();
        assert_eq!(bell.wait(&reader, None).unwrap(), woken(false, true));
        assert_eq!(bell.wait(&reader, soon()).unwrap(), woken(false, false));
        writer.write_all(b"x").unwrap();
        assert_eq!(bell.wait(&reader, None).unwrap(), woken(true, false));
        bell.ring();
        assert_eq!(bell.wait(&reader, None).unwrap(), woken(true, true));
    }

    #[test]
    fn another_thread_rings() {
        let (reader, _writer) = io::pipe().unwrap();
        let bell = Arc::new(Bell::new().unwrap());
        let other = Arc::clone(&bell);
        let ringer = thread::spawn(move || other.ring());
        assert!(bell.wait(&reader, None).unwrap().is_rung);
        ringer.join().unwrap();
    }
}
