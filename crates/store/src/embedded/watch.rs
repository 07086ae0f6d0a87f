// SPDX-License-Identifier: Apache-2.0
//! A watch: read the events, and if there are none, wait for a wake-up.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::time::Instant;

use super::notify::Listener;
use super::thread::StoreThread;
use crate::{BoxFuture, Result, Revision, Watch, Watched, backoff};

#[derive(Debug)]
pub(super) struct Watcher {
    thread: Arc<StoreThread>,
    database: PathBuf,
    prefix: String,
    /// All changes up to this revision have been reported or have another prefix.
    after: Revision,
    /// Opened by the first wait, because it needs the asynchronous runtime.
    listener: Option<Listener>,
    /// The last read returned nothing. Before this time, or a wake-up, another read would return nothing either, however
    /// often the wait is cancelled.
    next_check: Option<Instant>,
    is_compacted: bool,
    failures: u32,
}

/// The result of one read.
#[derive(Debug)]
pub(super) struct ReadEvents {
    pub watched: Watched,
    /// Time until the next entry expires.
    pub due: Option<std::time::Duration>,
}

impl Watcher {
    pub(super) fn new(
        thread: Arc<StoreThread>,
        database: &Path,
        prefix: String,
        after: Revision,
    ) -> Self {
        let database = database.to_path_buf();
        Self {
            thread,
            database,
            prefix,
            after,
            listener: None,
            next_check: None,
            is_compacted: false,
            failures: 0,
        }
    }

    async fn next_changes(&mut self) -> Result<Watched> {
        if self.failures > 0 {
            tokio::time::sleep(backoff::delay(self.failures, backoff::random())).await;
        }
        loop {
            if self.is_compacted {
                return Ok(Watched::Compacted);
            }
            // Opened before the first read, or changes right after it would be missed.
            let listener = self.listener.get_or_insert_with(|| Listener::open(&self.database));
            if let Some(until) = &mut self.next_check {
                listener.wait(until).await;
                self.next_check = None;
            }
            if listener.is_stale() {
                // The read restores the file; a new listener watches it.
                self.listener = None;
            }
            let has_recovered = self.failures > 0;
            let read = self.read().await?;
            match read.watched {
                Watched::Changes { events, revision } if events.is_empty() => {
                    self.after = revision;
                    self.next_check =
                        self.listener.as_ref().map(|listener| listener.next_check(read.due));
                    // After an error, recovery is reported.
                    if has_recovered {
                        return Ok(Watched::Changes { events, revision });
                    }
                }
                Watched::Changes { events, revision } => {
                    self.after = revision;
                    return Ok(Watched::Changes { events, revision });
                }
                Watched::Compacted => {
                    self.is_compacted = true;
                    continue;
                }
            }
        }
    }

    async fn read(&mut self) -> Result<ReadEvents> {
        let (prefix, after) = (self.prefix.clone(), self.after);
        let read = self.thread.run(move |database| database.events(&prefix, after)).await;
        self.failures = if read.is_err() { self.failures.saturating_add(1) } else { 0 };
        if read.is_err() {
            self.listener = None;
        }
        read
    }
}

impl Watch for Watcher {
    fn next(&mut self) -> BoxFuture<'_, Watched> {
        Box::pin(self.next_changes())
    }
}
