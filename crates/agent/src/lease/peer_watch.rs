// SPDX-License-Identifier: Apache-2.0
//! A watch of all leases that can be read ahead.

use std::collections::VecDeque;
use std::fmt;
use std::pin::pin;

use store::Revision;

use super::{BoxFuture, Error, LeaseBackend, StoreItem};

/// Changes in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerEvents {
    /// These items changed, in this order.
    Changed(Vec<StoreItem>),
    /// These are all items. Nodes that are missing have left.
    All(Vec<StoreItem>),
}

/// The changes of one backend.
pub trait PeerSource: fmt::Debug + Send {
    /// Waits for changes and returns them with the revision they reach. The wait can be cancelled without losing
    /// changes. After an error the next call continues; the source delays further attempts.
    fn next(&mut self) -> BoxFuture<'_, Result<(Revision, PeerEvents), Error>>;
}

/// A watch of all leases.
#[derive(Debug)]
pub struct PeerWatch {
    source: Box<dyn PeerSource>,
    revision: Revision,
    /// Events that arrived before they were asked for, with the revision they reach.
    buffered: VecDeque<(Revision, PeerEvents)>,
}

impl PeerWatch {
    /// Reports changes after a revision.
    pub fn new(backend: &dyn LeaseBackend, after: Revision) -> Self {
        Self { source: backend.watch(after), revision: after, buffered: VecDeque::new() }
    }

    /// Lists everything as soon as the store answers, then reports changes.
    pub fn after_list(backend: &dyn LeaseBackend, last: Revision) -> Self {
        Self { source: backend.watch_after_list(), revision: last, buffered: VecDeque::new() }
    }

    /// Returns the revision of the last returned events.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Keeps the watch running while `work` runs, because a late start is slow. If anything was written since the start
    /// revision, even this node's own lease, etcd serves the watch only ten times per second.
    pub async fn poll_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                // Errors are left to `next`: the source reports them again.
                Ok((revision, events)) = self.source.next() => self.buffer(revision, events),
            }
        }
    }

    /// Waits for changes, with the guarantees of [`PeerSource::next`].
    pub async fn next(&mut self) -> Result<PeerEvents, Error> {
        let (revision, events) = match self.buffered.pop_front() {
            Some(buffered) => buffered,
            None => self.source.next().await?,
        };
        self.revision = revision;
        Ok(events)
    }

    fn buffer(&mut self, revision: Revision, events: PeerEvents) {
        if matches!(events, PeerEvents::All(_)) {
            self.buffered.clear();
        }
        self.buffered.push_back((revision, events));
    }
}
