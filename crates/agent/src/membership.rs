// SPDX-License-Identifier: Apache-2.0
//! The membership controller: which network configuration, underlay and lease this node has. It joins the
//! network, renews the lease, joins again when the configuration or the underlay changes, and passes
//! changes of other nodes on to the overlay controller. [`state`] has its states and transitions.

mod attributes;
mod cache;
mod configuration;
mod join;
mod saved_state;
mod state;
pub(crate) mod underlay;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel::wireguard::PrivateKey;
use overlay::lease::Lease;
use overlay::netconf::NetConf;
use overlay::plan;
use store::Revision;
use text::{ErrorChain, Secret};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{sleep, sleep_until};

pub(crate) use self::attributes::leases;
pub(crate) use self::cache::view_file;
pub(crate) use self::join::{JoinPreview, Joiner, Prepared};
pub(crate) use self::saved_state::lease_file;
pub(crate) use self::state::JoinError;

use self::join::Current;
use self::state::{Action, Event, OwnLease, Progress, State};
use crate::file_watcher::{self, FileWatcher};
use crate::lease::{NodeRecord, NodeRecordState, PeerEvents, PeerWatch, Renewal, StoreItem};
use crate::status::ConditionKind;
use crate::supervisor::{Failure, Heartbeat};

/// Minimum time between two attempts to join, in case nodes compete for a lease.
const MIN_JOIN_INTERVAL: Duration = Duration::from_millis(200);
/// Delay before a failed renewal is retried.
const RENEWAL_RETRY: Duration = Duration::from_secs(60);
/// One network configuration, one underlay and one lease. If any of them changes, the node joins again.
#[derive(Debug)]
pub(crate) struct Joined {
    pub conf: NetConf,
    /// The configuration as stored. It may contain a pre-shared key.
    pub conf_text: Secret,
    pub underlay: plan::Underlay,
    /// Name of this node's own lease.
    pub name: String,
    pub lease: Lease,
    pub wireguard_key: Option<PrivateKey>,
    /// The store did not answer: everything is as it was last known.
    pub from_cache: bool,
}

/// A message to the overlay controller.
#[derive(Debug)]
pub(crate) enum Message {
    /// The node has joined a network that has these items.
    Join { joined: Arc<Joined>, items: Vec<StoreItem> },
    /// Nodes of the network have changed.
    Peers(PeerEvents),
}

/// The controller. It survives a restart: it joins again with what it knows.
#[derive(Debug)]
pub(crate) struct Membership {
    joiner: Joiner,
    overlay: UnboundedSender<Message>,
    /// Set if the network configuration is a file.
    config_file: Option<FileWatcher>,
    current: Option<Current>,
    last_join: Option<tokio::time::Instant>,
}

impl Membership {
    pub(crate) fn new(joiner: Joiner, overlay: UnboundedSender<Message>) -> Membership {
        let config_file = joiner.leases.config_location().file().map(FileWatcher::new);
        Membership { joiner, overlay, config_file, current: None, last_join: None }
    }

    pub(crate) async fn run(&mut self, heartbeat: &Heartbeat) -> Result<(), Failure> {
        self.current = None;
        let mut progress = Progress::joining();
        loop {
            heartbeat.beat();
            let events = match progress.next_action() {
                Some(action) => Vec::from_iter(self.perform(action, heartbeat).await),
                None => self.next_events(progress.state(), heartbeat).await,
            };
            progress.handle(events);
        }
    }

    async fn perform(&mut self, action: Action, heartbeat: &Heartbeat) -> Option<Event> {
        match action {
            Action::Join => return Some(self.join(heartbeat).await),
            Action::Wait { after, at_most } => {
                self.wait_for_change(after, at_most, heartbeat).await;
                return Some(Event::WaitOver);
            }
            Action::Renew => return heartbeat.during(self.renew()).await,
            Action::Report(kind, reason) => self.joiner.hub.set_problem(kind, reason),
            Action::Clear(kind) => self.joiner.hub.clear_problem(kind),
            Action::LogRestart(reason) => tracing::info!(%reason, "joining the network again"),
            Action::SaveLease => heartbeat.during(self.save_lease()).await,
            Action::ScheduleRenewal => {
                self.joiner.hub.clear_problem(ConditionKind::Store);
                if let Some(held) = &self.joiner.node.held {
                    tracing::info!(lease = held.name, "lease renewed");
                    self.joiner.cache.lease_renewed(held);
                }
                self.schedule_renewal();
            }
            Action::RetryRenewal => self.set_renewal(Some(Instant::now() + RENEWAL_RETRY)),
            Action::ForgetLease => self.joiner.node.held = None,
            Action::Reconnect => self.joiner.leases.reconnect(),
        }
        None
    }

