// SPDX-License-Identifier: Apache-2.0
//! The thread that owns the database. SQLite waits for the disk and for locks, which must not block the runtime.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::database::Database;
use crate::{Error, Result};

type Job = Box<dyn FnOnce(&mut Database) + Send>;

/// Delay of a backup after a change, because more changes often follow.
const BACKUP_DELAY: Duration = Duration::from_secs(1);

/// Minimum interval between two backups.
const BACKUP_INTERVAL: Duration = Duration::from_secs(10);

/// A handle of the thread. When it is dropped, the thread finishes its jobs, closes the file and ends.
#[derive(Debug)]
pub(super) struct StoreThread {
    jobs: mpsc::Sender<Job>,
    name: String,
}

impl StoreThread {
    pub(super) async fn start(path: PathBuf) -> Result<Self> {
        let name = path.display().to_string();
        let (jobs, work) = mpsc::channel::<Job>();
        let (opened, wait) = oneshot::channel();
        let run = move || match Database::open(&path) {
            Ok(mut database) => {
                // If this fails, the caller has gone, and there will be no jobs.
                let _ = opened.send(Ok(()));
                run_jobs(&work, &mut database);
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let spawned = thread::Builder::new().name("store".to_owned()).spawn(run);
        spawned.map_err(|cause| Error::Unavailable { store: name.clone(), cause: cause.into() })?;
        wait.await.unwrap_or_else(|_| Err(ended(&name)))?;
        Ok(Self { jobs, name })
    }

    /// Runs a job on the thread. The job runs even if the returned future is dropped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, wait) = oneshot::channel();
        let job: Job = Box::new(move |database| drop(answer.send(job(database))));
        self.jobs.send(job).map_err(|_| ended(&self.name))?;
        wait.await.unwrap_or_else(|_| Err(ended(&self.name)))
    }
}

/// Runs jobs until the handle is dropped, and writes a backup after changes.
fn run_jobs(work: &mpsc::Receiver<Job>, database: &mut Database) {
    let mut backup: Option<Instant> = None;
    let mut earliest = Instant::now();
    loop {
        let next = match backup {
            None => work.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => work.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match next {
            Ok(job) => job(database),
            Err(RecvTimeoutError::Timeout) => {
                database.back_up();
                backup = None;
                earliest = Instant::now() + BACKUP_INTERVAL;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if backup.is_none() && database.needs_backup() {
            backup = Some(earliest.max(Instant::now() + BACKUP_DELAY));
        }
    }
}

fn ended(name: &str) -> Error {
    Error::Unavailable { store: name.to_owned(), cause: "the thread of the store has ended".into() }
}
