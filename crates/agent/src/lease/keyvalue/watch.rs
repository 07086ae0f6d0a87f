// SPDX-License-Identifier: Apache-2.0
//! A watch of a store that lists everything again when the store has lost the history.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use store::{Revision, Snapshot, Watch, Watched};
use tokio::time::sleep;

use super::KeyValueLeases;
use crate::lease::{BoxFuture, Error, PeerEvents, PeerSource};

/// Delay before the next list after a failed one.
const RELIST_DELAY: Duration = Duration::from_secs(1);

/// Delay before the next list after the store refused one.
const REFUSED_DELAY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct KeyValueWatch {
    leases: KeyValueLeases,
    source: Source,
}

enum Source {
    Watch(Box<dyn Watch>),
    /// Stored, so that a cancelled wait does not start the list again.
    List(Pin<Box<dyn Future<Output = store::Result<Snapshot>> + Send>>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Source::Watch(_)) { "Watch" } else { "List" })
    }
}

impl Source {
    fn watch(leases: &KeyValueLeases, after: Revision) -> Self {
        Self::Watch(leases.store.watch(&leases.keys.all(), after))
    }

    fn list(leases: &KeyValueLeases, delay: Duration) -> Self {
        let leases = leases.clone();
        Self::List(Box::pin(async move {
            sleep(delay).await;
            leases.list_entries().await
        }))
    }
}

impl KeyValueWatch {
    pub(super) fn new(leases: KeyValueLeases, after: Revision) -> Self {
        let source = Source::watch(&leases, after);
        Self { leases, source }
    }

    pub(super) fn after_list(leases: KeyValueLeases) -> Self {
        let source = Source::list(&leases, RELIST_DELAY);
        Self { leases, source }
    }

    async fn next_events(&mut self) -> Result<(Revision, PeerEvents), Error> {
        loop {
            let watched = match &mut self.source {
                Source::Watch(watch) => watch.next().await?,
                Source::List(listing) => {
                    let listed = listing.await;
                    return self.finish_list(listed);
                }
            };
            match watched {
                Watched::Compacted => self.source = Source::list(&self.leases, Duration::ZERO),
                Watched::Changes { events, revision } => {
                    self.leases.mirror.apply(&events, revision);
                    // The list fails with the same reason until there are fewer entries.
                    if let Some(limit) = self.leases.mirror.exceeded() {
                        tracing::warn!(%limit, "ignoring changes until a list succeeds");
                        self.source = Source::list(&self.leases, RELIST_DELAY);
                        continue;
                    }
                    let keys = &self.leases.keys;
                    let items = events.iter().filter_map(|event| keys.parse_event(event)).collect();
                    return Ok((revision, PeerEvents::Changed(items)));
                }
            }
        }
    }

    fn finish_list(
        &mut self,
        listed: store::Result<Snapshot>,
    ) -> Result<(Revision, PeerEvents), Error> {
        self.source = match &listed {
            Ok(snapshot) => Source::watch(&self.leases, snapshot.revision),
            Err(error) if error.can_retry() => Source::list(&self.leases, RELIST_DELAY),
            Err(_) => Source::list(&self.leases, REFUSED_DELAY),
        };
        let snapshot = self.leases.parse(&listed?);
        Ok((snapshot.revision, PeerEvents::All(snapshot.items)))
    }
}

impl PeerSource for KeyValueWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<(Revision, PeerEvents), Error>> {
        Box::pin(self.next_events())
    }
}
