// SPDX-License-Identifier: Apache-2.0
//! Waiting for files to appear in a directory.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;

/// So often somebody may have asked us to stop.
const LOOK_UP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A directory that is watched.
#[derive(Debug)]
pub struct Watch {
    events: OwnedFd,
}

impl Watch {
    /// Whatever is renamed into it from now on is an event.
    pub fn of(dir: &Path) -> Result<Watch> {
        let watch = || -> rustix::io::Result<OwnedFd> {
            let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
            let events = inotify::init(flags)?;
            inotify::add_watch(&events, dir, inotify::WatchFlags::MOVED_TO)?;
            Ok(events)
        };
        let events = watch().with_context(|| format!("watch {}", dir.display()))?;
        Ok(Watch { events })
    }

    /// Until something has happened, or a moment has passed.
    pub fn wait(&self) -> Result<()> {
        let wait = || -> rustix::io::Result<()> {
            let mut descriptors = [PollFd::new(&self.events, PollFlags::IN)];
            if poll(&mut descriptors, Some(&LOOK_UP))? > 0 {
                let mut buffer = [MaybeUninit::uninit(); 4096];
                rustix::io::read(&self.events, &mut buffer)?;
            }
            Ok(())
        };
        match wait() {
            Ok(()) | Err(Errno::INTR | Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno).context("wait for a file"),
        }
    }
}
