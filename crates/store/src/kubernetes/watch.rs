// SPDX-License-Identifier: Apache-2.0
//! A watch that outlives connections. An API server ends every watch after a while, and forgets
//! history whenever it is restarted.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use kube::api::WatchParams;
use kube::core::WatchEvent;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_stream::{Stream, StreamExt};

use super::client::{Client, Failure, Tried, api};
use super::node::{self, Object};
use super::verdict::{self, Verdict};
use crate::{Answer, Event, Result, Revision, Watch, Watched, backoff};

/// For how long the server is asked to go on, in seconds.
const LIFETIME: u32 = 290;

/// Every minute the server says how far it has come, if any node has changed. Whoever is silent for
/// longer may be gone, or something between us has forgotten the connection: a new one tells.
const SILENCE: Duration = Duration::from_secs(90);

/// After this long without a word the server is asked whether it is there: of one that hangs the system tells nothing.
const QUIET: Duration = Duration::from_secs(10);

/// For the server to begin.
const PATIENCE: Duration = Duration::from_secs(15);

/// A stream that lasted this long was a good one.
const GOOD: Duration = Duration::from_secs(10);

/// So many streams may break soon after their beginning before somebody has to know.
const MANY: u32 = 3;

type Events = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<Object>>> + Send>>;

/// Gives no stream where the watch is at its end.
type Opening = Pin<Box<dyn Future<Output = Tried<Option<Events>>> + Send>>;

/// Gives the answer to whether a server that says nothing is there.
type Sign = Pin<Box<dyn Future<Output = Tried<()>> + Send>>;

pub struct Watcher {
    client: Arc<Client>,
    prefix: String,
    /// All changes up to here have been reported.
    after: Revision,
    state: State,
    /// Whether the server's database is the one that we know.
    is_known: bool,
    /// In a row, without a word in between.
    failures: u32,
    /// The last word was an error: that it goes on is news.
    was_missed: bool,
}

enum State {
    Closed,
    /// Kept, so that whoever gives up waiting does not start it anew.
    Opening(Opening),
    Open {
        events: Events,
        since: Instant,
        heard: Instant,
        /// Kept for the same reason.
        sign: Sign,
    },
    Over,
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, after, failures, .. } = self;
        let mut shown = f.debug_struct("Watcher");
        shown.field("prefix", prefix).field("after", after).field("failures", failures);
        shown.finish_non_exhaustive()
    }
}

impl Watcher {
    pub fn new(client: Arc<Client>, prefix: String, after: Revision) -> Self {
        // To Kubernetes it means any revision, but all changes since then nobody knows.
        let state = if after == Revision(0) { State::Over } else { State::Closed };
        Self { client, prefix, after, state, is_known: false, failures: 0, was_missed: false }
    }

    async fn changes(&mut self) -> Result<Watched> {
        loop {
            match &mut self.state {
                State::Over => return Ok(Watched::Compacted),
                State::Closed => self.state = State::Opening(self.opening()),
                State::Opening(opening) => {
                    let opened = opening.await;
                    self.opened(opened)?;
                    if self.was_missed && matches!(self.state, State::Open { .. }) {
                        return Ok(Watched::Changes { events: Vec::new(), revision: self.after });
                    }
                }
                State::Open { events, heard, sign, .. } => tokio::select! {
                    next = timeout_at(*heard + SILENCE, events.next()) => {
                        if let Some(watched) = self.take(next.unwrap_or_default())? {
                            return Ok(watched);
                        }
                    }
                    is_there = sign => self.told(is_there)?,
                },
            }
        }
    }

    /// After a pause. A server that has lost its data, or another one, would let us wait for ever for a
    /// revision in its future, so it is asked first.
    fn opening(&self) -> Opening {
        let (client, after) = (Arc::clone(&self.client), self.after);
        let pause = backoff::pause(self.failures, backoff::noise());
        let is_known = self.is_known;
        Box::pin(async move {
            sleep(pause).await;
            if !is_known && client.newest().await? < after {
                return Ok(None);
            }
            match timeout(PATIENCE, open(&client, after)).await? {
                Err(Failure { verdict: Verdict::Gone, .. }) => Ok(None),
                opened => opened.map(Some),
            }
        })
    }

