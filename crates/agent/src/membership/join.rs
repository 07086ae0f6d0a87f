// SPDX-License-Identifier: Apache-2.0
//! Joining the network: looks up the configuration and the underlay, and takes a lease. Without an answer of
//! the store it uses the last known state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel::IfIndex;
use kernel::wireguard::PrivateKey;
use overlay::lease::{Attributes, Lease};
use overlay::netconf::NetConf;
use overlay::plan::Network;
use text::Secret;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::attributes::{Source, needs_wireguard, wireguard_keys};
use super::cache::{Cache, view_file};
use super::configuration::{self, Evaluated, Evaluator};
use super::saved_state::SavedState;
use super::state::{JoinError, Retry};
use super::{Joined, underlay};
use crate::dataplane::routes::RoutesDataplane;
use crate::extension;
use crate::lease::{
    HeldLease, LeaseBackend, LeasePreview, LeaseRequest, OwnNode, PeerWatch, Snapshot, StoreItem,
};
use crate::managed_file::in_background;
use crate::settings::Settings;
use crate::status::{ConditionKind, StatusHub};

/// How long the store may take to answer before the node continues with the last known state.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the store has to answer before a change of the interfaces restarts the request. It doubles
/// with each restart, because many changes may come while the store answers.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_millis(100);

/// State of this node that is kept when it joins again.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The lease of the current or of the last membership.
    pub(super) held: Option<HeldLease>,
    /// The interface to other nodes of the current or of the last membership.
    pub(super) interface: Option<IfIndex>,
    /// The configuration of the current or of the last membership.
    pub(super) effective: Option<Secret>,
    /// Settings of the cluster for this node.
    pub(super) own: OwnNode,
    /// Identifies the node; it does not change with its addresses.
    pub(super) identity: String,
    pub(super) has_name: bool,
    /// The output of the extension backend's first command.
    pub(super) extension_output: Option<String>,
}

/// A membership that lasts.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) joined: Arc<Joined>,
    pub(super) watch: PeerWatch,
    /// The stored configuration; `None` if it was deleted.
    pub(super) stored: Option<Secret>,
    /// Why the stored configuration is not in effect.
    pub(super) rejected: Option<String>,
    pub(super) warnings: Vec<String>,
    pub(super) renew_at: Option<Instant>,
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

/// The effects that joining would have.
#[derive(Debug)]
pub(crate) struct JoinPreview {
    /// The configuration would be stored.
    pub stores_config: bool,
    pub prepared: Prepared,
    pub lease: LeasePreview,
}

/// Joins the network, again and again.
#[derive(Debug)]
pub(crate) struct Joiner {
    pub(super) settings: Arc<Settings>,
    pub(super) hub: StatusHub,
    pub(super) leases: Arc<dyn LeaseBackend>,
    routes: Arc<RoutesDataplane>,
    pub(super) underlay_changed: Arc<Notify>,
    pub(super) node: Node,
    pub(super) cache: Cache,
}

impl Joiner {
    pub(crate) fn new(
        settings: &Arc<Settings>,
        hub: &StatusHub,
        leases: &Arc<dyn LeaseBackend>,
        routes: &Arc<RoutesDataplane>,
        underlay_changed: &Arc<Notify>,
    ) -> Joiner {
        let has_name = settings.node.name.is_some();
        Joiner {
            settings: Arc::clone(settings),
            hub: hub.clone(),
            leases: Arc::clone(leases),
            routes: Arc::clone(routes),
            underlay_changed: Arc::clone(underlay_changed),
            node: Node { identity: identity(settings), has_name, ..Node::default() },
            cache: Cache::default(),
        }
    }

    pub(super) async fn evaluator(&self) -> Evaluator<'_> {
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

    /// Joins with the store, or with the last known state if the store does not answer: packets need no
    /// store.
    pub(super) async fn join(&mut self) -> Result<(Current, Vec<StoreItem>), JoinError> {
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

    async fn join_with(
        &mut self,
        snapshot: Snapshot,
    ) -> Result<(Current, Vec<StoreItem>), JoinError> {
        let revision = snapshot.revision;
        let wait = |error: JoinError| error.until_change_after(revision);
        let prepared = self.look_up(&snapshot).await.map_err(wait)?;
        let mut watch = PeerWatch::new(&*self.leases, revision);
        let held = watch.poll_during(self.acquire(&prepared)).await.map_err(wait)?;
        self.node.held = Some(held.clone());
        self.cache.lease_renewed(&held);
        check_plan(&prepared, &held.lease).map_err(wait)?;
        Ok(self.current(prepared, held, watch, false))
    }

    /// Joins with the last known state. The lease stays; changed attributes are published when the store is
    /// back.
    async fn join_from_cache(
        &mut self,
        last: Snapshot,
        reason: String,
    ) -> Result<(Current, Vec<StoreItem>), JoinError> {
        tracing::warn!(%reason, "store unreachable, using cached network state");
        self.hub.set_problem(ConditionKind::Store, reason.clone());
        let prepared = self.look_up(&last).await?;
        let retry = Retry::OnStoreReachable;
        let unreachable = JoinError { condition: ConditionKind::Store, reason, retry };
        let held = self.node.held.clone().ok_or(unreachable)?;
        let lease = Lease { attributes: prepared.attributes.clone(), ..held.lease };
        check_plan(&prepared, &lease)?;
        let watch = PeerWatch::after_list(&*self.leases, last.revision);
        Ok(self.current(prepared, HeldLease { lease, ..held }, watch, true))
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
        // With Kubernetes the name of the lease does not tell the subnets.
        let subnets = |held: &HeldLease| {
            let subnets = held.lease.subnets.iter().map(|subnet| subnet.to_string());
            subnets.collect::<Vec<_>>().join(" ")
        };
        match kept {
            Some(held) => {
                tracing::info!(lease = %held.name, subnets = subnets(&held), "lease kept");
                Ok(held)
            }
            None => {
                let held = self.leases.acquire(&request).await?;
                tracing::info!(lease = %held.name, subnets = subnets(&held), "lease acquired");
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

    /// Returns the membership and the items of the network.
    fn current(
        &mut self,
        prepared: Prepared,
        held: HeldLease,
        watch: PeerWatch,
        from_cache: bool,
    ) -> (Current, Vec<StoreItem>) {
        let Prepared { evaluated, items, wireguard_key, .. } = prepared;
        let warnings = configuration::warnings(&self.settings, &*self.leases, &evaluated);
        let Evaluated { text, conf, underlay, stored, rejected, .. } = evaluated;
        let (name, mtu, underlay) = (underlay.name, underlay.mtu, underlay::planned(&underlay));
        let addresses: Vec<String> = underlay.addresses.iter().map(|one| one.to_string()).collect();
        tracing::info!(
            interface = %name, addresses = addresses.join(" "), mtu, backend = conf.backend.name(),
            "underlay selected"
        );
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
        let current = Current { joined, watch, stored, rejected, warnings, renew_at: None };
        (current, items)
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
