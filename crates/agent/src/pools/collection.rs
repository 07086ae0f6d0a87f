// SPDX-License-Identifier: Apache-2.0
//! Looks for unused addresses, and for what departed nodes left behind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ipam::Timestamp;
use ipam::calico::Key;
use ipam::collect::{Collected, Collector, Observation};
use ipam::node::{Content, Event, Outcome, Stored, Verb};
use tokio::task::spawn_blocking;

use super::core::Effect;
use super::objects::{HandleListing, ObjectStore};
use super::observe::{self, Observed};
use super::{Finished, Run, now};

/// Longest interval between two looks for unused addresses.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// Shortest interval between two looks for unused addresses.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Limits of the interval between two looks for unused handles of the first node.
const HANDLE_INTERVALS: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(15 * 60));

/// The collection of unused addresses.
#[derive(Debug)]
pub(super) struct Collection {
    collector: Collector,
    interval: Duration,
    /// Interval between two looks for unused handles of the first node. Other nodes look less often, because all
    /// handles of the cluster are listed, and one node is enough.
    handle_interval: Duration,
    last_handles: Timestamp,
    /// `None` while the host is observed.
    pub next: Option<Timestamp>,
    /// Names of the nodes at the last look. A node has departed if it is missing twice.
    nodes: BTreeSet<String>,
}

impl Collection {
    pub(super) fn new(grace: Duration, nodes: BTreeSet<String>) -> Self {
        let interval = (grace / 2).clamp(MIN_INTERVAL, MAX_INTERVAL);
        Self {
            collector: Collector::new(grace),
            interval,
            handle_interval: grace.clamp(HANDLE_INTERVALS.0, HANDLE_INTERVALS.1),
            last_handles: now(),
            next: Some(now() + interval),
            nodes,
        }
    }

    /// Looks soon if a node has left the network.
    pub(super) fn changed(&mut self, changes: &[Stored]) {
        let is_departure = |changed: &Stored| {
            matches!((&changed.key, &changed.content), (Key::Node(_), Content::Deleted))
        };
        if changes.iter().any(is_departure) {
            self.look_soon();
        }
    }

    fn look_soon(&mut self) {
        self.next = self.next.map(|next| next.min(now() + MIN_INTERVAL));
    }

    /// Returns whether a node should look for unused handles now.
    fn handles_are_due(&mut self, name: &str, nodes: &BTreeSet<String>) -> bool {
        let rank = nodes.iter().take_while(|other| *other != name).count();
        let interval = self.handle_interval * u32::try_from(rank + 1).unwrap_or(u32::MAX);
        let is_due = now().since(self.last_handles) >= interval;
        if is_due {
            self.last_handles = now();
        }
        is_due
    }
}

impl Run {
    /// Starts to observe the host, and now and then the handles.
    pub(super) fn observe(&mut self, objects: &Arc<dyn ObjectStore>) {
        self.collection.next = None;
        let namespaces = observe::namespaces(self.core.node());
        let with_handles =
            self.collection.handles_are_due(self.core.node().name(), &self.core.node_names());
        let objects = Arc::clone(objects);
        self.work.spawn(async move {
            let observed = spawn_blocking(move || observe::observe(namespaces)).await;
            let handles = match with_handles {
                true => objects.list_handles().await,
                false => Ok(None),
            };
            // A panic ends the task, and the controller is restarted.
            Finished::Observed(observed.expect("observing the host does not panic"), handles)
        });
    }

    /// Releases what nothing on this host and no node uses.
    pub(super) fn collect(
        &mut self,
        observed: kernel::Result<Observed>,
        handles: Result<Option<HandleListing>, String>,
        objects: &Arc<dyn ObjectStore>,
    ) -> Vec<Effect> {
        self.collection.next = Some(now() + self.collection.interval);
        let Observed { running, addresses } = match observed {
            Ok(observed) => observed,
            Err(error) => {
                tracing::warn!(%error, "unused addresses not looked for");
                return Vec::new();
            }
        };
        let handles = handles.unwrap_or_else(|error| {
            tracing::warn!(error, "unused handles not looked for");
            None
        });
        let nodes = self.core.node_names();
        let before = std::mem::replace(&mut self.collection.nodes, nodes.clone());
        // A node counts as departed at the second look without it.
        if before.is_empty() || !nodes.is_superset(&before) {
            self.collection.look_soon();
        }
        let nodes = nodes.union(&before).cloned().collect();
        let observation = Observation {
            at: now(),
            running: &running,
            addresses: &addresses,
            nodes: Some(&nodes).filter(|_| !before.is_empty()),
            handles: handles.as_ref().map(HandleListing::as_list),
        };
        let collected = self.collection.collector.observe(self.core.node(), &observation);
        let (departed, collected): (Vec<_>, _) =
            collected.into_iter().partition(|one| departed_node(one).is_some());
        if !departed.is_empty() {
            // The affinities of a node follow its blocks.
            self.collection.look_soon();
            let objects = Arc::clone(objects);
            self.work.spawn(async move { Finished::Departed(confirm(departed, &*objects).await) });
        }
        self.release_collected(collected)
    }

    pub(super) fn release_collected(&mut self, collected: Vec<Collected>) -> Vec<Effect> {
        if collected.is_empty() {
            return Vec::new();
        }
        for one in &collected {
            tracing::info!(?one, "unused address or block released");
        }
        self.core.event(now(), Event::Collect(collected))
    }
}

/// Returns the departed node whose remains are to be collected.
fn departed_node(collected: &Collected) -> Option<&str> {
    match collected {
        Collected::Departed { node, .. } | Collected::DepartedAffinity { node, .. } => Some(node),
        _ => None,
    }
}

/// Returns the part whose nodes really do not exist. The watch of nodes may be late, and a node whose object cannot be
/// read exists.
async fn confirm(departed: Vec<Collected>, objects: &dyn ObjectStore) -> Vec<Collected> {
    let names: BTreeSet<String> =
        departed.iter().filter_map(departed_node).map(str::to_owned).collect();
    let mut gone = BTreeSet::new();
    for name in names {
        let found = objects.perform(&Key::Node(name.clone()), &Verb::Read).await;
        if matches!(found, Outcome::Current(None)) {
            gone.insert(name);
        }
    }
    let is_gone = |one: &Collected| departed_node(one).is_some_and(|name| gone.contains(name));
    departed.into_iter().filter(is_gone).collect()
}
