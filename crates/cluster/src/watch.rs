// SPDX-License-Identifier: Apache-2.0
//! A watch that outlives its connections. An API server ends every watch after a few minutes, and has no history from
//! before its start.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use kube::api::WatchParams;
use kube::core::WatchEvent;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_stream::{Stream, StreamExt};

use crate::client::{Attempt, requests};
use crate::failure::{Failure, FailureKind};
use crate::object::{Object, Resource, Revision};
use crate::{Cluster, Result, backoff};

/// Duration in seconds for which the server is asked to keep a stream open.
const STREAM_LIFETIME: u32 = 290;

/// Maximum silence of a stream. The server sends a bookmark every minute if any object has changed. A longer silence
/// means that the server or something on the way has forgotten the stream, so a new one is opened.
const MAX_SILENCE: Duration = Duration::from_secs(90);

/// Silence after which the server is pinged. The kernel does not report a server that hangs with open connections.
const PING_AFTER: Duration = Duration::from_secs(10);

/// Timeout for opening a stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// A stream that lasted this long counts as a success.
const STABLE: Duration = Duration::from_secs(10);

/// Number of streams in a row that may break early before the failure is reported.
const TOLERATED_FAILURES: u32 = 3;

/// A change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<R> {
    /// Created or changed. The trimmed content may be the same as before.
    Applied(Object<R>),
    Deleted {
        name: String,
        revision: Revision,
    },
}

impl<R> Event<R> {
    pub fn name(&self) -> &str {
        match self {
            Event::Applied(object) => &object.name,
            Event::Deleted { name, .. } => name,
        }
    }

    pub fn revision(&self) -> Revision {
        match self {
            Event::Applied(object) => object.revision,
            Event::Deleted { revision, .. } => *revision,
        }
    }
}

/// A report of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchUpdate<R> {
    /// All changes up to `revision` that were not reported before, oldest first. The list is empty if the server only
    /// reports its revision, or if the watch works again after an error.
    Changes { events: Vec<Event<R>>, revision: Revision },
    /// The server no longer has the next changes, or its data was replaced. The watch has ended: list again, and watch
    /// from the revision of the list.
    Expired,
}

type Events<R> =
    Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<<R as Resource>::Wire>>> + Send>>;

/// Resolves to `None` if the watch has expired.
type Opening<R> = Pin<Box<dyn Future<Output = Attempt<Option<Events<R>>>> + Send>>;

type Ping = Pin<Box<dyn Future<Output = Attempt<()>> + Send>>;

/// A watch of all objects of one kind.
pub struct Watcher<R: Resource> {
    cluster: Cluster,
    keep: R::Keep,
    /// All changes up to this revision have been reported.
    after: Revision,
    state: State<R>,
    /// Whether the server is known to have `after` in its history.
    is_verified: bool,
    /// Failures in a row.
    failures: u32,
    /// The last call returned an error, so recovery has to be reported.
    has_reported_error: bool,
}

enum State<R: Resource> {
    Closed,
    /// Stored, so that a cancelled wait does not start over.
    Opening(Opening<R>),
    Open {
        events: Events<R>,
        since: Instant,
        last_message: Instant,
        /// Stored for the same reason.
        ping: Ping,
    },
    /// Final: the caller has to list again.
    Expired,
}

impl<R: Resource> fmt::Debug for Watcher<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Watcher");
        shown.field("path", &R::PATH).field("after", &self.after).field("failures", &self.failures);
        shown.finish_non_exhaustive()
    }
}

impl<R: Resource> Watcher<R> {
    /// Watches for changes after `after`. The first request is made by the first call of [`next`](Self::next).
    pub fn new(cluster: Cluster, keep: R::Keep, after: Revision) -> Self {
        // Kubernetes reads revision 0 as "any revision", which would skip changes.
        let state = if after == Revision(0) { State::Expired } else { State::Closed };
        Self {
            cluster,
            keep,
            after,
            state,
            is_verified: false,
            failures: 0,
            has_reported_error: false,
        }
    }

    /// Waits for changes. The wait can be cancelled without losing changes. After an error the next call continues from
    /// the same revision, after a delay that grows with every failure.
    pub async fn next(&mut self) -> Result<WatchUpdate<R>> {
        let update = self.next_update().await;
        self.has_reported_error = update.is_err();
        update
    }

    async fn next_update(&mut self) -> Result<WatchUpdate<R>> {
        loop {
            match &mut self.state {
                State::Expired => return Ok(WatchUpdate::Expired),
                State::Closed => self.state = State::Opening(self.open()),
                State::Opening(opening) => {
                    let opened = opening.await;
                    self.finish_opening(opened)?;
                    if self.has_reported_error && matches!(self.state, State::Open { .. }) {
                        return Ok(WatchUpdate::Changes {
                            events: Vec::new(),
                            revision: self.after,
                        });
                    }
                }
                State::Open { events, last_message, ping, .. } => tokio::select! {
                    message = timeout_at(*last_message + MAX_SILENCE, events.next()) => {
                        if let Some(update) = self.handle_message(message.unwrap_or_default())? {
                            return Ok(update);
                        }
                    }
                    answer = ping => self.handle_ping(answer)?,
                },
            }
        }
    }