    /// Waits for a change in the store or of the interfaces.
    async fn wait_for_change(
        &mut self,
        after: Option<Revision>,
        at_most: Duration,
        heartbeat: &Heartbeat,
    ) {
        let mut watch = after.map(|revision| PeerWatch::new(&*self.joiner.leases, revision));
        let changed = async {
            match &mut watch {
                // An error ends the wait as well: the next attempt to join reports it.
                Some(watch) => drop(watch.next().await),
                None => std::future::pending().await,
            }
        };
        let wait = async {
            tokio::select! {
                () = changed => {}
                () = file_watcher::next_of(&mut self.config_file) => {}
                () = self.joiner.underlay_changed.notified() => self.joiner.leases.reconnect(),
                () = sleep(at_most) => {}
            }
        };
        heartbeat.during(wait).await;
    }

    /// Waits for events of a membership.
    async fn next_events(&mut self, state: State, heartbeat: &Heartbeat) -> Vec<Event> {
        let write_due = self.joiner.cache.write_due(&*self.joiner.leases);
        let Some(current) = &mut self.current else { return vec![Event::WaitOver] };
        let renew_at = current.renew_at;
        let received = tokio::select! {
            received = current.watch.next() => received,
            () = file_watcher::next_of(&mut self.config_file) => {
                return Vec::from_iter(self.check_config(&[]).await);
            }
            () = self.joiner.underlay_changed.notified() => {
                return Vec::from_iter(self.check_underlay().await);
            }
            () = at(renew_at) => return vec![Event::RenewalDue],
            () = at(write_due) => {
                heartbeat.during(self.joiner.cache.write(&self.joiner.settings, &*self.joiner.leases)).await;
                return Vec::new();
            }
            () = heartbeat.tick() => return Vec::new(),
        };
        match received {
            Ok(events) => {
                if state == State::Cached {
                    self.joiner.cache.listed = self.joiner.leases.last_known();
                    return vec![Event::StoreAnswered];
                }
                let revision = current.watch.revision().0;
                self.joiner.hub.set_watch(revision, revision);
                let mut events = self.handle_peers(events).await;
                events.insert(0, Event::StoreAnswered);
                events
            }
            // The watch itself waits, and then continues at its last revision.
            Err(error) => {
                self.joiner.hub.set_problem(ConditionKind::Store, ErrorChain(&error).to_string());
                Vec::new()
            }
        }
    }

    /// Looks for changes of the configuration and of this node's lease, and passes the events on.
    async fn handle_peers(&mut self, events: PeerEvents) -> Vec<Event> {
        let is_config =
            |one: &&StoreItem| matches!(one, StoreItem::Config(_) | StoreItem::ConfigRejected(_));
        let (config, own) = match &events {
            PeerEvents::All(all) => {
                let config = self.check_config(all).await;
                (config, vec![self.own_lease(all.iter().find_map(|one| self.own_record(one)))])
            }
            PeerEvents::Changed(changes) => {
                let config = if let Some(last) = changes.iter().rfind(is_config) {
                    self.check_config(std::slice::from_ref(last)).await
                } else if changes.iter().any(is_removal) {
                    self.retry_config().await
                } else {
                    None
                };
                let own = changes.iter().filter_map(|one| self.own_record(one));
                (config, own.map(|record| self.own_lease(Some(record))).collect::<Vec<_>>())
            }
        };
        if let Some(changed) = config {
            return vec![changed];
        }
        let own = own.into_iter().map(|(own, revision)| {
            if let (Some(revision), Some(held)) = (revision, &mut self.joiner.node.held) {
                held.revision = held.revision.max(revision);
            }
            Event::OwnLease(own)
        });
        let own = own.collect();
        // The receiver is gone only while the agent shuts down.
        let _ = self.overlay.send(Message::Peers(events));
        own
    }

