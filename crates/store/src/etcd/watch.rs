// SPDX-License-Identifier: Apache-2.0
//! A watch that outlives connections: it goes on, with whichever server, after the last revision seen.

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

/// How long to look for a server before saying that there is none. Looking goes on with the next call.
const PATIENCE: Duration = Duration::from_secs(3);

/// A stream that lasted this long was a good one, and its end is the first failure.
const GOOD: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Watcher {
    client: Arc<Client>,
    prefix: String,
    /// All changes up to here have been reported.
    after: Revision,
    live: Option<Live>,
    /// What a server knew that was not compared with what we know yet.
    unchecked: Option<Revision>,
    is_over: bool,
    /// In a row, without a word about the watched entries in between.
    failures: u32,
    /// The last word was an error: that it goes on is news.
    was_missed: bool,
}

/// A stream of answers, and the session it came with.
#[derive(Debug)]
struct Live {
    answers: Streaming<WatchAnswer>,
    session: u64,
    since: Instant,
}

/// What an answer means.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The watch stands, at a server that knows this revision.
    Created(Revision),
    Changes(Vec<Event>, Revision),
    Compacted,
    /// The server has ended the watch; `true` if because of who we are.
    Cancelled(String, bool),
}

impl Watcher {
    pub fn new(client: Arc<Client>, prefix: String, after: Revision) -> Self {
        Self {
            client,
            prefix,
            after,
            live: None,
            unchecked: None,
            is_over: false,
            failures: 0,
            was_missed: false,
        }
    }

    async fn changes(&mut self) -> Result<Watched> {
        loop {
            if let Some(there) = self.unchecked {
                self.check(there).await.inspect_err(|_| self.failed())?;
                if self.was_missed && !self.is_over {
                    return Ok(Watched::Changes { events: Vec::new(), revision: self.after });
                }
            }
            if self.is_over {
                return Ok(Watched::Compacted);
            }
            let Some(live) = &mut self.live else {
                self.open().await?;
                continue;
            };
            match live.answers.message().await {
                Ok(Some(answer)) => {
                    if let Some(watched) = self.take(judge(answer)).await? {
                        return Ok(watched);
                    }
                }
                Ok(None) => self.broken(&Status::unavailable("the server hung up")).await?,
                // A list skips the value that makes it so large.
                Err(status) if is_too_large(&status) => {
                    self.live = None;
                    self.is_over = true;
                }
                Err(status) => self.broken(&status).await?,
            }
        }
    }

    async fn take(&mut self, step: Step) -> Result<Option<Watched>> {
        match step {
            Step::Created(there) => self.unchecked = Some(there),
            Step::Changes(events, revision) => {
                self.failures = 0;
                self.after = self.after.max(revision);
                return Ok(Some(Watched::Changes { events, revision: self.after }));
            }
            Step::Compacted => self.is_over = true,
            Step::Cancelled(reason, true) => {
                self.broken(&Status::unauthenticated(reason)).await?;
            }
            Step::Cancelled(reason, false) => self.broken(&Status::unavailable(reason)).await?,
        }
        Ok(None)
    }

    /// A server that does not know our revision yet is late, and will come to it; a cluster that does
    /// not know it has lost its data, or is another one, and would let us wait for ever.
    async fn check(&mut self, there: Revision) -> Result<()> {
        if there < self.after {
            let count = Range { count_only: true, ..Range::of_prefix(&self.prefix) };
            let answer = self.client.call(count, Effect::None).await?;
            self.is_over = revision(answer.header.unwrap_or_default().revision) < self.after;
        }
        self.unchecked = None;
        Ok(())
    }

    async fn open(&mut self) -> Result<()> {
        if self.failures > 0 {
            sleep(backoff::pause(self.failures, backoff::noise())).await;
        }
        let request = request(&self.prefix, self.after);
        let attempt = |session: Session| {
            // The stream of requests stays open: its end would be that of the watch.
            let requests = tokio_stream::once(request.clone()).chain(tokio_stream::pending());
            let number = session.number();
            async move {
                let answers = session.stream(WATCH, requests).await?;
                Ok(Live { answers, session: number, since: Instant::now() })
            }
        };
        match self.client.repeat(PATIENCE, Effect::None, attempt).await {
            Ok((live, _)) => self.live = Some(live),
            Err(error) => {
                self.failed();
                return Err(error);
            }
        }
        Ok(())
    }

