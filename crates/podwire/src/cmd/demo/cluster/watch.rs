// SPDX-License-Identifier: Apache-2.0
//! Waiting for files to appear in a directory.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;

/// So often somebody may have asked us to stop, or a file may be there that nobody tells of.
const LOOK_UP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A directory that is watched.
#[derive(Debug)]
pub struct Watch {
    /// None where the system has no more room for that, as with many agents at once.
    events: Option<OwnedFd>,
}

impl Watch {
    /// Whatever is renamed into it from now on is an event.
    pub fn of(dir: &Path) -> Watch {
        let watch = || -> rustix::io::Result<OwnedFd> {
            let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
            let events = inotify::init(flags)?;
            inotify::add_watch(&events, dir, inotify::WatchFlags::MOVED_TO)?;
            Ok(events)
        };
        Watch { events: watch().ok() }
    }

    /// Until something has happened, or a moment has passed.
    pub fn wait(&self) -> Result<()> {
        let wait = || -> rustix::io::Result<()> {
            let descriptors = self.events.iter().map(|events| PollFd::new(events, PollFlags::IN));
            let is_news = poll(&mut descriptors.collect::<Vec<_>>(), Some(&LOOK_UP))? > 0;
            if let Some(events) = self.events.as_ref().filter(|_| is_news) {
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
    fn what_cannot_be_watched_is_looked_at_now_and_then() {
        Watch::of(Path::new("/no/such/directory")).wait().unwrap();
    }
}
