// SPDX-License-Identifier: Apache-2.0
//! The status of the agent. Controllers report to a [`StatusHub`]; health, readiness, the API, metrics, the log and
//! systemd read from it. A report is cheap, and its cost does not grow with the number of peers.

mod conditions;
mod kernel;
pub(crate) mod log;
mod model;
mod peers;
mod readiness;
pub mod systemd;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use overlay::diff::Conflict;
use tokio::sync::watch;

use crate::dataplane::routes::UdpTunnelSlot;
use crate::multicast::Counters;

use self::conditions::{Conditions, Controllers};
use self::kernel::Kernel;
pub use self::model::{
    AgentInfo, Comparison, ConditionKind, ControllerStatus, KernelStatus, LeaseStatus,
    MembershipStatus, MulticastStatus, NetworkStatus, PathStatus, PeerCounts, PeerStatus,
    PeersStatus, Problem, RejectedPeerStatus, Repair, RepairKind, Repairs, RouteMode, Status,
    StoreStatus, Time, UdpFlow, UdpStatus, UnderlayStatus, WatchStatus,
};
use self::peers::Peers;
pub use self::readiness::{HEARTBEAT_INTERVAL, Health, Readiness};

/// Maximum number of rejected peers and of conflicts that are listed. Their total number is always reported.
const MAX_LISTED: usize = 20;

/// Maximum length of a text in bytes. A text may quote what any client has written to the store.
const MAX_TEXT: usize = 512;

/// Collects the reports of all parts of one agent. Clones refer to the same agent.
#[derive(Debug, Clone)]
pub struct StatusHub {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

/// Everything that was reported.
#[derive(Debug)]
struct State {
    agent: AgentInfo,
    heartbeat: Instant,
    network: Option<NetworkStatus>,
    lease_until: Option<Instant>,
    store: StoreStatus,
    watch: Option<WatchStatus>,
    peers: Peers,
    kernel: Kernel,
    multicast: Option<Arc<Counters>>,
    conditions: Conditions,
    controllers: Controllers,
}

/// Reports changes of the status. Changes of peers, repairs and heartbeats are not reported.
#[derive(Debug)]
pub struct Changes {
    receiver: watch::Receiver<()>,
}

impl Changes {
    /// Waits for the next change. A change since the last call counts.
    pub async fn next(&mut self) {
        if self.receiver.changed().await.is_err() {
            // The hub is gone, so that nothing changes any more.
            std::future::pending::<()>().await;
        }
    }
}

impl StatusHub {
    /// Creates the hub of an agent that has reported nothing yet. `store` is the kind of the store.
    pub fn new(node: impl Into<String>, store: impl Into<String>) -> StatusHub {
        let started = Time::now();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let state = State {
            agent: AgentInfo { version, node: node.into(), started },
            heartbeat: Instant::now(),
            network: None,
            lease_until: None,
            store: StoreStatus { kind: store.into(), reachable: None, since: started },
            watch: None,
            peers: Peers::default(),
            kernel: Kernel::new(),
            multicast: None,
            conditions: Conditions::default(),
            controllers: Controllers::default(),
        };
        let changes = watch::Sender::new(());
        StatusHub { shared: Arc::new(Shared { state: Mutex::new(state), changes }) }
    }

    /// Returns a receiver for all changes from now on.
    pub fn changes(&self) -> Changes {
        Changes { receiver: self.shared.changes.subscribe() }
    }

    /// Sets the name of the node.
    pub fn set_node(&self, name: &str) {
        name.clone_into(&mut self.lock().agent.node);
    }

    /// Reports that the event loop makes progress. Must be called every [`HEARTBEAT_INTERVAL`].
    pub fn heartbeat(&self) {
        self.lock().heartbeat = Instant::now();
    }

    /// Sets the network that the node has joined; `None` if pods cannot be attached to it.
    pub fn set_network(&self, network: Option<NetworkStatus>) {
        self.update(|state| {
            state.network = network;
            true
        });
    }

    /// Sets the remaining time of the lease; `None` if the lease does not expire.
    pub fn set_lease_left(&self, left: Option<Duration>) {
        self.update(|state| {
            state.lease_until = left.map(|left| Instant::now() + left);
            true
        });
    }

    /// Reports that a condition is not fulfilled. A repeated report may change the text, but not the start time.
    pub fn set_problem(&self, kind: ConditionKind, text: impl Into<String>) {
        let text = text.into();
        self.update(|state| {
            if kind == ConditionKind::Store {
                state.store.set_reachable(false);
            }
            state.conditions.set(kind, text)
        });
    }

    /// Reports that a condition is fulfilled.
    pub fn clear_problem(&self, kind: ConditionKind) {
        self.update(|state| {
            let is_found = kind == ConditionKind::Store && state.store.set_reachable(true);
            state.conditions.clear(kind) || is_found
        });
    }

    /// Reports whether a condition is fulfilled: the error is the problem.
    pub fn report_result<E: std::fmt::Display>(&self, kind: ConditionKind, result: Result<(), E>) {
        match result {
            Ok(()) => self.clear_problem(kind),
            Err(error) => self.set_problem(kind, error.to_string()),
        }
    }

    /// Reports whether a managed file has its content. All files together are the condition `Files`.
    pub(crate) fn report_file(&self, path: &Path, result: Result<(), String>) {
        self.update(|state| state.conditions.set_file(path, result));
    }

    /// Reports that a controller runs.
    pub(crate) fn controller_running(&self, name: &str) {
        self.update(|state| {
            state.controllers.running(name);
            true
        });
    }

    /// Reports that a controller has ended and will be restarted.
    pub(crate) fn controller_failed(&self, name: &str, reason: String) {
        self.update(|state| {
            state.controllers.failed(name, reason);
            true
        });
    }

