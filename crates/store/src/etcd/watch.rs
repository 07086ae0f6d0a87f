// SPDX-License-Identifier: Apache-2.0
//! A watch that outlives its connections: it continues with any server after the last reported revision.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};

use super::client::{Client, Effect, Session, cause, is_too_large};
use super::failure::{Failure, FailureKind};
use super::proto::{
    self, EventType, Range, WATCH, WatchAnswer, WatchCreate, WatchRequest, WatchUnion,
};
use super::{entry, revision, text};
use crate::{BoxFuture, Event, Result, Revision, Watch, Watched, backoff, limit};

/// How long to look for a server before an error is returned. The next call continues.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// A stream that lasted this long counts as a success.
const STABLE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Watcher {
    client: Arc<Client>,
    prefix: String,
    /// All changes up to this revision have been reported.
    after: Revision,
    stream: Option<Stream>,
    /// The newest revision of the server, if it was not compared with `after` yet.
    unchecked: Option<Revision>,
    is_compacted: bool,
    /// Failures in a row.
    failures: u32,
    /// The last call returned an error, so recovery has to be reported.
    has_reported_error: bool,
}

/// A stream of answers and its session.
#[derive(Debug)]
struct Stream {
    answers: Streaming<WatchAnswer>,
    session: u64,
    since: Instant,
}

/// The meaning of an answer.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The watch is open, at a server with this newest revision.
    Created(Revision),
    Changes(Vec<Event>, Revision),
    Compacted,
    /// The server has ended the watch, for this reason. `true` if the login is the reason.
    Cancelled(String, bool),
}

impl Watcher {
    pub(super) fn new(client: Arc<Client>, prefix: String, after: Revision) -> Self {
        Self {
            client,
            prefix,
            after,
            stream: None,
            unchecked: None,
            is_compacted: false,
            failures: 0,
            has_reported_error: false,
        }
    }

    async fn next_changes(&mut self) -> Result<Watched> {
        loop {
            if let Some(newest) = self.unchecked {
                self.check(newest).await.inspect_err(|_| self.failed())?;
                if self.has_reported_error && !self.is_compacted {
                    return Ok(Watched::Changes { events: Vec::new(), revision: self.after });
                }
            }
            if self.is_compacted {
                return Ok(Watched::Compacted);
            }
            let Some(stream) = &mut self.stream else {
                self.open().await?;
                continue;
            };
            match stream.answers.message().await {
                Ok(Some(answer)) => {
                    if let Some(watched) = self.handle(classify(answer)).await? {
                        return Ok(watched);
                    }
                }
                Ok(None) => {
                    self.broken(&Status::unavailable("the server closed the connection")).await?;
                }
                // A list can leave out the oversized value.
                Err(status) if is_too_large(&status) => {
                    self.stream = None;
                    self.is_compacted = true;
                }
                Err(status) => self.broken(&status).await?,
            }
        }
    }

    async fn handle(&mut self, step: Step) -> Result<Option<Watched>> {
        match step {
            Step::Created(newest) => self.unchecked = Some(newest),
            Step::Changes(events, revision) => {
                self.failures = 0;
                self.after = self.after.max(revision);
                return Ok(Some(Watched::Changes { events, revision: self.after }));
            }
            Step::Compacted => self.is_compacted = true,
            Step::Cancelled(reason, true) => {
                self.broken(&Status::unauthenticated(reason)).await?;
            }
            Step::Cancelled(reason, false) => self.broken(&Status::unavailable(reason)).await?,
        }
        Ok(None)
    }

    /// A server that does not have the revision yet is behind. A cluster that does not have it has lost its data or is
    /// another one, and the watch would wait forever.
    async fn check(&mut self, newest: Revision) -> Result<()> {
        if newest < self.after {
            let count = Range { count_only: true, ..Range::of_prefix(&self.prefix) };
            let answer = self.client.call(count, Effect::None).await?;
            self.is_compacted = revision(answer.header.unwrap_or_default().revision) < self.after;
        }
        self.unchecked = None;
        Ok(())
    }

