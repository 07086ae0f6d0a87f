// SPDX-License-Identifier: Apache-2.0
//! Where the agent's parts post what they know, and whence health, status and metrics are read. To
//! post is cheap, and costs the same however many peers there are.

pub(crate) mod log;
mod model;
mod peers;
mod readiness;
pub mod systemd;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overlay::diff::{Change, Conflict};
use tokio::sync::watch;

use crate::multicast::Counters;

pub use self::model::{
    Compare, ConditionKind, ControllerStatus, Lease, Multicast, Path, Peer, PeerCounts, Problem,
    Refused, Repair, RepairKind, Repairs, Session, Status, Store, Time, Underlay, Watch, Way,
};
pub use self::readiness::{BEAT_EVERY, Health, Readiness};

/// So many repairs are shown.
const LAST_REPAIRS: usize = 32;

/// Most refused leases and conflicts that are listed. Their number is told in any case.
const MAX_LISTED: usize = 20;

/// Most bytes of one text on the hub: texts may quote what anybody has written to the store.
const MAX_TEXT: usize = 512;

/// A handle on what is known; its clones are of the same hub.
#[derive(Debug, Clone)]
pub struct StatusHub {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

/// What is known.
#[derive(Debug)]
struct State {
    node: String,
    started: Time,
    beat: Instant,
    session: Option<Session>,
    lease_until: Option<Instant>,
    store: Store,
    watch: Option<Watch>,
    peers: HashMap<String, Peer>,
    refused: Vec<Refused>,
    conflicts: Vec<Conflict>,
    counts: BTreeMap<RepairKind, u64>,
    repairs: VecDeque<Repair>,
    compare: Option<Compare>,
    multicast: Option<Arc<Counters>>,
    problems: BTreeMap<ConditionKind, ActiveCondition>,
    controllers: BTreeMap<String, ControllerState>,
    /// Managed files that cannot be written, with the reason. Together they are one condition.
    file_problems: BTreeMap<PathBuf, String>,
}

/// A controller that the supervisor runs.
#[derive(Debug, Default)]
struct ControllerState {
    shown: ControllerStatus,
    /// When the current failure started; `None` while the controller runs.
    failing_since: Option<Instant>,
}

/// A problem that is not solved.
#[derive(Debug)]
struct ActiveCondition {
    problem: Problem,
    /// Clocks are set, this one is not.
    start: Instant,
}

/// Tells that something is different that makes a node ready or not. Peers and repairs do not.
#[derive(Debug)]
pub struct Changes {
    receiver: watch::Receiver<()>,
}

impl Changes {
    /// Waits for the next one; one that came since the last call counts.
    pub async fn next(&mut self) {
        if self.receiver.changed().await.is_err() {
            // The hub is gone: nothing will ever be different.
            std::future::pending::<()>().await;
        }
    }
}

impl StatusHub {
    /// Of a node with this name, and this kind of store, of which nothing is known yet.
    pub fn new(node: impl Into<String>, store: impl Into<String>) -> StatusHub {
        let started = Time::now();
        let state = State {
            node: node.into(),
            started,
            beat: Instant::now(),
            session: None,
            lease_until: None,
            store: Store { kind: store.into(), reachable: None, since: started },
            watch: None,
            peers: HashMap::new(),
            refused: Vec::new(),
            conflicts: Vec::new(),
            counts: RepairKind::ALL.map(|kind| (kind, 0)).into(),
            repairs: VecDeque::new(),
            compare: None,
            multicast: None,
            problems: BTreeMap::new(),
            controllers: BTreeMap::new(),
            file_problems: BTreeMap::new(),
        };
        let changes = watch::Sender::new(());
        StatusHub { shared: Arc::new(Shared { state: Mutex::new(state), changes }) }
    }

    /// Whatever comes from now on.
    pub fn changes(&self) -> Changes {
        Changes { receiver: self.shared.changes.subscribe() }
    }

    /// The node is called so.
    pub fn set_node(&self, name: &str) {
        name.clone_into(&mut self.lock().node);
    }

    /// The loop is alive; to be said every [`BEAT_EVERY`].
    pub fn heartbeat(&self) {
        self.lock().beat = Instant::now();
    }

    /// The node is part of the network, as this says; or no longer.
    pub fn set_session(&self, session: Option<Session>) {
        self.post(|state| state.session = session);
    }

    /// The lease is good for so long; none where it has no end.
    pub fn set_lease_left(&self, left: Option<Duration>) {
        self.post(|state| state.lease_until = left.map(|left| Instant::now() + left));
    }

