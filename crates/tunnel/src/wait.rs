// SPDX-License-Identifier: Apache-2.0
//! Waiting for packets, or for the end.

use std::io::PipeReader;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};

/// What was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    Readable,
    /// The other end of the pipe is closed.
    Stopped,
}

/// Waits until there is something to be read.
pub(crate) fn readable(source: impl AsFd, stop: &PipeReader) -> Result<Woken, Errno> {
    let mut both = [
        PollFd::new(&source, PollFlags::IN),
        // The end of a pipe is always told.
        PollFd::new(stop, PollFlags::empty()),
    ];
    retry_on_intr(|| poll(&mut both, None))?;
    Ok(if both[1].revents().is_empty() { Woken::Readable } else { Woken::Stopped })
}
