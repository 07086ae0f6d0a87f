// SPDX-License-Identifier: Apache-2.0
//! A file that is kept: whoever removes or overwrites it finds it again a moment later. The system tells
//! of that, and where it does not, a look now and then finds out.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use crate::board::{Board, Kind, Part};
use crate::watched::watched;

/// After the first change of others until it is looked at: they may not be done, or keep at it.
const PAUSE: Duration = Duration::from_millis(20);

/// Whatever is told.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// A file that is kept, and what is said of it.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    board: Board,
    ear: Option<Ear>,
    due: Instant,
    /// Whoever changes it then breaks it.
    is_there: bool,
    /// Others tell of files as well: only its own word is taken back.
    has_complained: bool,
}

impl Kept {
    pub(crate) fn new(path: &Path, board: &Board) -> Kept {
        Kept {
            path: path.to_owned(),
            board: board.clone(),
            ear: Ear::open(),
            due: Instant::now() + LOOK_AGAIN,
            is_there: false,
            has_complained: false,
        }
    }

    /// Whether it was as it should be when last looked at.
    pub(crate) fn is_there(&self) -> bool {
        self.is_there
    }

    /// It was made what it should be, or was it already (false).
    pub(crate) fn put(&mut self, put: &Result<bool, impl std::fmt::Display>) {
        if self.is_there && matches!(put, Ok(true)) {
            let text = format!("put {} back", self.path.display());
            tracing::warn!(change = text, "repaired");
            self.board.repaired(Kind::File, text);
        }
        self.is_there |= put.is_ok();
        self.report(put);
    }

    /// It is going to be another, and nobody has broken it.
    pub(crate) fn is_to_change(&mut self) {
        self.is_there = false;
    }

    /// It was taken away, or was not there (false).
    pub(crate) fn taken(&mut self, taken: &Result<bool, impl std::fmt::Display>) {
        self.is_there = false;
        self.report(taken);
    }

    fn report(&mut self, done: &Result<bool, impl std::fmt::Display>) {
        match done {
            Ok(_) if !self.has_complained => {}
            Ok(_) => self.board.solved(Part::Files),
            Err(why) => self.board.problem(Part::Files, why.to_string()),
        }
        self.has_complained = done.is_err();
    }

    /// Waits until it may be another than it was. The wait can be given up and taken up again.
    pub(crate) async fn next(&mut self) {
        let Kept { path, ear, due, .. } = self;
        if ear.as_mut().is_some_and(|ear| ear.listen_at(path)) {
            // Whatever happened before is not told.
            return;
        }
        loop {
            tokio::select! {
                is_news = heard(ear, path) => {
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
}

/// Hears what happens in a directory.
#[derive(Debug)]
struct Ear {
    fd: AsyncFd<OwnedFd>,
    /// None while the directory is not there.
    watch: Option<i32>,
}

impl Ear {
    /// None where the system has no more room for that.
    fn open() -> Option<Ear> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .inspect_err(|cause| tracing::warn!(%cause, "no inotify: looking now and then instead"))
            .ok()?;
        Some(Ear { fd: watched(fd).ok()?, watch: None })
    }

    /// Listens where the file should be from now on; true where that is another directory than before.
    fn listen_at(&mut self, path: &Path) -> bool {
        let within = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB;
        let itself = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        let directory = path.parent().unwrap_or(path);
        let before = self.watch;
        self.watch = inotify::add_watch(self.fd.get_ref(), directory, within | itself).ok();
        self.watch.is_some() && self.watch != before
    }
}

/// Whether something has happened to the file or to its directory.
async fn heard(ear: &mut Option<Ear>, path: &Path) -> bool {
    let Some(Ear { fd, .. }) = ear else { return std::future::pending().await };
    let Ok(mut ready) = fd.readable().await else {
        *ear = None;
        return true;
    };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(fd.get_ref(), &mut buffer);
    let mut is_news = false;
    let is_ours = |event: &inotify::Event<'_>| match event.file_name() {
        Some(name) => path.file_name().is_some_and(|own| own.as_encoded_bytes() == name.to_bytes()),
        // The directory itself, or more than the system could tell.
        None => !event.events().contains(ReadFlags::IGNORED),
    };
    // Until there is no more, or the next wait would end at once.
    while let Ok(Ok(one)) = ready.try_io(|_| Ok(reader.next().map(|event| is_ours(&event))?)) {
        is_news |= one;
    }
    is_news
}