    /// Something is wrong with a part. Saying it again may change the words, not the beginning.
    pub fn set_problem(&self, part: ConditionKind, text: impl Into<String>) {
        let text = shortened(text.into());
        let is_said = |active: &ActiveCondition| active.problem.text == text;
        if self.lock().problems.get(&part).is_some_and(is_said) {
            return;
        }
        self.post(|state| {
            if part == ConditionKind::Store {
                state.store.is_found(false);
            }
            let fresh = || ActiveCondition {
                problem: Problem { text: String::new(), since: Time::now() },
                start: Instant::now(),
            };
            state.problems.entry(part).or_insert_with(fresh).problem.text = text;
        });
    }

    /// Nothing is wrong with a part any more.
    pub fn clear_problem(&self, part: ConditionKind) {
        let is_known = |state: &State| match part {
            ConditionKind::Store => state.store.reachable == Some(true),
            _ => !state.problems.contains_key(&part),
        };
        if is_known(&self.lock()) {
            return;
        }
        self.post(|state| {
            state.problems.remove(&part);
            if part == ConditionKind::Store {
                state.store.is_found(true);
            }
        });
    }

    /// Either of the two.
    pub fn report<E: std::fmt::Display>(&self, part: ConditionKind, result: Result<(), E>) {
        match result {
            Ok(()) => self.clear_problem(part),
            Err(error) => self.set_problem(part, error.to_string()),
        }
    }

    /// A controller runs.
    pub(crate) fn controller_running(&self, name: &str) {
        self.post(|state| {
            let controller = state.controllers.entry(name.to_owned()).or_default();
            controller.shown.failure = None;
            controller.failing_since = None;
        });
    }

    /// A controller has ended and will be restarted.
    pub(crate) fn controller_failed(&self, name: &str, reason: String) {
        self.post(|state| {
            let controller = state.controllers.entry(name.to_owned()).or_default();
            controller.shown.restarts += 1;
            controller.shown.failure = Some(shortened(reason));
            controller.failing_since.get_or_insert_with(Instant::now);
        });
    }

    /// Reports whether a managed file has its content. Each file has its own problem.
    pub(crate) fn report_file(&self, path: &FilePath, result: Result<(), String>) {
        let problem = {
            let mut state = self.lock();
            match result {
                Ok(()) => drop(state.file_problems.remove(path)),
                Err(problem) => drop(state.file_problems.insert(path.to_owned(), problem)),
            }
            let texts: Vec<&str> = state.file_problems.values().map(String::as_str).collect();
            texts.join("; ")
        };
        match problem.is_empty() {
            true => self.clear_problem(ConditionKind::Files),
            false => self.set_problem(ConditionKind::Files, problem),
        }
    }

    /// All is known that the store had at this revision, and it has come to that one.
    pub fn watched(&self, revision: u64, head: u64) {
        self.lock().watch = Some(Watch { revision, behind: head.saturating_sub(revision) });
    }

    /// A peer has come or is different. What is known of the way to it stays unless its addresses
    /// are others.
    pub fn set_peer(&self, peer: Peer) {
        let mut state = self.lock();
        let before = state.peers.remove(&peer.name);
        state.peers.insert(peer.name.clone(), peer.with_path_of(before));
    }

    /// A peer has left.
    pub fn remove_peer(&self, name: &str) {
        self.lock().peers.remove(name);
    }

    /// These are all peers there are.
    pub fn set_peers(&self, peers: Vec<Peer>) {
        let mut state = self.lock();
        let mut known = std::mem::take(&mut state.peers);
        for peer in peers {
            let before = known.remove(&peer.name);
            state.peers.insert(peer.name.clone(), peer.with_path_of(before));
        }
    }

    /// How packets go to a peer. One that has left is passed over.
    pub fn set_way(&self, peer: &str, way: Way) {
        if let Some(known) = self.lock().peers.get_mut(peer) {
            known.way = way;
        }
    }

    /// What trying the way to a peer has shown. One that has left is passed over.
    pub fn set_path(&self, peer: &str, path: Path) {
        if let Some(known) = self.lock().peers.get_mut(peer) {
            known.path = path;
        }
    }

    /// These are all that are not served. Tells which of them were.
    pub fn set_refused(&self, mut refused: Vec<Refused>) -> Vec<Refused> {
        for one in &mut refused {
            one.peer = shortened(std::mem::take(&mut one.peer));
            one.reason = shortened(std::mem::take(&mut one.reason));
        }
        let mut state = self.lock();
        let fresh = peers::fresh(&state.refused, &refused);
        state.refused = refused;
        fresh
    }

    /// These are all things of others that are in the way.
    pub fn set_conflicts(&self, conflicts: &[Conflict]) {
        if self.lock().conflicts != conflicts {
            self.post(|state| state.conflicts = conflicts.to_vec());
        }
    }

    /// Something that others broke was put right.
    pub fn repaired(&self, kind: RepairKind, text: impl Into<String>) {
        let mut state = self.lock();
        *state.counts.entry(kind).or_default() += 1;
        if state.repairs.len() == LAST_REPAIRS {
            state.repairs.pop_front();
        }
        state.repairs.push_back(Repair { kind, text: text.into(), at: Time::now() });
    }

