// SPDX-License-Identifier: Apache-2.0
//! Waits for new files in a directory.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;

/// Maximum wait: the caller also checks for signals and for files without an event.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A watched directory.
#[derive(Debug)]
pub(crate) struct DirWatch {
    /// `None` if the system's limit of inotify instances is reached, for example by many agents.
    events: Option<OwnedFd>,
}

impl DirWatch {
    /// Watches for files that are renamed into the directory.
    pub(crate) fn new(dir: &Path) -> DirWatch {
        let watch = || -> rustix::io::Result<OwnedFd> {
            let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
            let events = inotify::init(flags)?;
            inotify::add_watch(&events, dir, inotify::WatchFlags::MOVED_TO)?;
            Ok(events)
        };
        DirWatch { events: watch().ok() }
    }

    /// Waits for an event, but not longer than the poll interval.
    pub(crate) fn wait(&self) -> Result<()> {
        let wait = || -> rustix::io::Result<()> {
            let descriptors = self.events.iter().map(|events| PollFd::new(events, PollFlags::IN));
            let has_event = poll(&mut descriptors.collect::<Vec<_>>(), Some(&POLL_INTERVAL))? > 0;
            if let Some(events) = self.events.as_ref().filter(|_| has_event) {
                let mut buffer = [MaybeUninit::uninit(); 4096];
                rustix::io::read(events, &mut buffer)?;
            }
            Ok(())
        };
        match wait() {
            Ok(()) | Err(Errno::INTR | Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno).context("wait for a file"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_directory_is_polled() {
        DirWatch::new(Path::new("/no/such/directory")).wait().unwrap();
    }
}
