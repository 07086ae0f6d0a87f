// SPDX-License-Identifier: Apache-2.0
//! Changes as they come. Where the store no longer has them, all is listed anew.

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
}

impl Follow {
    pub(super) fn new(leases: Leases, after: Revision) -> Self {
        let watch = Some(leases.store.watch(&leases.layout.all(), after));
        Self { leases, watch, revision: after }
    }

    /// How far it has come.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Waits. It can be given up and taken up again; an error is not the end, and the store pauses
    /// before it tries again.
    pub async fn next(&mut self) -> Result<News, Error> {
        loop {
            let Some(watch) = &mut self.watch else {
                let snapshot = self.leases.list().await?;
                *self = self.leases.follow(snapshot.revision);
                return Ok(News::All(self.leases.understand(&snapshot)));
            };
            match watch.next().await? {
                Watched::Compacted => self.watch = None,
                Watched::Changes { events, revision } => {
                    self.revision = revision;
                    let layout = &self.leases.layout;
                    let seen: Vec<Seen> =
                        events.iter().filter_map(|event| layout.changed(event)).collect();
                    return Ok(News::Changes(seen));
                }
            }
        }
    }
}