    /// Sets the last processed revision of the store, and the last one that the store has announced.
    pub fn set_watch(&self, revision: u64, announced: u64) {
        let behind = announced.saturating_sub(revision);
        self.lock().watch = Some(WatchStatus { revision, behind });
    }

    /// Adds or replaces a peer. The results of path checks are kept while its public addresses stay the same.
    pub fn set_peer(&self, peer: PeerStatus) {
        self.lock().peers.set(peer);
    }

    /// Removes a peer.
    pub fn remove_peer(&self, name: &str) {
        self.lock().peers.remove(name);
    }

    /// Replaces all peers.
    pub fn set_peers(&self, peers: Vec<PeerStatus>) {
        self.lock().peers.set_all(peers);
    }

    /// Sets how packets reach a peer, and for which of its subnets the path is checked. Ignores unknown peers.
    pub fn set_route(
        &self,
        peer: &str,
        route: RouteMode,
        checked: impl IntoIterator<Item = IpNet>,
    ) {
        self.lock().peers.set_route(peer, route, checked);
    }

    /// Sets the result of a path check. Ignores subnets whose path is not checked any more.
    pub fn set_path(&self, peer: &str, subnet: IpNet, path: PathStatus) {
        self.lock().peers.set_path(peer, subnet, path);
    }

    /// Replaces the list of rejected peers and subnets. Returns those that are new.
    pub fn set_rejected(&self, rejected: Vec<RejectedPeerStatus>) -> Vec<RejectedPeerStatus> {
        self.lock().peers.set_rejected(rejected)
    }

    /// Replaces the list of conflicting objects of other programs.
    pub fn set_conflicts(&self, conflicts: &[Conflict]) {
        self.update(|state| {
            let is_new = state.kernel.conflicts != conflicts;
            if is_new {
                state.kernel.conflicts = conflicts.to_vec();
            }
            is_new
        });
    }

    /// Records a repair of something that another program changed.
    pub fn record_repair(&self, kind: RepairKind, text: impl Into<String>) {
        let repair = Repair { kind, text: text.into(), at: Time::now() };
        self.lock().kernel.record(repair);
    }

    /// Records a full comparison of the desired state with the kernel.
    pub fn record_comparison(&self, took: Duration, changes: usize) {
        let comparison = Comparison { at: Time::now(), seconds: took.as_secs_f64(), changes };
        self.lock().kernel.comparison = Some(comparison);
    }

    /// Sets the place of the udp backend's tunnel, whose counters are read whenever the status is.
    pub fn set_udp(&self, slot: UdpTunnelSlot) {
        self.lock().kernel.udp = slot;
    }

    /// Sets the counters of multicast. They are read whenever the status is.
    pub fn set_multicast(&self, counters: Arc<Counters>) {
        self.lock().multicast = Some(counters);
    }

    /// Returns whether pods can be attached.
    pub fn readiness(&self) -> Readiness {
        readiness::readiness(&self.lock(), Instant::now())
    }

    /// Returns whether the agent works.
    pub fn health(&self) -> Health {
        readiness::health(&self.lock(), Instant::now())
    }

    /// Returns the network that the node has joined.
    pub fn network(&self) -> Option<NetworkStatus> {
        self.lock().network.clone()
    }

    /// Returns all peers by name.
    pub fn peers(&self) -> Vec<PeerStatus> {
        self.lock().peers.list()
    }

    /// Returns the whole status.
    pub fn status(&self) -> Status {
        let state = self.lock();
        let mut status = state.summary(Instant::now());
        status.peers.list = state.peers.list();
        status
    }

    /// Returns the status without the list of peers.
    pub fn summary(&self) -> Status {
        self.lock().summary(Instant::now())
    }

    /// Changes the state, and notifies receivers if the function returns `true`.
    fn update(&self, change: impl FnOnce(&mut State) -> bool) {
        let has_changed = change(&mut self.lock());
        if has_changed {
            self.shared.changes.send_replace(());
        }
    }

    /// Also works after a panic with the lock held: no report leaves the state inconsistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn summary(&self, now: Instant) -> Status {
        let readiness = readiness::readiness(self, now);
        let health = readiness::health(self, now);
        let wall_clock =
            |until: Instant| Time(Time::now().0 + until.saturating_duration_since(now));
        Status {
            agent: self.agent.clone(),
            ready: readiness.is_ready,
            healthy: health.is_healthy,
            reasons: [readiness.reasons, health.reasons].concat(),
            warnings: readiness.warnings,
            membership: MembershipStatus {
                network: self.network.clone(),
                lease_until: self.lease_until.map(wall_clock),
                watch: self.watch,
            },
            store: self.store.clone(),
            peers: self.peers.summary(),
            kernel: self.kernel.status(),
            multicast: self.multicast.as_deref().map(MulticastStatus::of),
            problems: self.conditions.iter().map(|(kind, one)| (kind, one.clone())).collect(),
            controllers: self.controllers.status(),
        }
    }
}

impl StoreStatus {
    /// Returns `false` if that was known.
    fn set_reachable(&mut self, reachable: bool) -> bool {
        let is_new = self.reachable != Some(reachable);
        if is_new {
            (self.reachable, self.since) = (Some(reachable), Time::now());
        }
        is_new
    }
}

/// Shortens a text that is too long, and adds its original length.
fn shortened(text: String) -> String {
    if text.len() <= MAX_TEXT {
        return text;
    }
    let end = (0..=MAX_TEXT).rfind(|at| text.is_char_boundary(*at)).unwrap_or_default();
    let start = &text[..end];
    format!("{start}… ({} bytes)", text.len())
}