    fn own_record<'a>(&self, item: &'a StoreItem) -> Option<&'a NodeRecord> {
        let own = &self.current.as_ref()?.joined.name;
        match item {
            StoreItem::Node(node) if node.name == *own => Some(node),
            _ => None,
        }
    }

    /// Compares a record with the held lease. Returns its revision too if it is the same lease.
    fn own_lease(&self, record: Option<&NodeRecord>) -> (OwnLease, Option<Revision>) {
        match (record, &self.joiner.node.held) {
            (
                Some(NodeRecord { state: NodeRecordState::Active { lease, .. }, revision, .. }),
                Some(held),
            ) if **lease == held.lease => (OwnLease::Unchanged, Some(*revision)),
            (Some(record), Some(held)) if record.revision < held.revision => {
                (OwnLease::Outdated, None)
            }
            _ => (OwnLease::Changed, None),
        }
    }

    async fn renew(&mut self) -> Option<Event> {
        let held = self.joiner.node.held.as_mut()?;
        Some(match self.joiner.leases.renew(held).await {
            Ok(renewal @ (Renewal::Done | Renewal::Lost)) => Event::Renewed(renewal),
            Err(error) => Event::RenewalFailed(ErrorChain(&error).to_string()),
        })
    }

    async fn save_lease(&self) {
        if let Some(held) = &self.joiner.node.held {
            saved_state::save_lease(&self.joiner.settings, held).await;
        }
    }

    /// Plans the next renewal, and reports how long the lease is valid.
    fn schedule_renewal(&mut self) {
        let left =
            self.joiner.node.held.as_ref().and_then(|held| self.joiner.cache.lease_left(held));
        self.joiner.hub.set_lease_left(left);
        let margin = self.joiner.settings.network.renew_margin;
        self.set_renewal(left.map(|left| Instant::now() + left.saturating_sub(margin)));
    }

    fn set_renewal(&mut self, renew_at: Option<Instant>) {
        if let Some(current) = &mut self.current {
            current.renew_at = renew_at;
        }
    }

    /// Checks the stored configuration. Reports one that this node cannot use.
    async fn check_config(&mut self, items: &[StoreItem]) -> Option<Event> {
        let has_effective = self.joiner.node.effective.is_some();
        let stored = configuration::stored(&*self.joiner.leases, items, has_effective).await;
        let effective = &self.current.as_ref()?.joined.conf_text;
        let present = stored.as_ref().ok().cloned();
        let rejected = if present.as_ref() == Some(effective) {
            None
        } else {
            let usable = match stored {
                Ok(text) => self.joiner.evaluator().await.check(text),
                Err(missing) => Err(missing),
            };
            let Err(error) = usable else { return Some(Event::ConfigChanged) };
            Some(configuration::rejected(&error))
        };
        if let Some(current) = &mut self.current {
            (current.stored, current.rejected) = (present, rejected);
        }
        self.report_config();
        None
    }

    /// Checks a rejected configuration again: another interface or a free subnet may make it usable.
    async fn retry_config(&mut self) -> Option<Event> {
        let current = self.current.as_ref()?;
        let text = current.stored.clone().filter(|_| current.rejected.is_some())?;
        self.check_config(&[StoreItem::Config(Some(text.into_exposed()))]).await
    }

    fn report_config(&self) {
        let Some(current) = &self.current else { return };
        let texts = current.rejected.iter().chain(&current.warnings);
        let texts: Vec<&str> = texts.map(String::as_str).collect();
        match texts.is_empty() {
            true => self.joiner.hub.clear_problem(ConditionKind::Config),
            false => self.joiner.hub.set_problem(ConditionKind::Config, texts.join("; ")),
        }
    }

    async fn check_underlay(&mut self) -> Option<Event> {
        let joined = Arc::clone(&self.current.as_ref()?.joined);
        match self.joiner.evaluator().await.underlay(&joined.conf) {
            Ok(chosen) => {
                let changed = underlay::difference(&joined.underlay, &underlay::planned(&chosen));
                match changed {
                    Some(reason) => Some(Event::UnderlayChanged(reason)),
                    None => self.retry_config().await,
                }
            }
            Err(error) => {
                self.joiner.leases.reconnect();
                Some(Event::JoinFailed(error))
            }
        }
    }

    async fn join(&mut self, heartbeat: &Heartbeat) -> Event {
        if let Some(last) = self.last_join {
            heartbeat.during(sleep_until(last + MIN_JOIN_INTERVAL)).await;
        }
        self.last_join = Some(tokio::time::Instant::now());
        match heartbeat.during(self.joiner.join()).await {
            Ok((current, items)) => {
                let from_cache = current.joined.from_cache;
                self.activate(current, items);
                // Packets do not wait for the disk. A lease that the store does not have is not held.
                if !from_cache {
                    heartbeat.during(self.save_lease()).await;
                }
                Event::Joined { from_cache }
            }
            Err(error) => Event::JoinFailed(error),
        }
    }

    /// Starts the membership.
    fn activate(&mut self, current: Current, items: Vec<StoreItem>) {
        let joined = Arc::clone(&current.joined);
        let from_cache = joined.from_cache;
        self.current = Some(current);
        // The receiver is gone only while the agent shuts down.
        let _ = self.overlay.send(Message::Join { joined, items });
        self.schedule_renewal();
        if from_cache {
            self.set_renewal(None);
        }
        self.report_config();
    }
}

/// Returns whether a subnet may have become free.
fn is_removal(item: &StoreItem) -> bool {
    matches!(item, StoreItem::Node(NodeRecord { state: NodeRecordState::Removed, .. }))
}

/// Waits until this time; forever if there is none.
pub(crate) async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
