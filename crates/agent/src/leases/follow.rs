// SPDX-License-Identifier: Apache-2.0
//! Changes as they come. Where the store no longer has them, all is listed anew.

use std::collections::VecDeque;
use std::fmt;
use std::pin::{Pin, pin};
use std::time::Duration;

use store::{Error, Revision, Snapshot, Watch, Watched};
use tokio::time::sleep;

use super::{Leases, Seen};

/// After a list that failed.
const LIST_AGAIN: Duration = Duration::from_secs(1);

/// After a list that the store refused.
const LIST_LATER: Duration = Duration::from_secs(10);

/// What is new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// These have changed, in this order.
    Changes(Vec<Seen>),
    /// This is all there is; who is missing has left.
    All(Vec<Seen>),
}

/// A watch of the network.
#[derive(Debug)]
pub struct Follow {
    leases: Leases,
    source: Source,
    revision: Revision,
    /// Heard before anybody asked, with how far that was.
    early: VecDeque<(Revision, News)>,
}

enum Source {
    Watch(Box<dyn Watch>),
    /// All has to be listed first. Kept, so that whoever gives up waiting does not start it anew.
    List(Pin<Box<dyn Future<Output = Result<Snapshot, Error>> + Send>>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Source::Watch(_)) { "Watch" } else { "List" })
    }
}

impl Source {
    fn watch(leases: &Leases, after: Revision) -> Self {
        Self::Watch(leases.store.watch(&leases.layout.all(), after))
    }

    fn list(leases: &Leases, pause: Duration) -> Self {
        let leases = leases.clone();
        Self::List(Box::pin(async move {
            sleep(pause).await;
            leases.list().await
        }))
    }
}

impl Follow {
    pub(super) fn new(leases: Leases, after: Revision) -> Self {
        let source = Source::watch(&leases, after);
        Self { leases, source, revision: after, early: VecDeque::new() }
    }

    pub(super) fn with_list(leases: Leases, after: Revision) -> Self {
        let source = Source::list(&leases, LIST_AGAIN);
        Self { leases, source, revision: after, early: VecDeque::new() }
    }

    /// How far it has come.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Listens while something is done. etcd looks only ten times a second after watches that begin in the
    /// past, and the past begins with the first write of anybody, such as of our own lease.
    pub async fn listen_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                // An error is for who asks: there will be another.
                Ok(heard) = self.hear() => self.early.push_back(heard),
            }
        }
    }

    /// Waits. It can be given up and taken up again; an error is not the end, and the store pauses
    /// before it tries again.
    pub async fn next(&mut self) -> Result<News, Error> {
        let (revision, news) = match self.early.pop_front() {
            Some(heard) => heard,
            None => self.hear().await?,
        };
        self.revision = revision;
        Ok(news)
    }

    async fn hear(&mut self) -> Result<(Revision, News), Error> {
        loop {
            let watched = match &mut self.source {
                Source::Watch(watch) => watch.next().await?,
                Source::List(listing) => {
                    let listed = listing.await;
                    return self.listed(listed);
                }
            };
            match watched {
                Watched::Compacted => self.source = Source::list(&self.leases, Duration::ZERO),
                Watched::Changes { events, revision } => {
                    self.leases.last.heard(&events, revision);
                    // The list is refused by the store, which tells why, until there is less.
                    if let Some(why) = self.leases.exceeded() {
                        tracing::warn!(%why, "changes of the store ignored");
                        self.source = Source::list(&self.leases, LIST_AGAIN);
                        continue;
                    }
                    let layout = &self.leases.layout;
                    let seen: Vec<Seen> =
                        events.iter().filter_map(|event| layout.changed(event)).collect();
                    return Ok((revision, News::Changes(seen)));
                }
            }
        }
    }

    fn listed(&mut self, listed: Result<Snapshot, Error>) -> Result<(Revision, News), Error> {
        self.source = match &listed {
            Ok(snapshot) => Source::watch(&self.leases, snapshot.revision),
            Err(error) if !error.can_retry() => Source::list(&self.leases, LIST_LATER),
            Err(_) => Source::list(&self.leases, LIST_AGAIN),
        };
        let snapshot = listed?;
        self.early.clear();
        Ok((snapshot.revision, News::All(self.leases.understand(&snapshot))))
    }
}
