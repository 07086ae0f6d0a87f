// SPDX-License-Identifier: Apache-2.0
//! Keeps a mirror up to date: lists, watches, and lists again when the server has lost the history.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::sleep;

use crate::watch::{Event, WatchUpdate, Watcher};
use crate::{Cluster, Mirror, Resource, Result, Revision, Snapshot};

/// Delay before the next list after a failed one.
const RELIST_DELAY: Duration = Duration::from_secs(1);

/// Delay before the next list after the server refused one.
const REFUSED_DELAY: Duration = Duration::from_secs(10);

/// Mirrors all objects of one kind.
///
/// This is not the reflector of kube-runtime 5.0, which notices a silent server only after five minutes, waits forever
/// if the data of the cluster was replaced, cannot start from an existing list, and keeps the whole metadata of each
/// object.
#[derive(Debug)]
pub struct Reflector<R: Resource> {
    cluster: Cluster,
    keep: R::Keep,
    mirror: Mirror<R>,
    source: Source<R>,
}

/// A change of the mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update<R> {
    /// These objects changed, in this order. The list may be empty: then only the revision has advanced.
    Changed { events: Vec<Event<R>>, revision: Revision },
    /// All objects were listed again and are in the mirror.
    Replaced { revision: Revision },
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

impl<R: Resource> Reflector<R> {
    /// Lists all objects first. The first list starts after a short delay, so that this can be used while the server
    /// is unreachable.
    pub fn new(cluster: Cluster, keep: R::Keep, mirror: Mirror<R>) -> Self {
        let source = Source::list(&cluster, &keep, RELIST_DELAY);
        Self { cluster, keep, mirror, source }
    }

    /// Watches from `after`, the revision of a list that is already in the mirror.
    pub fn resume(cluster: Cluster, keep: R::Keep, mirror: Mirror<R>, after: Revision) -> Self {
        let source = Source::Watch(Watcher::new(cluster.clone(), keep.clone(), after));
        Self { cluster, keep, mirror, source }
    }

    /// Waits for the next change and applies it to the mirror.
    ///
    /// The wait can be cancelled without losing changes. After an error the next call continues; the delay between
    /// attempts grows.
    pub async fn next(&mut self) -> Result<Update<R>> {
        loop {
            let update = match &mut self.source {
                Source::Watch(watcher) => watcher.next().await?,
                Source::List(listing) => {
                    let listed = listing.await;
                    return self.finish_list(listed);
                }
            };
            match update {
                WatchUpdate::Expired => self.source = self.list_after(Duration::ZERO),
                WatchUpdate::Changes { events, revision } => {
                    self.mirror.apply(&events, revision);
                    // The list fails with the same reason until there are fewer objects.
                    if let Some(limit) = self.mirror.exceeded() {
                        tracing::warn!(%limit, "ignoring changes until a list succeeds");
                        self.source = self.list_after(RELIST_DELAY);
                        continue;
                    }
                    return Ok(Update::Changed { events, revision });
                }
            }
        }
    }

    fn finish_list(&mut self, listed: Result<Snapshot<R>>) -> Result<Update<R>> {
        self.source = match &listed {
            Ok(snapshot) => Source::Watch(Watcher::new(
                self.cluster.clone(),
                self.keep.clone(),
                snapshot.revision,
            )),
            Err(error) if error.can_retry() => self.list_after(RELIST_DELAY),
            Err(_) => self.list_after(REFUSED_DELAY),
        };
        let snapshot = listed?;
        let revision = snapshot.revision;
        self.mirror.replace(snapshot);
        Ok(Update::Replaced { revision })
    }

    fn list_after(&self, delay: Duration) -> Source<R> {
        Source::list(&self.cluster, &self.keep, delay)
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
