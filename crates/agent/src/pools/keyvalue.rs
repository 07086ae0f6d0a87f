// SPDX-License-Identifier: Apache-2.0
//! Calico's objects in the embedded store or in etcd, under the keys that Calico uses there.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use ipam::calico::{Key, Object, etcd};
use ipam::node::{Content, Outcome, Revision, Stored, Verb};
use store::{Entry, Event, Store, Watch, Watched, WriteResult};
use text::ErrorChain;

use super::objects::{BoxFuture, HandleListing, Listed, ObjectEvents, ObjectStore, ObjectWatch};

/// Prefixes of the objects that are listed and watched. Handles are read one by one: there is one per pod
/// of the whole cluster.
const PREFIXES: [&str; 6] =
    [etcd::POOLS, etcd::RESERVATIONS, etcd::CONFIG, etcd::NODES, etcd::BLOCKS, etcd::AFFINITIES];

/// The objects in a key-value store.
#[derive(Debug, Clone)]
pub(crate) struct KeyValueObjects {
    store: Arc<dyn Store>,
}

impl KeyValueObjects {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    async fn list_all(&self) -> store::Result<Listed> {
        let mut listed = Listed::default();
        for prefix in PREFIXES {
            let snapshot = self.store.list(prefix).await?;
            listed.objects.extend(snapshot.entries.iter().filter_map(stored));
            listed.revisions.push(snapshot.revision.0);
        }
        Ok(listed)
    }

    async fn try_list_handles(&self) -> store::Result<HandleListing> {
        let handles = self.store.list(etcd::HANDLES).await?;
        let blocks = self.store.list(etcd::BLOCKS).await?;
        let handle = |stored: Stored| match stored.key {
            Key::Handle(id) => Some((id, stored.revision)),
            _ => None,
        };
        let block = |stored: Stored| match stored.content {
            Content::Object(Object::Block(block)) => Some(block),
            _ => None,
        };
        Ok(HandleListing {
            handles: handles.entries.iter().filter_map(stored).filter_map(handle).collect(),
            blocks: blocks.entries.iter().filter_map(stored).filter_map(block).collect(),
        })
    }

    async fn try_perform(&self, key: &Key, verb: &Verb) -> store::Result<Outcome> {
        let text = etcd::key(key);
        let written = match verb {
            Verb::Read => {
                let entry = self.store.get(&text).await?;
                return Ok(Outcome::Current(entry.as_ref().and_then(stored).map(Box::new)));
            }
            Verb::Create(object) => {
                self.store.create(&text, &etcd::value(key, object), None).await?
            }
            Verb::Replace(revision, object) => {
                let (value, expected) = (etcd::value(key, object), store::Revision(revision.0));
                self.store.compare_and_swap(&text, &value, expected, None).await?
            }
            Verb::Delete(revision) => {
                self.store.delete(&text, Some(store::Revision(revision.0))).await?
            }
        };
        Ok(match written {
            WriteResult::Done(revision) => Outcome::Done(Revision(revision.0)),
            WriteResult::Conflict(entry) => {
                Outcome::Current(entry.as_ref().and_then(stored).map(Box::new))
            }
        })
    }
}

impl ObjectStore for KeyValueObjects {
    fn list(&self) -> BoxFuture<'_, Result<Listed, String>> {
        Box::pin(async { self.list_all().await.map_err(|error| ErrorChain(&error).to_string()) })
    }

    fn watch(&self, after: &Listed) -> Box<dyn ObjectWatch> {
        let watches = PREFIXES
            .iter()
            .zip(&after.revisions)
            .map(|(prefix, revision)| self.store.watch(prefix, store::Revision(*revision)));
        Box::new(KeyValueWatch { watches: watches.collect() })
    }

    fn perform<'a>(&'a self, key: &'a Key, verb: &'a Verb) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let performed = self.try_perform(key, verb).await;
            performed.unwrap_or_else(|error| Outcome::Unreachable(ErrorChain(&error).to_string()))
        })
    }

    fn list_handles(&self) -> BoxFuture<'_, Result<Option<HandleListing>, String>> {
        Box::pin(async {
            let listed = self.try_list_handles().await;
            listed.map(Some).map_err(|error| ErrorChain(&error).to_string())
        })
    }

    fn reconnect(&self) {
        self.store.reconnect();
    }
}

/// One watch per prefix.
#[derive(Debug)]
struct KeyValueWatch {
    watches: Vec<Box<dyn Watch>>,
}

impl ObjectWatch for KeyValueWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<ObjectEvents, String>> {
        Box::pin(async {
            // Dropping the waits of the other watches loses nothing.
            let mut waits: Vec<_> = self.watches.iter_mut().map(|watch| watch.next()).collect();
            let watched = poll_fn(|context| {
                let ready = waits.iter_mut().map(|wait| wait.as_mut().poll(context));
                let mut ready = ready.filter(Poll::is_ready);
                ready.next().unwrap_or(Poll::Pending)
            });
            match watched.await {
                Ok(Watched::Compacted) => Ok(ObjectEvents::Lost),
                Ok(Watched::Changes { events, .. }) => {
                    Ok(ObjectEvents::Changed(events.iter().filter_map(changed).collect()))
                }
                Err(error) => Err(ErrorChain(&error).to_string()),
            }
        })
    }
}

/// Returns `None` for a key that stands for no object.
fn stored(entry: &Entry) -> Option<Stored> {
    let key = etcd::parse_key(&entry.key)?;
    let content = match entry.too_large() {
        Some(reason) => Content::Malformed(reason),
        None => match etcd::parse(&key, &entry.value) {
            Ok(object) => Content::Object(object),
            Err(error) => Content::Malformed(error.reason),
        },
    };
    Some(Stored { key, revision: Revision(entry.revision.0), content })
}

fn changed(event: &Event) -> Option<Stored> {
    match event {
        Event::Put(entry) => stored(entry),
        Event::Deleted { key, revision } => {
            let key = etcd::parse_key(key)?;
            Some(Stored { key, revision: Revision(revision.0), content: Content::Deleted })
        }
    }
}