    /// All of the kernel was compared with what is wanted.
    pub fn compared(&self, took: Duration, changes: usize) {
        let compare = Compare { at: Time::now(), seconds: took.as_secs_f64(), changes };
        self.lock().compare = Some(compare);
    }

    /// Multicast is carried, and counted there.
    pub fn set_multicast(&self, counts: Arc<Counters>) {
        self.lock().multicast = Some(counts);
    }

    /// Whether pods can be connected.
    pub fn readiness(&self) -> Readiness {
        readiness::readiness(&self.lock(), Instant::now())
    }

    /// Whether the agent works.
    pub fn health(&self) -> Health {
        readiness::health(&self.lock(), Instant::now())
    }

    /// The network as it is.
    pub fn session(&self) -> Option<Session> {
        self.lock().session.clone()
    }

    /// All peers, by name.
    pub fn peers(&self) -> Vec<Peer> {
        let state = self.lock();
        peers::shown(&state.peers, &state.refused)
    }

    /// Everything.
    pub fn status(&self) -> Status {
        Status { peers: self.peers(), ..self.summary() }
    }

    /// Everything but the list of peers.
    pub fn summary(&self) -> Status {
        let state = self.lock();
        let now = Instant::now();
        let (readiness, health) =
            (readiness::readiness(&state, now), readiness::health(&state, now));
        let until = |until: Instant| {
            let left = until.saturating_duration_since(now);
            Time(Time::now().0 + left)
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: state.node.clone(),
            started: state.started,
            ready: readiness.is_ready,
            healthy: health.is_healthy,
            reasons: [readiness.reasons, health.reasons].concat(),
            warnings: readiness.warnings,
            session: state.session.clone(),
            lease_until: state.lease_until.map(until),
            store: state.store.clone(),
            watch: state.watch,
            peer_counts: peers::counts(&state.peers, &state.refused),
            peers: Vec::new(),
            refused: state.refused.iter().take(MAX_LISTED).cloned().collect(),
            refused_total: state.refused.len(),
            conflicts: state.conflicts.iter().take(MAX_LISTED).map(ToString::to_string).collect(),
            conflicts_total: state.conflicts.len(),
            repairs: Repairs {
                counts: state.counts.clone(),
                last: state.repairs.iter().cloned().collect(),
            },
            compare: state.compare,
            multicast: state.multicast.as_deref().map(Multicast::of),
            controllers: state
                .controllers
                .iter()
                .map(|(name, controller)| (name.clone(), controller.shown.clone()))
                .collect(),
            problems: state
                .problems
                .iter()
                .map(|(part, active)| (*part, active.problem.clone()))
                .collect(),
        }
    }

    /// Changes what decides on readiness, and tells.
    fn post(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.shared.changes.send_replace(());
    }

    /// A part that panicked while it posted has not left anything half done.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cuts a text that is too long, and says how long it was.
fn shortened(text: String) -> String {
    if text.len() <= MAX_TEXT {
        return text;
    }
    let end = (0..=MAX_TEXT).rfind(|at| text.is_char_boundary(*at)).unwrap_or_default();
    let start = &text[..end];
    format!("{start}… ({} bytes)", text.len())
}

impl Store {
    fn is_found(&mut self, reachable: bool) {
        if self.reachable != Some(reachable) {
            (self.reachable, self.since) = (Some(reachable), Time::now());
        }
    }
}

impl Peer {
    /// With what is known of the way to it, unless its addresses are others by now.
    fn with_path_of(mut self, before: Option<Peer>) -> Peer {
        let is_known = |before: &Peer| before.public == self.public;
        if let Some(before) = before.filter(is_known).filter(|_| self.path == Path::default()) {
            self.path = before.path;
        }
        self
    }
}

impl From<&Change> for RepairKind {
    fn from(change: &Change) -> RepairKind {
        match change {
            Change::CreateDevice(_) | Change::ChangeDevice { .. } | Change::RemoveDevice(_) => {
                RepairKind::Device
            }
            Change::AddAddress(_) | Change::RemoveAddress(_) => RepairKind::Address,
            Change::SetNeighbour { .. } | Change::RemoveNeighbour { .. } => RepairKind::Neighbour,
            Change::SetForwarding { .. } | Change::RemoveForwarding { .. } => {
                RepairKind::Forwarding
            }
            Change::AddNexthop { .. } | Change::RemoveNexthop { .. } => RepairKind::Nexthop,
            Change::SetRoute { .. } | Change::RemoveRoute(_) => RepairKind::Route,
            Change::SetPeer { .. } | Change::RemovePeer { .. } => RepairKind::Peer,
            Change::CallAdded(_) | Change::CallRemoved(_) => RepairKind::Route,
        }
    }
}
