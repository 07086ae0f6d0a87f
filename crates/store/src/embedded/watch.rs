// SPDX-License-Identifier: Apache-2.0
//! A watch: look, and if there is nothing, wait to be woken.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::time::Instant;

use super::notify::Listener;
use super::thread::StoreThread;
use crate::{BoxFuture, Result, Revision, Watch, Watched, backoff};

#[derive(Debug)]
pub struct Watcher {
    thread: Arc<StoreThread>,
    database: PathBuf,
    prefix: String,
    /// All changes up to here have been reported, or concern others.
    after: Revision,
    /// Since the first wait, as only an asynchronous runtime has one.
    listener: Option<Listener>,
    /// The last look found nothing: until then, or until it is woken, another would find nothing either,
    /// however often the wait is given up and taken up again.
    rest: Option<Instant>,
    is_over: bool,
    failures: u32,
}

/// What one look found.
#[derive(Debug)]
pub struct Look {
    pub watched: Watched,
    /// When the next entry's time to live is over.
    pub due: Option<std::time::Duration>,
}

impl Watcher {
    pub fn new(thread: Arc<StoreThread>, database: &Path, prefix: String, after: Revision) -> Self {
        let database = database.to_path_buf();
        Self {
            thread,
            database,
            prefix,
            after,
            listener: None,
            rest: None,
            is_over: false,
            failures: 0,
        }
    }

    async fn changes(&mut self) -> Result<Watched> {
        if self.failures > 0 {
            tokio::time::sleep(backoff::pause(self.failures, backoff::noise())).await;
        }
        loop {
            if self.is_over {
                return Ok(Watched::Compacted);
            }
            // Before the first look, or what happens right after that would go unheard.
            let listener = self.listener.get_or_insert_with(|| Listener::open(&self.database));
            if let Some(until) = &mut self.rest {
                listener.wait(until).await;
                self.rest = None;
            }
            if listener.is_stale() {
                // The look puts the file back; another one follows once its successor is listened to.
                self.listener = None;
            }
            let was_missed = self.failures > 0;
            let look = self.look().await?;
            match look.watched {
                Watched::Changes { events, revision } if events.is_empty() => {
                    self.after = revision;
                    self.rest = self.listener.as_ref().map(|listener| listener.rest(look.due));
                    // After an error, that it goes on is news.
                    if was_missed {
                        return Ok(Watched::Changes { events, revision });
                    }
                }
                Watched::Changes { events, revision } => {
                    self.after = revision;
                    return Ok(Watched::Changes { events, revision });
                }
                Watched::Compacted => {
                    self.is_over = true;
                    continue;
                }
            }
        }
    }

    async fn look(&mut self) -> Result<Look> {
        let (prefix, after) = (self.prefix.clone(), self.after);
        let look = self.thread.run(move |database| database.look(&prefix, after)).await;
        self.failures = if look.is_err() { self.failures.saturating_add(1) } else { 0 };
        if look.is_err() {
            self.listener = None;
        }
        look
    }
}

impl Watch for Watcher {
    fn next(&mut self) -> BoxFuture<'_, Watched> {
        Box::pin(self.changes())
    }
}
