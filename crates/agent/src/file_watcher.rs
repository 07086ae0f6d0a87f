// SPDX-License-Identifier: Apache-2.0
//! Watches a file for changes, with inotify and with a periodic check for changes that inotify does not report.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use crate::async_fd::register;

/// Delay between the first event and the report, because a writer may cause several events.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// Interval of the periodic check.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Interval of the check while the directory is missing, which inotify cannot watch.
const DIRECTORY_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// In a mounted ConfigMap files are links through this link, and an update replaces only this link.
const CONFIG_MAP: &[u8] = b"..data";

/// Watches one file.
#[derive(Debug)]
pub(crate) struct FileWatcher {
    path: PathBuf,
    /// `None` if inotify is not available.
    fd: Option<AsyncFd<OwnedFd>>,
    /// `None` while the directory does not exist.
    watch: Option<i32>,
    /// When [`Self::next`] returns even without an event.
    due: Instant,
}

impl FileWatcher {
    pub(crate) fn new(path: &Path) -> FileWatcher {
        let due = Instant::now() + CHECK_INTERVAL;
        FileWatcher { path: path.to_owned(), fd: open(), watch: None, due }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the file may have changed. The first call returns at once. The wait can be dropped and resumed.
    pub(crate) async fn next(&mut self) {
        if self.watch_directory() {
            // Earlier changes caused no event.
            return;
        }
        if self.fd.is_some() && self.watch.is_none() {
            self.due = self.due.min(Instant::now() + DIRECTORY_CHECK_INTERVAL);
        }
        loop {
            let FileWatcher { path, fd, due, .. } = self;
            tokio::select! {
                is_relevant = next_events(fd, path) => {
                    if is_relevant {
                        *due = (*due).min(Instant::now() + DEBOUNCE);
                    }
                }
                () = sleep_until(*due) => {
                    *due = Instant::now() + CHECK_INTERVAL;
                    return;
                }
            }
        }
    }

    /// Watches the directory of the file. Returns true if that is a new watch, or if the directory is gone.
    fn watch_directory(&mut self) -> bool {
        let within = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB;
        let itself = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        let directory = self.path.parent().unwrap_or(&self.path);
        let Some(fd) = &self.fd else { return false };
        let before = self.watch;
        self.watch = inotify::add_watch(fd.get_ref(), directory, within | itself).ok();
        self.watch != before
    }
}

/// Waits for a change, for ever without a watcher.
pub(crate) async fn next_of(watcher: &mut Option<FileWatcher>) {
    match watcher {
        Some(watcher) => watcher.next().await,
        None => std::future::pending().await,
    }
}

fn open() -> Option<AsyncFd<OwnedFd>> {
    let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
        .inspect_err(|cause| tracing::warn!(error = %cause, "inotify unavailable, checking files periodically"))
        .ok()?;
    register(fd).ok()
}

/// Waits for events and returns whether one concerns the file or its directory.
async fn next_events(inotify: &mut Option<AsyncFd<OwnedFd>>, path: &Path) -> bool {
    let Some(fd) = inotify else { return std::future::pending().await };
    let Ok(mut ready) = fd.readable().await else {
        *inotify = None;
        return true;
    };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(fd.get_ref(), &mut buffer);
    let mut is_relevant = false;
    let own = path.file_name().unwrap_or_default().as_encoded_bytes();
    let concerns_file = |event: &inotify::Event<'_>| match event.file_name() {
        Some(name) => [own, CONFIG_MAP].contains(&name.to_bytes()),
        // The directory itself, or an overflow of the event queue.
        None => !event.events().contains(ReadFlags::IGNORED),
    };
    // Read all events, otherwise the next wait ends at once.
    while let Ok(Ok(one)) =
        ready.try_io(|_| Ok(reader.next().map(|event| concerns_file(&event))?))
    {
        is_relevant |= one;
    }
    is_relevant
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::time::timeout;

    use super::*;

    /// Well below [`CHECK_INTERVAL`].
    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn removed_directory_is_noticed() {
        let lab = tempfile::tempdir().unwrap();
        let dir = lab.path().join("dir");
        fs::create_dir(&dir).unwrap();
        let mut watcher = FileWatcher::new(&dir.join("file"));
        timeout(SOON, watcher.next()).await.expect("first call");
        fs::remove_dir(&dir).unwrap();
        timeout(SOON, watcher.next()).await.expect("removal event");
        fs::create_dir(&dir).unwrap();
        fs::remove_dir(&dir).unwrap();
        timeout(SOON, watcher.next()).await.expect("periodic check for the directory");
        fs::create_dir(&dir).unwrap();
        timeout(SOON, watcher.next()).await.expect("new directory");
    }
}
