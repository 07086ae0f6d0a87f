// SPDX-License-Identifier: Apache-2.0
//! The membership controller: which network configuration, underlay and lease this node has. It joins the
//! network, renews the lease, joins again when the configuration or the underlay changes, and passes
//! changes of other nodes on to the overlay controller. [`state`] has its states and transitions.

mod attributes;
mod cache;
mod configuration;
mod saved_state;
mod state;
pub(crate) mod underlay;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel::IfIndex;
use kernel::wireguard::PrivateKey;
use overlay::lease::{Attributes, Lease};
use overlay::netconf::NetConf;
use overlay::plan::{self, Network};
use store::Revision;
use text::{ErrorChain, Secret};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{sleep, sleep_until, timeout};

pub(crate) use self::attributes::leases;
pub(crate) use self::cache::view_file;
pub(crate) use self::configuration::Evaluated;
pub(crate) use self::saved_state::lease_file;
pub(crate) use self::state::JoinError;

use self::attributes::{Source, needs_wireguard, wireguard_keys};
use self::cache::Cache;
use self::configuration::Evaluator;
use self::saved_state::SavedState;
use self::state::{Action, Event, OwnLease, Retry, State};
use crate::dataplane::routes::RoutesDataplane;
use crate::extension;
use crate::file_watcher::{self, FileWatcher};
use crate::lease::{
    HeldLease, LeaseBackend, LeasePreview, LeaseRequest, NodeRecord, NodeRecordState, OwnNode,
    PeerEvents, PeerWatch, Renewal, Snapshot, StoreItem,
};
use crate::managed_file::in_background;
use crate::settings::Settings;
use crate::status::{ConditionKind, StatusHub};
use crate::supervisor::{Failure, Heartbeat};

/// How long the store may take to answer before the node continues with the last known state.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum time between two attempts to join, in case nodes compete for a lease.
const MIN_JOIN_INTERVAL: Duration = Duration::from_millis(200);
/// Delay before a failed renewal is retried.
const RENEWAL_RETRY: Duration = Duration::from_secs(60);
/// How long the store has to answer before a change of the interfaces restarts the request. It doubles
/// with each restart, because many changes may come while the store answers.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_millis(100);

/// One network configuration, one underlay and one lease. If any of them changes, the node joins again.
#[derive(Debug)]
pub(crate) struct Joined {
    pub conf: NetConf,
    /// As it was written. It may contain a pre-shared key.
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

/// What this node knows about itself across several joins.
#[derive(Debug, Default)]
struct Node {
    /// The lease of the current or of the last membership.
    held: Option<HeldLease>,
    /// The interface to other nodes of the current or of the last membership.
    interface: Option<IfIndex>,
    /// The configuration of the current or of the last membership.
    effective: Option<Secret>,
    /// Settings of the cluster for this node.
    own: OwnNode,
    /// Identifies the node; it does not change with its addresses.
    identity: String,
    has_name: bool,
    /// The output of the extension backend's first command.
    extension_output: Option<String>,
}

/// A membership that lasts.
#[derive(Debug)]
struct Current {
    joined: Arc<Joined>,
    watch: PeerWatch,
    /// The stored configuration; `None` if it was deleted.
    stored: Option<Secret>,
    /// Why the stored configuration is not in effect.
    rejected: Option<String>,
    warnings: Vec<String>,
    renew_at: Option<Instant>,
}

/// Everything that a lease follows from.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub evaluated: Evaluated,
    attributes: Attributes,
    wireguard_key: Option<PrivateKey>,
    pub items: Vec<StoreItem>,
    saved: SavedState,
}

/// What joining would do.
#[derive(Debug)]
pub(crate) struct JoinPreview {
    /// The configuration would be stored.
    pub stores_config: bool,
    pub prepared: Prepared,
    pub lease: LeasePreview,
}

