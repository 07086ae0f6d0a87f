// SPDX-License-Identifier: Apache-2.0
//! Keeps a mirror up to date: lists, watches, and lists again when the server has lost the history.

use crate::follower::{Followed, Follower};
use crate::watch::Event;
use crate::{Cluster, Mirror, Resource, Result, Revision};

/// Mirrors all objects of one kind.
///
/// This is not the reflector of kube-runtime 5.0, which notices a silent server only after five minutes, waits forever
/// if the data of the cluster was replaced, cannot start from an existing list, and keeps the whole metadata of each
/// object.
#[derive(Debug)]
pub struct Reflector<R: Resource> {
    follower: Follower<R>,
    mirror: Mirror<R>,
}

/// A change of the mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update<R> {
    /// These objects changed, in this order. The list may be empty: then only the revision has advanced.
    Changed { events: Vec<Event<R>>, revision: Revision },
    /// All objects were listed again and are in the mirror.
    Replaced { revision: Revision },
}

impl<R: Resource> Reflector<R> {
    /// Lists all objects first. The first list starts after a short delay, so that this can be used while the server
    /// is unreachable.
    pub fn new(cluster: Cluster, keep: R::Keep, mirror: Mirror<R>) -> Self {
        Self { follower: Follower::new(cluster, keep), mirror }
    }

    /// Watches from `after`, the revision of a list that is already in the mirror.
    pub fn resume(cluster: Cluster, keep: R::Keep, mirror: Mirror<R>, after: Revision) -> Self {
        Self { follower: Follower::resume(cluster, keep, after), mirror }
    }

    /// Waits for the next change and applies it to the mirror.
    ///
    /// The wait can be cancelled without losing changes. After an error the next call continues; the delay between
    /// attempts grows.
    pub async fn next(&mut self) -> Result<Update<R>> {
        loop {
            match self.follower.next().await? {
                Followed::Listed(snapshot) => {
                    let revision = snapshot.revision;
                    self.mirror.replace(snapshot);
                    return Ok(Update::Replaced { revision });
                }
                Followed::Changed { events, revision } => {
                    self.mirror.apply(&events, revision);
                    // The list fails with the same reason until there are fewer objects.
                    if let Some(limit) = self.mirror.exceeded() {
                        tracing::warn!(%limit, "ignoring changes until a list succeeds");
                        self.follower.list_again();
                        continue;
                    }
                    return Ok(Update::Changed { events, revision });
                }
            }
        }
    }
}