    async fn open(&mut self) -> Result<()> {
        if self.failures > 0 {
            sleep(backoff::delay(self.failures, backoff::random())).await;
        }
        let request = request(&self.prefix, self.after);
        let attempt = |session: Session| {
            // The stream of requests stays open, because its end would end the watch.
            let requests = tokio_stream::once(request.clone()).chain(tokio_stream::pending());
            let number = session.number();
            async move {
                let answers = session.stream(WATCH, requests).await?;
                Ok(Stream { answers, session: number, since: Instant::now() })
            }
        };
        match self.client.repeat(OPEN_TIMEOUT, Effect::None, attempt).await {
            Ok((stream, _)) => self.stream = Some(stream),
            Err(error) => {
                self.failed();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Makes the next call open a new stream, after a delay.
    fn failed(&mut self) {
        self.stream = None;
        self.unchecked = None;
        self.failures = self.failures.saturating_add(1);
    }

    /// Handles the end of a stream. It is reported only after all servers have failed.
    async fn broken(&mut self, status: &Status) -> Result<()> {
        let kind = Failure::of(status).kind();
        if let Some(stream) = self.stream.take() {
            self.failures = if stream.since.elapsed() > STABLE { 0 } else { self.failures };
            self.client.discard(stream.session, kind).await;
        }
        tracing::debug!(prefix = self.prefix, after = %self.after, ?status, "watch stream ended");
        self.failed();
        let servers = u32::try_from(self.client.endpoint_count()).unwrap_or(u32::MAX);
        let is_denied = matches!(kind, FailureKind::Refused | FailureKind::Unauthenticated);
        match self.failures {
            // The first time, only the token may be outdated.
            2.. if is_denied => Err(self.client.refused(cause(status))),
            failures if failures > servers => Err(self.client.unavailable(cause(status))),
            _ => Ok(()),
        }
    }
}

impl Watch for Watcher {
    fn next(&mut self) -> BoxFuture<'_, Watched> {
        Box::pin(async {
            let watched = self.next_changes().await;
            self.has_reported_error = watched.is_err();
            watched
        })
    }
}

fn request(prefix: &str, after: Revision) -> WatchRequest {
    let (key, range_end) = proto::bounds(prefix);
    let start_revision = i64::try_from(after.0).unwrap_or(i64::MAX).saturating_add(1);
    let create =
        WatchCreate { key, range_end, start_revision, progress_notify: true, fragment: true };
    WatchRequest { request: Some(WatchUnion::Create(create)) }
}

fn classify(answer: WatchAnswer) -> Step {
    // The newest revision of the server, which may be newer than the events.
    let header = revision(answer.header.unwrap_or_default().revision);
    if answer.compact_revision > 0 || answer.cancel_reason.contains("has been compacted") {
        return Step::Compacted;
    }
    if answer.canceled {
        let reason = answer.cancel_reason;
        // etcd 3.4 reports a denied permission if it does not know the token.
        let texts = ["permission denied", "invalid auth token", "auth store", "user name is empty"];
        let is_login = texts.iter().any(|text| reason.contains(text));
        return Step::Cancelled(reason, is_login);
    }
    if answer.created {
        return Step::Created(header);
    }
    let last = answer.events.iter().rev().find_map(|event| event.kv.as_ref());
    let reached = match last.map(|kv| revision(kv.mod_revision)) {
        // A watch that is re-opened after this answer must receive the rest of the revision.
        Some(last) if answer.fragment => Revision(last.0.saturating_sub(1)),
        Some(last) => last,
        None => header,
    };
    Step::Changes(answer.events.into_iter().filter_map(event).collect(), reached)
}

fn event(event: proto::Event) -> Option<Event> {
    let is_deletion = event.kind == i32::from(EventType::Delete);
    let kv = event.kv?;
    if is_deletion {
        let revision = revision(kv.mod_revision);
        return Some(Event::Deleted { key: limit::shorten_key(text(kv.key)?), revision });
    }
    entry(kv, false).map(Event::Put)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::proto::{Header, KeyValue};

    fn answer(revision: i64) -> WatchAnswer {
        WatchAnswer { header: Some(Header { revision }), ..WatchAnswer::default() }
    }

    fn change(kind: EventType, key: &[u8], mod_revision: i64) -> proto::Event {
        let kv = KeyValue { key: key.into(), mod_revision, ..KeyValue::default() };
        proto::Event { kind: kind.into(), kv: Some(kv) }
    }

    #[test]
    fn reached_revision_is_that_of_the_last_event() {
        let events = vec![
            change(EventType::Put, b"a", 7),
            change(EventType::Delete, b"b", 8),
            change(EventType::Put, &[0xff], 9),
        ];
        let Step::Changes(events, reached) = classify(WatchAnswer { events, ..answer(12) }) else {
            panic!("these are changes");
        };
        assert_eq!(reached, Revision(9));
        let keys: Vec<_> = events.iter().map(|event| (event.key(), event.revision().0)).collect();
        assert_eq!(keys, [("a", 7), ("b", 8)]);
        assert!(matches!(events[1], Event::Deleted { .. }));
    }

    #[test]
    fn answer_without_events_is_progress() {
        assert_eq!(classify(answer(12)), Step::Changes(Vec::new(), Revision(12)));
        let created = WatchAnswer { created: true, ..answer(12) };
        assert_eq!(classify(created), Step::Created(Revision(12)));
    }

    #[test]
    fn cancellations_are_classified() {
        fn check(compact_revision: i64, reason: &str, expected: &Step) {
            let cancel_reason = reason.to_owned();
            // Some arrive together with the creation.
            for created in [false, true] {
                let cancel_reason = cancel_reason.clone();
                let answer = WatchAnswer {
                    created,
                    canceled: true,
                    compact_revision,
                    cancel_reason,
                    ..answer(12)
                };
                assert_eq!(&classify(answer), expected, "{reason}");
            }
        }
        check(5, "", &Step::Compacted);
        check(0, "etcdserver: mvcc: required revision has been compacted", &Step::Compacted);
        let denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
        check(0, denied, &Step::Cancelled(denied.into(), true));
        check(0, "etcdserver: no leader", &Step::Cancelled("etcdserver: no leader".into(), false));
    }

    #[test]
    fn watch_starts_after_the_known_revision() {
        let Some(WatchUnion::Create(create)) = request("/a/", Revision(41)).request else {
            panic!("the request creates a watch");
        };
        assert_eq!(create.start_revision, 42);
        assert!(create.progress_notify);
    }
}