/// The controller. It survives a restart: it joins again with what it knows.
#[derive(Debug)]
pub(crate) struct Membership {
    settings: Arc<Settings>,
    hub: StatusHub,
    leases: Arc<dyn LeaseBackend>,
    routes: Arc<RoutesDataplane>,
    underlay_changed: Arc<Notify>,
    overlay: UnboundedSender<Message>,
    /// Set if the network configuration is a file.
    config_file: Option<FileWatcher>,
    node: Node,
    cache: Cache,
    current: Option<Current>,
    last_join: Option<tokio::time::Instant>,
}

impl Membership {
    pub(crate) fn new(
        settings: &Arc<Settings>,
        hub: &StatusHub,
        leases: &Arc<dyn LeaseBackend>,
        routes: &Arc<RoutesDataplane>,
        underlay_changed: &Arc<Notify>,
        overlay: UnboundedSender<Message>,
    ) -> Membership {
        let has_name = settings.node.name.is_some();
        let node = Node { identity: identity(settings), has_name, ..Node::default() };
        Membership {
            settings: Arc::clone(settings),
            hub: hub.clone(),
            config_file: leases.config_location().file().map(FileWatcher::new),
            leases: Arc::clone(leases),
            routes: Arc::clone(routes),
            underlay_changed: Arc::clone(underlay_changed),
            overlay,
            node,
            cache: Cache::default(),
            current: None,
            last_join: None,
        }
    }

