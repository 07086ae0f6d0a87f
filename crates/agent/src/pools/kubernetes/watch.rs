// SPDX-License-Identifier: Apache-2.0
//! A watch of all kinds of objects in Kubernetes. After a restart of the API server, the watch lists the kinds
//! whose history is lost again, and reports the difference.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::poll_fn;
use std::task::Poll;

use cluster::{Cluster, Event, Followed, Follower, Snapshot};
use ipam::calico::{Key, crd};
use ipam::node::{Content, Revision, Stored};
use text::ErrorChain;

use super::kinds::StoredKind;
use crate::pools::objects::{BoxFuture, ObjectEvents, ObjectWatch};

/// The watches of all kinds.
#[derive(Debug)]
pub(super) struct KubernetesWatch {
    kinds: Vec<Box<dyn KindWatch>>,
}

/// A watch of one kind.
pub(super) trait KindWatch: fmt::Debug + Send {
    /// Waits for changes. The wait can be cancelled without losing changes.
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<Stored>, String>>;
}

impl KubernetesWatch {
    pub(super) fn new(kinds: Vec<Box<dyn KindWatch>>) -> Self {
        Self { kinds }
    }
}

impl ObjectWatch for KubernetesWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<ObjectEvents, String>> {
        Box::pin(async {
            let mut waits: Vec<_> = self.kinds.iter_mut().map(|kind| kind.next()).collect();
            let changed = poll_fn(|context| {
                let ready = waits.iter_mut().map(|wait| wait.as_mut().poll(context));
                let mut ready = ready.filter(Poll::is_ready);
                ready.next().unwrap_or(Poll::Pending)
            });
            changed.await.map(ObjectEvents::Changed)
        })
    }
}

type Seen<R> = Box<dyn Fn(&cluster::Object<R>) + Send>;

/// Follows the objects of one kind. `seen` is called with each object.
pub(super) struct Following<R: StoredKind> {
    follower: Follower<R>,
    present: Present,
    seen: Seen<R>,
}

impl<R: StoredKind> fmt::Debug for Following<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.follower.fmt(f)
    }
}

impl<R: StoredKind> Following<R> {
    /// Watches after a list that had these objects of the kind.
    pub(super) fn new<'a>(
        cluster: &Cluster,
        keep: R::Keep,
        listed: impl Iterator<Item = &'a Key>,
        after: u64,
        seen: impl Fn(&cluster::Object<R>) + Send + 'static,
    ) -> Self {
        let present = listed.map(|key| (crd::name(key), key.clone())).collect();
        Self {
            follower: Follower::resume(cluster.clone(), keep, cluster::Revision(after)),
            present: Present(present),
            seen: Box::new(seen),
        }
    }

    fn changed(&mut self, event: Event<R>) -> Option<Stored> {
        match event {
            Event::Applied(object) => {
                (self.seen)(&object);
                let name = object.name.clone();
                self.present.applied(name, R::stored(object)?)
            }
            Event::Deleted { name, revision } => self.present.deleted(&name, Revision(revision.0)),
        }
    }

    fn listed(&mut self, snapshot: Snapshot<R>) -> Vec<Stored> {
        let revision = Revision(snapshot.revision.0);
        let mut objects = Vec::new();
        for object in snapshot.objects {
            (self.seen)(&object);
            let name = object.name.clone();
            objects.extend(R::stored(object).map(|stored| (name, stored)));
        }
        self.present.replaced(objects, revision)
    }
}

impl<R: StoredKind> KindWatch for Following<R> {
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<Stored>, String>> {
        Box::pin(async {
            match self.follower.next().await {
                Ok(Followed::Changed { events, .. }) => {
                    Ok(events.into_iter().filter_map(|event| self.changed(event)).collect())
                }
                Ok(Followed::Listed(snapshot)) => Ok(self.listed(snapshot)),
                Err(error) => Err(ErrorChain(&error).to_string()),
            }
        })
    }
}

/// The objects of a kind that exist, by name. The report of a deletion has only the name.
#[derive(Debug, Default)]
struct Present(HashMap<String, Key>);

impl Present {
    fn applied(&mut self, name: String, stored: Stored) -> Option<Stored> {
        self.0.insert(name, stored.key.clone());
        Some(stored)
    }

    fn deleted(&mut self, name: &str, revision: Revision) -> Option<Stored> {
        let key = self.0.remove(name)?;
        Some(Stored { key, revision, content: Content::Deleted })
    }

    /// Takes a list, and returns its objects and those that are gone.
    fn replaced(&mut self, objects: Vec<(String, Stored)>, revision: Revision) -> Vec<Stored> {
        let names: HashSet<&String> = objects.iter().map(|(name, _)| name).collect();
        let gone: Vec<String> =
            self.0.keys().filter(|name| !names.contains(name)).cloned().collect();
        let gone: Vec<Stored> =
            gone.iter().filter_map(|name| self.deleted(name, revision)).collect();
        let listed = objects.into_iter().filter_map(|(name, stored)| self.applied(name, stored));
        gone.into_iter().chain(listed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(name: &str, revision: u64) -> (String, Stored) {
        let (key, content) = (Key::Pool(name.to_owned()), Content::Malformed(String::new()));
        (name.to_owned(), Stored { key, revision: Revision(revision), content })
    }

    #[test]
    fn list_after_lost_history_reports_missing_objects_as_deleted() {
        let mut present = Present::default();
        for (name, object) in [stored("a", 1), stored("b", 2)] {
            present.applied(name, object);
        }
        let reported = present.replaced(vec![stored("b", 2), stored("c", 7)], Revision(9));
        let gone = Stored { content: Content::Deleted, ..stored("a", 9).1 };
        assert_eq!(reported, [gone, stored("b", 2).1, stored("c", 7).1]);
        assert_eq!(present.deleted("a", Revision(10)), None);
        let deleted = present.deleted("c", Revision(11)).unwrap();
        assert_eq!((deleted.key, deleted.revision), (Key::Pool("c".to_owned()), Revision(11)));
    }
}
