// SPDX-License-Identifier: Apache-2.0
//! The thread that has the file: SQLite waits for disk and locks, and nothing else shall.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::database::Database;
use crate::{Error, Result};

type Job = Box<dyn FnOnce(&mut Database) + Send>;

/// After a change, as others often follow.
const SETTLED: Duration = Duration::from_secs(1);

/// Between two backups at least.
const BACKUP_EVERY: Duration = Duration::from_secs(10);

/// Ends, with the file closed, when the value is dropped and what was asked for is done.
#[derive(Debug)]
pub struct StoreThread {
    jobs: mpsc::Sender<Job>,
    name: String,
}

impl StoreThread {
    pub async fn start(path: PathBuf) -> Result<Self> {
        let name = path.display().to_string();
        let (jobs, work) = mpsc::channel::<Job>();
        let (opened, wait) = oneshot::channel();
        let run = move || match Database::open(&path) {
            Ok(mut database) => {
                // Nobody waits for it any more if this fails, and then there will be no jobs.
                let _ = opened.send(Ok(()));
                serve(&work, &mut database);
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let spawned = thread::Builder::new().name("store".to_owned()).spawn(run);
        spawned.map_err(|cause| Error::Unavailable { store: name.clone(), cause: cause.into() })?;
        wait.await.unwrap_or_else(|_| Err(ended(&name)))?;
        Ok(Self { jobs, name })
    }

    /// Lets the thread do something with the database. It is done even if nobody waits for it.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, wait) = oneshot::channel();
        let job: Job = Box::new(move |database| drop(answer.send(job(database))));
        self.jobs.send(job).map_err(|_| ended(&self.name))?;
        wait.await.unwrap_or_else(|_| Err(ended(&self.name)))
    }
}

/// Does jobs until there is nobody to ask for more, and backs the database up a moment after it has changed.
fn serve(work: &mpsc::Receiver<Job>, database: &mut Database) {
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
                earliest = Instant::now() + BACKUP_EVERY;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if backup.is_none() && database.needs_backup() {
            backup = Some(earliest.max(Instant::now() + SETTLED));
        }
    }
}

fn ended(name: &str) -> Error {
    Error::Unavailable { store: name.to_owned(), cause: "the thread of the store has ended".into() }
}