    /// Opens a stream after the back-off delay. A server whose data was lost or replaced would wait forever for a
    /// revision in its future, so the newest revision is checked first.
    fn open(&self) -> Opening<R> {
        let (cluster, keep, after) = (self.cluster.clone(), self.keep.clone(), self.after);
        let (delay, is_verified) = (backoff::delay(self.failures), self.is_verified);
        Box::pin(async move {
            sleep(delay).await;
            if !is_verified && cluster.newest_revision::<R>().await? < after {
                return Ok(None);
            }
            match timeout(OPEN_TIMEOUT, open_stream::<R>(&cluster, &keep, after)).await {
                Err(_) => Err(Failure::timed_out(OPEN_TIMEOUT)),
                Ok(Err(Failure { kind: FailureKind::Expired, .. })) => Ok(None),
                Ok(opened) => opened.map(Some),
            }
        })
    }

    fn finish_opening(&mut self, opened: Attempt<Option<Events<R>>>) -> Result<()> {
        match opened {
            Ok(Some(events)) => {
                let now = Instant::now();
                self.is_verified = true;
                let ping = ping_later(&self.cluster);
                self.state = State::Open { events, since: now, last_message: now, ping };
            }
            Ok(None) => self.state = State::Expired,
            Err(failure) => {
                self.close(false);
                return Err(self.cluster.read_error(failure));
            }
        }
        Ok(())
    }

    /// A server that answers may still have forgotten the stream, so the silence is counted on.
    fn handle_ping(&mut self, answer: Attempt<()>) -> Result<()> {
        if let Err(failure) = answer {
            self.close(false);
            return Err(self.cluster.read_error(failure));
        }
        if let State::Open { ping, .. } = &mut self.state {
            *ping = ping_later(&self.cluster);
        }
        Ok(())
    }

    /// Handles an event, an error, or the end of the stream (`None`).
    fn handle_message(
        &mut self,
        message: Option<kube::Result<WatchEvent<R::Wire>>>,
    ) -> Result<Option<WatchUpdate<R>>> {
        let failure = match message {
            Some(Ok(WatchEvent::Error(status))) => Failure::of_status(&status),
            Some(Ok(event)) => return Ok(self.handle_event(event)),
            Some(Err(error)) => Failure::new(error),
            None => Failure {
                kind: FailureKind::Unknown,
                cause: "the server closed the connection".into(),
            },
        };
        match failure.kind {
            FailureKind::Expired => self.state = State::Expired,
            _ => self.handle_broken_stream(failure)?,
        }
        Ok(None)
    }

    fn handle_event(&mut self, event: WatchEvent<R::Wire>) -> Option<WatchUpdate<R>> {
        self.failures = 0;
        if let State::Open { last_message, ping, .. } = &mut self.state {
            *last_message = Instant::now();
            *ping = ping_later(&self.cluster);
        }
        let events = match event {
            WatchEvent::Added(wire) | WatchEvent::Modified(wire) => {
                vec![Event::Applied(Object::new(wire, &self.keep))]
            }
            WatchEvent::Deleted(wire) => {
                let metadata = R::metadata(&wire);
                vec![Event::Deleted { name: metadata.name(), revision: metadata.revision() }]
            }
            WatchEvent::Bookmark(bookmark) => {
                self.after = self.after.max(Revision::parse(&bookmark.metadata.resource_version));
                Vec::new()
            }
            WatchEvent::Error(_) => return None,
        };
        self.after = events.iter().map(Event::revision).fold(self.after, Revision::max);
        Some(WatchUpdate::Changes { events, revision: self.after })
    }

    /// Continues with another stream. Reports the failure only after several in a row.
    fn handle_broken_stream(&mut self, failure: Failure) -> Result<()> {
        let State::Open { since, .. } = &self.state else {
            return Ok(());
        };
        let lasted = since.elapsed();
        tracing::debug!(path = R::PATH, after = %self.after, ?lasted, cause = %failure.cause, "watch stream ended");
        let is_regular =
            lasted >= Duration::from_secs(u64::from(STREAM_LIFETIME)).saturating_sub(STABLE);
        if lasted > STABLE {
            self.failures = 0;
        }
        self.close(is_regular);
        if self.failures > TOLERATED_FAILURES {
            return Err(self.cluster.read_error(failure));
        }
        Ok(())
    }

    fn close(&mut self, is_regular: bool) {
        self.state = State::Closed;
        if !is_regular {
            self.is_verified = false;
            self.failures = self.failures.saturating_add(1);
        }
    }
}

fn ping_later(cluster: &Cluster) -> Ping {
    let cluster = cluster.clone();
    Box::pin(async move {
        sleep(PING_AFTER).await;
        cluster.ping().await
    })
}

async fn open_stream<R: Resource>(
    cluster: &Cluster,
    keep: &R::Keep,
    after: Revision,
) -> Attempt<Events<R>> {
    let mut params = WatchParams::default().timeout(STREAM_LIFETIME);
    params.field_selector = R::field_selector(keep);
    let request = requests::<R>().watch(&params, &after.to_string());
    let request = request.map_err(|error| Failure::new(kube::Error::BuildRequest(error)))?;
    let events = cluster.client().request_events(request).await.map_err(Failure::new)?;
    Ok(Box::pin(events))
}
