// SPDX-License-Identifier: Apache-2.0
//! Waiting for packets or for the stop signal.

use std::io::PipeReader;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};

/// Reason why the wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    Readable,
    /// The other end of the stop pipe was closed.
    Stopped,
}

/// Waits until `source` is readable or the stop pipe is closed.
pub(crate) fn readable(source: impl AsFd, stop: &PipeReader) -> Result<Woken, Errno> {
    let mut fds = [
        PollFd::new(&source, PollFlags::IN),
        // poll() always reports POLLHUP, without asking for it.
        PollFd::new(stop, PollFlags::empty()),
    ];
    retry_on_intr(|| poll(&mut fds, None))?;
    Ok(if fds[1].revents().is_empty() { Woken::Readable } else { Woken::Stopped })
}