    fn opened(&mut self, opened: Tried<Option<Events>>) -> Result<()> {
        match opened {
            Ok(Some(events)) => {
                let now = Instant::now();
                self.is_known = true;
                let sign = sign_of(&self.client);
                self.state = State::Open { events, since: now, heard: now, sign };
            }
            Ok(None) => self.state = State::Over,
            Err(failure) => {
                self.close(false);
                return Err(self.client.unread(failure));
            }
        }
        Ok(())
    }

    /// Whether the server is there. One that is may have forgotten the watch: that it is silent counts all the same.
    fn told(&mut self, is_there: Tried<()>) -> Result<()> {
        if let Err(failure) = is_there {
            self.close(false);
            return Err(self.client.unread(failure));
        }
        if let State::Open { sign, .. } = &mut self.state {
            *sign = sign_of(&self.client);
        }
        Ok(())
    }

    /// Takes note of what was heard: an event, an error, or the end.
    fn take(&mut self, heard: Option<kube::Result<WatchEvent<Object>>>) -> Result<Option<Watched>> {
        let failure = match heard {
            Some(Ok(WatchEvent::Error(status))) => {
                Failure { verdict: Verdict::of_status(&status), cause: verdict::said(&status) }
            }
            Some(Ok(event)) => return Ok(self.change(event)),
            Some(Err(error)) => Failure::of(error),
            None => Failure { verdict: Verdict::Unknown, cause: "the server hung up".into() },
        };
        match failure.verdict {
            Verdict::Gone => self.state = State::Over,
            _ => self.broken(failure)?,
        }
        Ok(None)
    }

    /// What the user of the watch has to know. Changes of other entries are passed over.
    fn change(&mut self, event: WatchEvent<Object>) -> Option<Watched> {
        self.failures = 0;
        if let State::Open { heard, sign, .. } = &mut self.state {
            *heard = Instant::now();
            *sign = sign_of(&self.client);
        }
        let event = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                Event::Put(object.entry(&self.client.prefixes))
            }
            WatchEvent::Deleted(object) => {
                Event::Deleted { key: object.key(), revision: object.revision() }
            }
            WatchEvent::Bookmark(bookmark) => {
                self.after = self.after.max(node::revision(&bookmark.metadata.resource_version));
                return Some(Watched::Changes { events: Vec::new(), revision: self.after });
            }
            WatchEvent::Error(_) => return None,
        };
        self.after = self.after.max(event.revision());
        let is_wanted = event.key().starts_with(&self.prefix);
        is_wanted.then(|| Watched::Changes { events: vec![event], revision: self.after })
    }

    /// Goes on with another stream; says so only when that has happened several times in a row.
    fn broken(&mut self, failure: Failure) -> Result<()> {
        let State::Open { since, .. } = &self.state else {
            return Ok(());
        };
        let lasted = since.elapsed();
        tracing::debug!(after = %self.after, ?lasted, cause = %failure.cause, "watch ended");
        let is_regular = lasted >= Duration::from_secs(u64::from(LIFETIME)).saturating_sub(GOOD);
        if lasted > GOOD {
            self.failures = 0;
        }
        self.close(is_regular);
        if self.failures > MANY {
            return Err(self.client.unread(failure));
        }
        Ok(())
    }

    fn close(&mut self, is_regular: bool) {
        self.state = State::Closed;
        if !is_regular {
            self.is_known = false;
            self.failures = self.failures.saturating_add(1);
        }
    }
}

fn sign_of(client: &Arc<Client>) -> Sign {
    let client = Arc::clone(client);
    Box::pin(async move {
        sleep(QUIET).await;
        client.is_there().await
    })
}

async fn open(client: &Client, after: Revision) -> Tried<Events> {
    let params = WatchParams::default().timeout(LIFETIME);
    let request = api().watch(&params, &after.to_string());
    let request = request.map_err(|error| Failure::of(kube::Error::BuildRequest(error)))?;
    let events = client.kube().request_events(request).await.map_err(Failure::of)?;
    Ok(Box::pin(events))
}

impl Watch for Watcher {
    fn next(&mut self) -> Answer<'_, Watched> {
        Box::pin(async {
            let watched = self.changes().await;
            self.was_missed = watched.is_err();
            watched
        })
    }
}