    /// There will be a new stream, after a pause.
    fn failed(&mut self) {
        self.live = None;
        self.unchecked = None;
        self.failures = self.failures.saturating_add(1);
    }

    /// Takes note that the stream has ended. The first time round nobody has to know, as another
    /// server will do.
    async fn broken(&mut self, status: &Status) -> Result<()> {
        let kind = Failure::of(status).kind();
        if let Some(live) = self.live.take() {
            self.failures = if live.since.elapsed() > GOOD { 0 } else { self.failures };
            self.client.discard(live.session, kind).await;
        }
        tracing::debug!(prefix = self.prefix, after = %self.after, ?status, "watch broken");
        self.failed();
        let servers = u32::try_from(self.client.endpoint_count()).unwrap_or(u32::MAX);
        let is_denied = matches!(kind, FailureKind::Refused | FailureKind::Unauthenticated);
        match self.failures {
            // A token may be out of date, once.
            2.. if is_denied => Err(self.client.refused(cause(status))),
            failures if failures > servers => Err(self.client.unavailable(cause(status))),
            _ => Ok(()),
        }
    }
}

impl Watch for Watcher {
    fn next(&mut self) -> BoxFuture<'_, Watched> {
        Box::pin(async {
            let watched = self.changes().await;
            self.was_missed = watched.is_err();
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

fn judge(answer: WatchAnswer) -> Step {
    // The newest there is, which may be newer than what this answer tells of.
    let header = revision(answer.header.unwrap_or_default().revision);
    if answer.compact_revision > 0 || answer.cancel_reason.contains("has been compacted") {
        return Step::Compacted;
    }
    if answer.canceled {
        let reason = answer.cancel_reason;
        // etcd 3.4 says that permission is denied when it does not know the token.
        let words = ["permission denied", "invalid auth token", "auth store", "user name is empty"];
        let is_about_us = words.iter().any(|words| reason.contains(words));
        return Step::Cancelled(reason, is_about_us);
    }
    if answer.created {
        return Step::Created(header);
    }
    let last = answer.events.iter().rev().find_map(|event| event.kv.as_ref());
    let reached = match last.map(|kv| revision(kv.mod_revision)) {
        // A watch that goes on after this answer must see the rest of the revision.
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
        return Some(Event::Deleted { key: limit::key(text(kv.key)?), revision });
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
    fn revision_reached_is_that_of_the_last_event() {
        let events = vec![
            change(EventType::Put, b"a", 7),
            change(EventType::Delete, b"b", 8),
            change(EventType::Put, &[0xff], 9),
        ];
        let Step::Changes(events, reached) = judge(WatchAnswer { events, ..answer(12) }) else {
            panic!("changes are changes");
        };
        assert_eq!(reached, Revision(9));
        let keys: Vec<_> = events.iter().map(|event| (event.key(), event.revision().0)).collect();
        assert_eq!(keys, [("a", 7), ("b", 8)]);
        assert!(matches!(events[1], Event::Deleted { .. }));
    }

    #[test]
    fn answer_without_events_is_progress() {
        assert_eq!(judge(answer(12)), Step::Changes(Vec::new(), Revision(12)));
        let created = WatchAnswer { created: true, ..answer(12) };
        assert_eq!(judge(created), Step::Created(Revision(12)));
    }

    #[test]
    fn cancellations_are_told_apart() {
        fn check(compact_revision: i64, reason: &str, expected: &Step) {
            let cancel_reason = reason.to_owned();
            // Some come in one with the creation.
            for created in [false, true] {
                let cancel_reason = cancel_reason.clone();
                let answer = WatchAnswer {
                    created,
                    canceled: true,
                    compact_revision,
                    cancel_reason,
                    ..answer(12)
                };
                assert_eq!(&judge(answer), expected, "{reason}");
            }
        }
        check(5, "", &Step::Compacted);
        check(0, "etcdserver: mvcc: required revision has been compacted", &Step::Compacted);
        let denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
        check(0, denied, &Step::Cancelled(denied.into(), true));
        check(0, "etcdserver: no leader", &Step::Cancelled("etcdserver: no leader".into(), false));
    }

    #[test]
    fn watch_starts_after_what_is_known() {
        let Some(WatchUnion::Create(create)) = request("/a/", Revision(41)).request else {
            panic!("there is a request");
        };
        assert_eq!(create.start_revision, 42);
        assert!(create.progress_notify);
    }
}
