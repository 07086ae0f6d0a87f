// SPDX-License-Identifier: Apache-2.0
//! A watch without end: lists again when the server has lost the history.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::sleep;

use crate::watch::{Event, WatchUpdate, Watcher};
use crate::{Cluster, Resource, Result, Revision, Snapshot};

/// Delay before the next list after a failed one.
const RELIST_DELAY: Duration = Duration::from_secs(1);

/// Delay before the next list after the server refused one.
const REFUSED_DELAY: Duration = Duration::from_secs(10);

/// Follows all objects of one kind and keeps none of them. [`Reflector`](crate::Reflector) keeps them.
#[derive(Debug)]
pub struct Follower<R: Resource> {
    cluster: Cluster,
    keep: R::Keep,
    source: Source<R>,
}

/// Changes of the objects, or a new list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed<R> {
    /// These objects changed, in this order. The list may be empty: then only the revision has advanced.
    Changed { events: Vec<Event<R>>, revision: Revision },
    /// All objects. Changes since the last report may be missing, also deletions.
    Listed(Snapshot<R>),
}

type Listing<R> = Pin<Box<dyn Future<Output = Result<Snapshot<R>>> + Send>>;

enum Source<R: Resource> {
    Watch(Watcher<R>),
    /// Stored, so that a cancelled wait does not start the list again.
    List(Listing<R>),
}

impl<R: Resource> fmt::Debug for Source<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Watch(watcher) => watcher.fmt(f),
            Source::List(_) => f.write_str("List"),
        }
    }
}

impl<R: Resource> Follower<R> {
    /// Lists all objects first. The first list starts after a short delay, so that this can be used while the server
    /// is unreachable.
    pub fn new(cluster: Cluster, keep: R::Keep) -> Self {
        let source = Source::list(&cluster, &keep, RELIST_DELAY);
        Self { cluster, keep, source }
    }

    /// Watches from `after`, the revision of a list.
    pub fn resume(cluster: Cluster, keep: R::Keep, after: Revision) -> Self {
        let source = Source::Watch(Watcher::new(cluster.clone(), keep.clone(), after));
        Self { cluster, keep, source }
    }

    /// Waits for the next change.
    ///
    /// The wait can be cancelled without losing changes. After an error the next call continues; the delay between
    /// attempts grows.
    pub async fn next(&mut self) -> Result<Followed<R>> {
        loop {
            match &mut self.source {
                Source::Watch(watcher) => match watcher.next().await? {
                    WatchUpdate::Expired => self.list_after(Duration::ZERO),
                    WatchUpdate::Changes { events, revision } => {
                        return Ok(Followed::Changed { events, revision });
                    }
                },
                Source::List(listing) => {
                    let listed = listing.await;
                    return self.finish_list(listed);
                }
            }
        }
    }

    fn finish_list(&mut self, listed: Result<Snapshot<R>>) -> Result<Followed<R>> {
        match &listed {
            Ok(snapshot) => {
                let (cluster, keep) = (self.cluster.clone(), self.keep.clone());
                self.source = Source::Watch(Watcher::new(cluster, keep, snapshot.revision));
            }
            Err(error) if error.can_retry() => self.list_after(RELIST_DELAY),
            Err(_) => self.list_after(REFUSED_DELAY),
        }
        listed.map(Followed::Listed)
    }

    /// Lists all objects again, after a delay.
    pub(crate) fn list_again(&mut self) {
        self.list_after(RELIST_DELAY);
    }

    fn list_after(&mut self, delay: Duration) {
        self.source = Source::list(&self.cluster, &self.keep, delay);
    }
}

impl<R: Resource> Source<R> {
    fn list(cluster: &Cluster, keep: &R::Keep, delay: Duration) -> Self {
        let (cluster, keep) = (cluster.clone(), keep.clone());
        Self::List(Box::pin(async move {
            sleep(delay).await;
            cluster.list(&keep).await
        }))
    }
}
