// SPDX-License-Identifier: Apache-2.0
//! Changes as they come. Where the store no longer has them, all is listed anew.

use std::collections::VecDeque;
use std::pin::pin;

use store::{Error, Revision, Watch, Watched};

use super::{Leases, Seen};

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
    /// None where all has to be listed first.
    watch: Option<Box<dyn Watch>>,
    revision: Revision,
    /// Heard before anybody asked, with how far that was.
    early: VecDeque<(Revision, News)>,
}

impl Follow {
    pub(super) fn new(leases: Leases, after: Revision) -> Self {
        let watch = Some(leases.store.watch(&leases.layout.all(), after));
        Self { leases, watch, revision: after, early: VecDeque::new() }
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
            let Some(watch) = &mut self.watch else {
                let snapshot = self.leases.list().await?;
                *self = self.leases.follow(snapshot.revision);
                let all = News::All(self.leases.understand(&snapshot));
                return Ok((snapshot.revision, all));
            };
            match watch.next().await? {
                Watched::Compacted => self.watch = None,
                Watched::Changes { events, revision } => {
                    let layout = &self.leases.layout;
                    let seen: Vec<Seen> =
                        events.iter().filter_map(|event| layout.changed(event)).collect();
                    return Ok((revision, News::Changes(seen)));
                }
            }
        }
    }
}
