// SPDX-License-Identifier: Apache-2.0
//! Hears that a file may be another than it was. The system tells of that, and where it does not, a look now
//! and then finds out.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use crate::async_fd::register;

/// After the first change of others until it is looked at: they may not be done, or keep at it.
const PAUSE: Duration = Duration::from_millis(20);

/// Whatever is told.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// While there is no directory, of which nothing is told.
const LOOK_FOR_DIRECTORY: Duration = Duration::from_millis(250);

/// A ConfigMap in a pod: its files are links into a directory that this link names, which alone is replaced.
const CONFIG_MAP: &[u8] = b"..data";

/// Listens to what happens to a file.
#[derive(Debug)]
pub(crate) struct FileWatcher {
    path: PathBuf,
    /// None where the system has no more room for that.
    fd: Option<AsyncFd<OwnedFd>>,
    /// None while the directory is not there.
    watch: Option<i32>,
    due: Instant,
}

impl FileWatcher {
    pub(crate) fn new(path: &Path) -> FileWatcher {
        let due = Instant::now() + LOOK_AGAIN;
        FileWatcher { path: path.to_owned(), fd: open(), watch: None, due }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the file may be another than it was, and the first time not at all. The wait can be given up
    /// and taken up again.
    pub(crate) async fn next(&mut self) {
        if self.listen() {
            // Whatever happened before is not told.
            return;
        }
        if self.fd.is_some() && self.watch.is_none() {
            self.due = self.due.min(Instant::now() + LOOK_FOR_DIRECTORY);
        }
        loop {
            let FileWatcher { path, fd, due, .. } = self;
            tokio::select! {
                is_news = heard(fd, path) => {
                    if is_news {
                        *due = (*due).min(Instant::now() + PAUSE);
                    }
                }
                () = sleep_until(*due) => {
                    *due = Instant::now() + LOOK_AGAIN;
                    return;
                }
            }
        }
    }

    /// Listens where the file should be from now on; true where that is another directory than before, or none.
    fn listen(&mut self) -> bool {
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

/// Never, where nothing is listened to.
pub(crate) async fn next_of(ear: &mut Option<FileWatcher>) {
    match ear {
        Some(ear) => ear.next().await,
        None => std::future::pending().await,
    }
}

fn open() -> Option<AsyncFd<OwnedFd>> {
    let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
        .inspect_err(|cause| tracing::warn!(%cause, "no inotify: looking now and then instead"))
        .ok()?;
    register(fd).ok()
}

/// Whether something has happened to the file or to its directory.
async fn heard(ear: &mut Option<AsyncFd<OwnedFd>>, path: &Path) -> bool {
    let Some(fd) = ear else { return std::future::pending().await };
    let Ok(mut ready) = fd.readable().await else {
        *ear = None;
        return true;
    };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(fd.get_ref(), &mut buffer);
    let mut is_news = false;
    let own = path.file_name().unwrap_or_default().as_encoded_bytes();
    let is_ours = |event: &inotify::Event<'_>| match event.file_name() {
        Some(name) => [own, CONFIG_MAP].contains(&name.to_bytes()),
        // The directory itself, or more than the system could tell.
        None => !event.events().contains(ReadFlags::IGNORED),
    };
    // Until there is no more, or the next wait would end at once.
    while let Ok(Ok(one)) = ready.try_io(|_| Ok(reader.next().map(|event| is_ours(&event))?)) {
        is_news |= one;
    }
    is_news
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::time::timeout;

    use super::*;

    /// Well below [`LOOK_AGAIN`].
    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_directory_that_goes_before_it_is_listened_to_is_noticed() {
        let lab = tempfile::tempdir().unwrap();
        let dir = lab.path().join("of-others");
        fs::create_dir(&dir).unwrap();
        let mut ear = FileWatcher::new(&dir.join("file"));
        timeout(SOON, ear.next()).await.expect("the first time it does not wait");
        fs::remove_dir(&dir).unwrap();
        timeout(SOON, ear.next()).await.expect("it was heard");
        fs::create_dir(&dir).unwrap();
        fs::remove_dir(&dir).unwrap();
        timeout(SOON, ear.next()).await.expect("nobody tells, and it looks");
        fs::create_dir(&dir).unwrap();
        timeout(SOON, ear.next()).await.expect("it listens to another one");
    }
}