    pub(crate) async fn run(&mut self, heartbeat: &Heartbeat) -> Result<(), Failure> {
        self.current = None;
        let mut state = State::Joining;
        let mut actions = VecDeque::from([Action::Join]);
        loop {
            heartbeat.beat();
            let events = match actions.pop_front() {
                Some(action) => Vec::from_iter(self.perform(action, heartbeat).await),
                None => self.next_events(state, heartbeat).await,
            };
            for event in events {
                let (next, more) = state.step(event);
                actions.extend(more);
                let is_left = state != next && next == State::Joining;
                state = next;
                if is_left {
                    // Joining reads everything again.
                    break;
                }
            }
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
            Action::Report(kind, reason) => self.hub.set_problem(kind, reason),
            Action::Clear(kind) => self.hub.clear_problem(kind),
            Action::LogRestart(reason) => tracing::info!(%reason, "joining the network again"),
            Action::SaveLease => heartbeat.during(self.save_lease()).await,
            Action::ScheduleRenewal => {
                self.hub.clear_problem(ConditionKind::Store);
                if let Some(held) = &self.node.held {
                    tracing::info!(lease = held.name, "lease renewed");
                    self.cache.lease_renewed(held);
                }
                self.schedule_renewal();
            }
            Action::RetryRenewal => self.set_renewal(Some(Instant::now() + RENEWAL_RETRY)),
            Action::ForgetLease => self.node.held = None,
            Action::Reconnect => self.leases.reconnect(),
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
        let mut watch = after.map(|revision| PeerWatch::new(&*self.leases, revision));
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
                () = self.underlay_changed.notified() => self.leases.reconnect(),
                () = sleep(at_most) => {}
            }
        };
        heartbeat.during(wait).await;
    }

    /// Waits for events of a membership.
    async fn next_events(&mut self, state: State, heartbeat: &Heartbeat) -> Vec<Event> {
        let write_due = self.cache.write_due(&*self.leases);
        let Some(current) = &mut self.current else { return vec![Event::WaitOver] };
        let renew_at = current.renew_at;
        let received = tokio::select! {
            received = current.watch.next() => received,
            () = file_watcher::next_of(&mut self.config_file) => {
                return Vec::from_iter(self.check_config(&[]).await);
            }
            () = self.underlay_changed.notified() => {
                return Vec::from_iter(self.check_underlay().await);
            }
            () = at(renew_at) => return vec![Event::RenewalDue],
            () = at(write_due) => {
                heartbeat.during(self.cache.write(&self.settings, &*self.leases)).await;
                return Vec::new();
            }
            () = heartbeat.tick() => return Vec::new(),
        };
        match received {
            Ok(events) => {
                if state == State::Cached {
                    self.cache.listed = self.leases.last_known();
                    return vec![Event::StoreAnswered];
                }
                let revision = current.watch.revision().0;
                self.hub.set_watch(revision, revision);
                let mut events = self.handle_peers(events).await;
                events.insert(0, Event::StoreAnswered);
                events
            }
            // The watch continues where it was, after a delay of its own.
            Err(error) => {
                self.hub.set_problem(ConditionKind::Store, ErrorChain(&error).to_string());
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
            if let (Some(revision), Some(held)) = (revision, &mut self.node.held) {
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
        match (record, &self.node.held) {
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
        let held = self.node.held.as_mut()?;
        Some(match self.leases.renew(held).await {
            Ok(renewal @ (Renewal::Done | Renewal::Lost)) => Event::Renewed(renewal),
            Err(error) => Event::RenewalFailed(ErrorChain(&error).to_string()),
        })
    }

    async fn save_lease(&self) {
        if let Some(held) = &self.node.held {
            saved_state::save_lease(&self.settings, held).await;
        }
    }

    /// Plans the next renewal, and reports how long the lease is valid.
    fn schedule_renewal(&mut self) {
        let left = self.node.held.as_ref().and_then(|held| self.cache.lease_left(held));
        self.hub.set_lease_left(left);
        let margin = self.settings.network.renew_margin;
        self.set_renewal(left.map(|left| Instant::now() + left.saturating_sub(margin)));
    }

    fn set_renewal(&mut self, renew_at: Option<Instant>) {
        if let Some(current) = &mut self.current {
            current.renew_at = renew_at;
        }
    }

    async fn evaluator(&self) -> Evaluator<'_> {
        let (facts, saved) = tokio::join!(
            underlay::observe(&self.settings, &self.node.own),
            SavedState::read_in_background(&self.settings),
        );
        Evaluator {
            settings: &self.settings,
            leases: &*self.leases,
            own: &self.node.own,
            facts,
            saved,
            interface: self.node.interface,
            held: self.node.held.as_ref(),
            effective: self.node.effective.as_ref(),
        }
    }

    /// Checks the stored configuration. Reports one that this node cannot use.
    async fn check_config(&mut self, items: &[StoreItem]) -> Option<Event> {
        let has_effective = self.node.effective.is_some();
        let stored = configuration::stored(&*self.leases, items, has_effective).await;
        let effective = &self.current.as_ref()?.joined.conf_text;
        let present = stored.as_ref().ok().cloned();
        let rejected = if present.as_ref() == Some(effective) {
            None
        } else {
            let usable = match stored {
                Ok(text) => self.evaluator().await.check(text),
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
            true => self.hub.clear_problem(ConditionKind::Config),
            false => self.hub.set_problem(ConditionKind::Config, texts.join("; ")),
        }
    }

    async fn check_underlay(&mut self) -> Option<Event> {
        let joined = Arc::clone(&self.current.as_ref()?.joined);
        match self.evaluator().await.underlay(&joined.conf) {
            Ok(chosen) => {
                let changed = underlay::difference(&joined.underlay, &underlay::planned(&chosen));
                match changed {
                    Some(reason) => Some(Event::UnderlayChanged(reason)),
                    None => self.retry_config().await,
                }
            }
            Err(error) => {
                self.leases.reconnect();
                Some(Event::JoinFailed(error))
            }
        }
    }

    async fn join(&mut self, heartbeat: &Heartbeat) -> Event {
        if let Some(last) = self.last_join {
            heartbeat.during(sleep_until(last + MIN_JOIN_INTERVAL)).await;
        }
        self.last_join = Some(tokio::time::Instant::now());
        match heartbeat.during(self.try_join()).await {
            Ok(from_cache) => {
                // Packets do not wait for the disk. A lease that the store does not have is not held.
                if !from_cache {
                    heartbeat.during(self.save_lease()).await;
                }
                Event::Joined { from_cache }
            }
            Err(error) => Event::JoinFailed(error),
        }
    }

    /// Joins with the store, or with the last known state if the store does not answer: packets need no
    /// store. Returns whether the last known state was used.
    async fn try_join(&mut self) -> Result<bool, JoinError> {
        let patience = if self.has_cached_state().await { STORE_TIMEOUT } else { Duration::MAX };
        let Ok(listed) = timeout(patience, self.snapshot_with_config()).await else {
            return match self.last_known().await {
                Some(last) => {
                    let kind = self.settings.store.name();
                    let seconds = STORE_TIMEOUT.as_secs();
                    let reason = format!("{kind} has not answered within {seconds} s");
                    self.join_from_cache(last, reason).await
                }
                None => {
                    let snapshot = self.snapshot_with_config().await?;
                    self.join_with(snapshot).await
                }
            };
        };
        let joined = match listed {
            Ok(snapshot) => self.join_with(snapshot).await,
            Err(error) => Err(error),
        };
        let Err(error @ JoinError { retry: Retry::OnStoreReachable, .. }) = joined else {
            return joined;
        };
        match self.last_known().await {
            Some(last) => self.join_from_cache(last, error.reason).await,
            None => {
                if self.node.effective.is_some() && self.node.held.is_none() {
                    let reason = "the lease was deleted or taken, and the store has to say which one is free";
                    self.hub.set_problem(ConditionKind::Lease, reason);
                }
                Err(error)
            }
        }
    }

    async fn join_with(&mut self, snapshot: Snapshot) -> Result<bool, JoinError> {
        let revision = snapshot.revision;
        let wait = |error: JoinError| error.until_change_after(revision);
        let prepared = self.look_up(&snapshot).await.map_err(wait)?;
        let mut watch = PeerWatch::new(&*self.leases, revision);
        let held = watch.poll_during(self.acquire(&prepared)).await.map_err(wait)?;
        self.node.held = Some(held.clone());
        self.cache.lease_renewed(&held);
        check_plan(&prepared, &held.lease).map_err(wait)?;
        self.activate(prepared, held, watch, false);
        Ok(false)
    }

    /// Joins with the last known state. The lease stays; changed attributes are published when the store is
    /// back.
    async fn join_from_cache(&mut self, last: Snapshot, reason: String) -> Result<bool, JoinError> {
        tracing::warn!(%reason, "store unreachable, using cached network state");
        self.hub.set_problem(ConditionKind::Store, reason.clone());
        let prepared = self.look_up(&last).await?;
        let retry = Retry::OnStoreReachable;
        let unreachable = JoinError { condition: ConditionKind::Store, reason, retry };
        let held = self.node.held.clone().ok_or(unreachable)?;
        let lease = Lease { attributes: prepared.attributes.clone(), ..held.lease };
        check_plan(&prepared, &lease)?;
        let watch = PeerWatch::after_list(&*self.leases, last.revision);
        self.activate(prepared, HeldLease { lease, ..held }, watch, true);
        Ok(true)
    }

    /// Chooses configuration and underlay, and computes the attributes.
    async fn look_up(&mut self, snapshot: &Snapshot) -> Result<Prepared, JoinError> {
        self.node.own = self.leases.own_node()?;
        let evaluator = self.evaluator().await;
        let evaluated = evaluator.choose(snapshot).await?;
        let saved = evaluator.saved;
        let prepared = self.prepare(snapshot, evaluated, saved).await?;
        let chosen = &prepared.evaluated.underlay;
        self.node.interface = Some(chosen.index);
        self.hub.clear_problem(ConditionKind::Underlay);
        Ok(prepared)
    }

    async fn prepare(
        &mut self,
        snapshot: &Snapshot,
        evaluated: Evaluated,
        saved: SavedState,
    ) -> Result<Prepared, JoinError> {
        let conf = &evaluated.conf;
        // Peers may still use the previous backend.
        let wireguard = match needs_wireguard(conf) || saved.needs_wireguard {
            true => Some(wireguard_keys(&self.settings, &self.routes).await?),
            false => None,
        };
        if self.node.extension_output.is_none() && !self.settings.mode.dry_run {
            let output = extension::before_start(conf).await;
            let failed = |reason| JoinError::new(ConditionKind::Config, reason);
            self.node.extension_output = output.map_err(failed)?;
        }
        let held = self.node.held.clone();
        let held = held.or_else(|| saved.lease(&*self.leases));
        let source = Source {
            own: &self.node.own,
            identity: self.leases.node_name().unwrap_or(&self.node.identity),
            wireguard_key: wireguard.as_ref().and_then(|keys| keys.public),
            extension_output: self.node.extension_output.as_deref(),
            published: held.map(|held| held.lease.attributes),
            items: &snapshot.items,
        };
        let attributes = source.attributes(&evaluated)?;
        let wireguard_key = wireguard.map(|keys| keys.private);
        let items = snapshot.items.clone();
        Ok(Prepared { evaluated, attributes, wireguard_key, items, saved })
    }

    /// Takes the held lease, perhaps with new attributes; else the lease of the last run; else a free one.
    async fn acquire(&self, prepared: &Prepared) -> Result<HeldLease, JoinError> {
        let request = self.request(prepared);
        let mut kept = match &self.node.held {
            Some(held) => self.leases.renew_with(held, &request).await?,
            None => None,
        };
        if let (None, Some(held)) = (&kept, prepared.saved.lease(&*self.leases)) {
            kept = self.leases.renew_with(&held, &request).await?;
        }
        match kept {
            Some(held) => {
                tracing::info!(lease = %held.name, "lease kept");
                Ok(held)
            }
            None => {
                let held = self.leases.acquire(&request).await?;
                tracing::info!(lease = %held.name, "lease acquired");
                Ok(held)
            }
        }
    }

    fn request<'a>(&self, prepared: &'a Prepared) -> LeaseRequest<'a> {
        LeaseRequest {
            pools: &prepared.evaluated.pools,
            attributes: &prepared.attributes,
            previous: prepared.saved.subnets,
            random: random(),
        }
    }

    /// Starts the membership.
    fn activate(
        &mut self,
        prepared: Prepared,
        held: HeldLease,
        watch: PeerWatch,
        from_cache: bool,
    ) {
        let Prepared { evaluated, items, wireguard_key, .. } = prepared;
        let warnings = configuration::warnings(&self.settings, &*self.leases, &evaluated);
        let Evaluated { text, conf, underlay, stored, rejected, .. } = evaluated;
        tracing::info!(
            interface = %underlay.name, v4 = ?underlay.local_v4, v6 = ?underlay.local_v6,
            mtu = underlay.mtu, backend = conf.backend.name(), "underlay selected"
        );
        let underlay = underlay::planned(&underlay);
        let joined = Arc::new(Joined {
            conf,
            conf_text: text.clone(),
            underlay,
            name: held.name,
            lease: held.lease,
            wireguard_key,
            from_cache,
        });
        self.node.effective = Some(text);
        // The receiver is gone only while the agent shuts down.
        let _ = self.overlay.send(Message::Join { joined: Arc::clone(&joined), items });
        let renew_at = None;
        self.current = Some(Current { joined, watch, stored, rejected, warnings, renew_at });
        self.schedule_renewal();
        if from_cache {
            self.set_renewal(None);
        }
        self.report_config();
    }

    /// Lists the store. If it has no configuration, stores the one of the option first, unless another
    /// program has deleted a configuration in effect.
    async fn snapshot_with_config(&mut self) -> Result<Snapshot, JoinError> {
        let snapshot = self.snapshot().await?;
        let Some(option) = self.settings.network.config.clone() else { return Ok(snapshot) };
        if self.node.effective.is_some()
            || !configuration::is_missing(&*self.leases, &snapshot).await
        {
            return Ok(snapshot);
        }
        // A configuration that this node cannot use is not stored for others.
        let NetConf { networks, backend, .. } =
            self.evaluator().await.evaluate(option.clone())?.conf;
        if self.leases.create_config_if_absent(option.expose()).await? {
            let (location, backend) = (self.leases.config_location(), backend.name());
            let networks: Vec<String> = networks.iter().map(|net| net.to_string()).collect();
            let networks = networks.join(" ");
            tracing::info!(%location, %networks, backend, "network configuration stored");
        }
        self.snapshot().await
    }

    async fn snapshot(&mut self) -> Result<Snapshot, JoinError> {
        if let Some(name) = self.leases.look_up_node_name().await? {
            self.set_name(&name);
        }
        if let Some(listed) = self.cache.listed.take() {
            return Ok(listed);
        }
        let listed = self.list().await?;
        self.hub.clear_problem(ConditionKind::Store);
        Ok(listed)
    }

    /// Lists the store. No answer comes to an address that this node has lost, so the request is restarted
    /// over a new connection when the interfaces change.
    async fn list(&self) -> Result<Snapshot, JoinError> {
        let mut at_least = FIRST_LIST_TIMEOUT;
        loop {
            let changed = async {
                sleep(at_least).await;
                self.underlay_changed.notified().await;
            };
            tokio::select! {
                listed = self.leases.list() => return Ok(listed?),
                () = changed => {}
            }
            self.leases.reconnect();
            at_least *= 2;
        }
    }

    fn set_name(&mut self, name: &str) {
        self.hub.set_node(name);
        self.leases.set_node_name(name);
        self.node.has_name = true;
    }

    async fn has_cached_state(&self) -> bool {
        let file = view_file(&self.settings);
        self.node.held.is_some() || in_background(move || file.exists()).await.unwrap_or(false)
    }

    /// Returns the last known state, if the node can continue with it: its lease has not expired and fits
    /// the network.
    async fn last_known(&mut self) -> Option<Snapshot> {
        if self.node.effective.is_none() && self.node.held.is_none() {
            self.load_cache().await;
        }
        let (last, held) = (self.leases.last_known()?, self.node.held.as_ref()?);
        if !self.cache.is_lease_valid(held) {
            return None;
        }
        let chosen = self.evaluator().await.choose(&last).await;
        let is_foreign =
            chosen.is_ok_and(|one| !self.leases.may_keep(&one.pools, &held.lease.subnets));
        (!is_foreign).then_some(last)
    }

    async fn load_cache(&mut self) {
        if !self.cache.load(&self.settings, &*self.leases).await {
            return;
        }
        let saved = SavedState::read_in_background(&self.settings).await;
        let Some(held) = saved.lease(&*self.leases) else { return };
        if !self.node.has_name {
            self.set_name(&held.name.clone());
        }
        self.node.held = Some(held);
    }

    /// Returns what joining would do, without a change.
    pub(crate) async fn preview(&mut self) -> Result<JoinPreview, JoinError> {
        let snapshot = self.snapshot().await?;
        let is_missing = configuration::is_missing(&*self.leases, &snapshot).await;
        let option = self.settings.network.config.clone().filter(|_| is_missing);
        let stores_config = option.is_some();
        let text = match option {
            Some(option) => option,
            None => configuration::stored(&*self.leases, &snapshot.items, false).await?,
        };
        self.node.own = self.leases.own_node()?;
        let evaluator = self.evaluator().await;
        let evaluated = evaluator.evaluate(text)?;
        let saved = evaluator.saved;
        let prepared = self.prepare(&snapshot, evaluated, saved).await?;
        let saved = prepared.saved.lease(&*self.leases).map(|held| held.lease);
        let request = LeaseRequest { random: 0, ..self.request(&prepared) };
        let lease = self.leases.preview(saved, &request)?;
        Ok(JoinPreview { stores_config, prepared, lease })
    }
}

/// Checks that a network without peers can be planned, so that the overlay controller cannot fail on it.
fn check_plan(prepared: &Prepared, lease: &Lease) -> Result<(), JoinError> {
    let Evaluated { conf, underlay, .. } = &prepared.evaluated;
    let underlay = underlay::planned(underlay);
    let network = Network::new(conf.clone(), lease.clone(), underlay, BTreeMap::new());
    network.map(drop).map_err(|error| JoinError::new(ConditionKind::Config, error.to_string()))
}

/// Returns whether a subnet may have become free.
fn is_removal(item: &StoreItem) -> bool {
    matches!(item, StoreItem::Node(NodeRecord { state: NodeRecordState::Removed, .. }))
}

/// Identifies the node among copies of one machine, and among several nodes on one machine.
fn identity(settings: &Settings) -> String {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let name = settings.node.name.as_deref().unwrap_or_default();
    format!("{name} {}", machine.trim())
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// Waits until this time; forever if there is none.
pub(crate) async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
