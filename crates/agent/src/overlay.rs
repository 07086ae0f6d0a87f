// SPDX-License-Identifier: Apache-2.0
//! The overlay controller: turns the leases of other nodes into devices, routes and neighbours. It hands the
//! plan to the routes dataplane, reports the outcome, and tells the path check, multicast and the commands
//! of the backend `extension` which peers there are.

pub(crate) mod previous_backend;
mod publication;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use overlay::backend::Backend;
use overlay::lease::Lease;
use overlay::plan::{Network, PreviousBackendState};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;

use self::previous_backend::SavedBackends;
use self::publication::Publication;
use crate::dataplane::routes::{Outcome, PeerUpdate, Reconciler, Report, RoutesDataplane, Secrets};
use crate::extension::{Failures, Job, Progress, send_jobs};
use crate::lease::{LeaseBackend, NodeRecord, NodeRecordState, PeerEvents, StoreItem};
use crate::membership::{Joined, Message, at, leases};
use crate::multicast;
use crate::path_check::{Command, PathResult};
use crate::paths::Paths;
use crate::settings::Settings;
use crate::status::{
    ConditionKind, PathStatus, PeerStatus, RejectedPeerStatus, RepairKind, RouteMode, StatusHub,
};
use crate::supervisor::{Failure, Heartbeat};

/// Maximum number of rejected leases that are logged one by one.
const MAX_LOGGED: usize = 20;

/// Interval of the check whether peers still use the previous backend. They do until they have read this
/// node's lease, so its device is removed after one to two intervals without such a peer.
const PREVIOUS_CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// A network whose devices and routes are in the kernel.
#[derive(Debug)]
pub(crate) struct Programmed {
    pub joined: Arc<Joined>,
    pub pod_mtu: u32,
}

/// The channels that the controller reads. They outlive a restart.
#[derive(Debug)]
pub(crate) struct Inputs {
    pub messages: UnboundedReceiver<Message>,
    pub reports: UnboundedReceiver<Report>,
    pub path_results: UnboundedReceiver<PathResult>,
    pub extension: watch::Receiver<Progress>,
}

/// The channels that the controller writes.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub multicast: multicast::Handle,
    pub extension: UnboundedSender<Job>,
    pub programmed: watch::Sender<Option<Arc<Programmed>>>,
}

/// The network that the node has joined.
#[derive(Debug)]
struct Current {
    joined: Arc<Joined>,
    /// Leases that cannot be parsed, with the reason.
    invalid: BTreeMap<String, String>,
    /// Peers that the plan rejects.
    rejected: Vec<RejectedPeerStatus>,
    publication: Publication,
    /// When to check whether peers still use the previous backend; `None` if there is none.
    check_previous_at: Option<Instant>,
}

impl Current {
    fn new(joined: Arc<Joined>) -> Current {
        let (invalid, rejected) = (BTreeMap::new(), Vec::new());
        let (publication, check_previous_at) = (Publication::new(), None);
        Current { joined, invalid, rejected, publication, check_previous_at }
    }
}

/// The controller. After a restart it programs the network again, from the backend's mirror.
#[derive(Debug)]
pub(crate) struct Overlay {
    settings: Arc<Settings>,
    hub: StatusHub,
    leases: Arc<dyn LeaseBackend>,
    routes: Arc<RoutesDataplane>,
    inputs: Inputs,
    outputs: Outputs,
    paths: Paths,
    backends: SavedBackends,
    current: Option<Current>,
    /// When the newest outcome was complete.
    last_outcome: Option<Instant>,
}

impl Overlay {
    pub(crate) async fn new(
        settings: &Arc<Settings>,
        hub: &StatusHub,
        leases: &Arc<dyn LeaseBackend>,
        routes: &Arc<RoutesDataplane>,
        paths: Paths,
        inputs: Inputs,
        outputs: Outputs,
    ) -> Overlay {
        Overlay {
            backends: SavedBackends::read(settings).await,
            settings: Arc::clone(settings),
            hub: hub.clone(),
            leases: Arc::clone(leases),
            routes: Arc::clone(routes),
            inputs,
            outputs,
            paths,
            current: None,
            last_outcome: None,
        }
    }

    pub(crate) async fn run(&mut self, heartbeat: &Heartbeat) -> Result<(), Failure> {
        self.skip_messages();
        self.routes.restart_if_stopped().await.map_err(|error| error.to_string())?;
        if let Some(Current { joined, .. }) = &self.current {
            let joined = Arc::clone(joined);
            let items = self.leases.last_known().map(|known| known.items).unwrap_or_default();
            self.join(joined, items).await?;
        }
        loop {
            heartbeat.beat();
            let check_previous_at = self.current.as_ref().and_then(|one| one.check_previous_at);
            let Inputs { messages, reports, path_results, extension } = &mut self.inputs;
            tokio::select! {
                message = messages.recv() => match message {
                    Some(Message::Join { joined, items }) => self.join(joined, items).await?,
                    Some(Message::Peers(events)) => self.handle_peers(events).await?,
                    None => return Ok(()),
                },
                Some(report) = reports.recv() => self.handle_report(report).await?,
                Some(result) = path_results.recv() => self.handle_path_result(result).await?,
                Ok(()) = extension.changed() => self.handle_progress(),
                () = at(check_previous_at) => self.check_previous_backend().await?,
                stopped = self.routes.stopped() => return Err(stopped.to_string()),
                () = heartbeat.tick() => {}
            }
        }
    }

    /// Skips to the newest network that the node has joined. Drops all waiting messages: the backend's mirror has
    /// their changes. Otherwise they would pile up while the controller fails again and again.
    fn skip_messages(&mut self) {
        while let Ok(message) = self.inputs.messages.try_recv() {
            if let Message::Join { joined, .. } = message {
                self.current = Some(Current::new(joined));
            }
        }
    }

    /// Lets the routes dataplane make a change. Jobs for the extension controller are sent on its thread, so that
    /// they are not lost if this controller is restarted while it waits: the dataplane would not ask for them again.
    async fn change(
        &self,
        change: impl FnOnce(&mut Reconciler) -> Outcome + Send + 'static,
    ) -> Result<Outcome, Failure> {
        let jobs = self.outputs.extension.clone();
        self.routes(move |reconciler| {
            let outcome = change(reconciler);
            send_jobs(&jobs, &outcome.changes);
            outcome
        })
        .await
    }

    async fn routes<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Reconciler) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        self.routes.run(command).await.map_err(|error| error.to_string())
    }

    /// Programs a network that the node has joined.
    async fn join(&mut self, joined: Arc<Joined>, items: Vec<StoreItem>) -> Result<(), Failure> {
        self.current = Some(Current::new(Arc::clone(&joined)));
        let _ = self.outputs.extension.send(Job::Joined(Arc::clone(&joined)));
        let config = joined.conf_text.expose();
        self.backends.set(config, &joined.conf.backend, &joined.lease);
        self.program_all(items).await?;
        // The path to the same address may be another one.
        self.paths.send(Command::CheckAll);
        let has_started = self.has_started();
        self.publish_after(publication::Event::Programmed { has_started });
        self.backends.write_if_due(&self.settings).await;
        Ok(())
    }

    /// Plans for all peers and programs the kernel.
    async fn program_all(&mut self, items: Vec<StoreItem>) -> Result<(), Failure> {
        let start = Instant::now();
        let Some(current) = &mut self.current else { return Ok(()) };
        current.invalid = invalid(&items);
        let joined = Arc::clone(&current.joined);
        let peers: BTreeMap<String, (u64, Lease)> = leases(&items)
            .filter(|(name, ..)| *name != joined.name)
            .map(|(name, since, lease)| (name.to_owned(), (since, lease.clone())))
            .collect();
        let shown = peers.iter().map(|(name, (_, lease))| shown_peer(&joined, name, lease));
        self.hub.set_peers(shown.collect());
        self.outputs.multicast.set_network(
            joined.lease.subnets.iter(),
            peers.iter().map(|(name, (_, lease))| (name.as_str(), lease)),
        );
        let (conf, lease, underlay) =
            (joined.conf.clone(), joined.lease.clone(), joined.underlay.clone());
        let network = Network::new(conf, lease, underlay, peers);
        let mut network = network.map_err(|error| error.to_string())?;
        network.set_own_blackholes(self.settings.nat.blackhole);
        let is_kept = self.backends.keep_previous(&mut network);
        // Peers cannot have read a lease that is not in the store.
        let check_previous_at = Some(Instant::now() + PREVIOUS_CHECK_INTERVAL)
            .filter(|_| is_kept && !joined.from_cache);
        if let Some(current) = &mut self.current {
            current.check_previous_at = check_previous_at;
        }
        let secrets = Secrets { wireguard: joined.wireguard_key.clone() };
        let outcome = self.change(move |reconciler| {
            if secrets.wireguard.is_some() {
                reconciler.set_secrets(secrets);
            }
            reconciler.set_network(network)
        });
        let outcome = outcome.await?;
        self.hub.record_comparison(start.elapsed(), outcome.changes.len());
        self.handle_outcome(&outcome, false);
        self.paths.update(None).await
    }

    async fn handle_peers(&mut self, events: PeerEvents) -> Result<(), Failure> {
        let Some(Current { joined, invalid, .. }) = &mut self.current else { return Ok(()) };
        let changes = match events {
            PeerEvents::All(items) => return self.program_all(items).await,
            PeerEvents::Changed(changes) => changes,
        };
        let mut updates = Vec::new();
        for change in changes {
            let StoreItem::Node(node) = change else { continue };
            if node.name != joined.name {
                invalid.remove(&node.name);
                if let NodeRecordState::Invalid(reason) = &node.state {
                    invalid.insert(node.name.clone(), reason.clone());
                }
                updates.push((Arc::clone(joined), node));
            }
        }
        let updates: Vec<PeerUpdate> =
            updates.into_iter().map(|(joined, node)| self.update_peer(&joined, node)).collect();
        if updates.is_empty() {
            return Ok(());
        }
        let names = names(&updates);
        let outcome = self.change(|reconciler| reconciler.set_peers(updates)).await?;
        self.handle_outcome(&outcome, false);
        self.paths.update(Some(names.clone())).await?;
        names.into_iter().for_each(|name| self.paths.send(Command::Heard(name)));
        Ok(())
    }

    /// Reports a changed peer to the status, multicast and the path check.
    fn update_peer(
        &self,
        joined: &Joined,
        NodeRecord { name, state, .. }: NodeRecord,
    ) -> PeerUpdate {
        match state {
            NodeRecordState::Active { since, lease } => {
                self.hub.set_peer(shown_peer(joined, &name, &lease));
                self.outputs.multicast.set_peer(&name, &lease);
                PeerUpdate::Set { name, since, lease: *lease }
            }
            NodeRecordState::Invalid(_) | NodeRecordState::Removed => {
                self.hub.remove_peer(&name);
                self.paths.send(Command::Forget(name.clone()));
                self.outputs.multicast.remove_peer(&name);
                PeerUpdate::Remove { name }
            }
        }
    }

    async fn handle_report(&mut self, report: Report) -> Result<(), Failure> {
        let (outcome, is_repair) = match report {
            Report::Repaired(outcome) => (outcome, true),
            Report::Retried(outcome) => (outcome, false),
            Report::Compared { took, changes } => {
                self.hub.record_comparison(took, changes);
                return Ok(());
            }
            Report::EventsLost(error) => {
                let text = format!("no events of changes in the kernel: {error}");
                self.hub.set_problem(ConditionKind::Watch, text);
                return Ok(());
            }
            Report::Restarted => {
                self.hub.clear_problem(ConditionKind::Watch);
                return Ok(());
            }
            Report::UnderlayChanged | Report::ForwardingChanged => return Ok(()),
        };
        send_jobs(&self.outputs.extension, &outcome.changes);
        self.handle_outcome(&outcome, is_repair);
        // A device may be new, or a path may be another one.
        self.paths.update(None).await
    }

    /// Reports what was changed and what failed; `is_repair` if another program had broken it.
    fn handle_outcome(&mut self, outcome: &Outcome, is_repair: bool) {
        for change in &outcome.changes {
            if is_repair {
                tracing::warn!(%change, "kernel state repaired");
                self.hub.record_repair(RepairKind::from(change), change.to_string());
            } else {
                tracing::debug!(%change, "kernel state changed");
            }
        }
        for failure in &outcome.failures {
            tracing::error!(%failure, "change failed");
        }
        if outcome.at < self.last_outcome {
            // A report that waited while a command succeeded. Its failures would never be cleared.
            return;
        }
        self.last_outcome = outcome.at;
        self.hub.report_result(ConditionKind::Kernel, outcome.summary());
        self.hub.set_conflicts(&outcome.conflicts);
        let Some(current) = &mut self.current else { return };
        current.rejected = outcome.rejected.iter().map(rejected).collect();
        self.report_rejected();
        self.publish_after(publication::Event::Outcome { pod_mtu: outcome.pod_mtu });
    }

    /// Reports all peers that are not served, for whichever reason.
    fn report_rejected(&self) {
        let Some(current) = &self.current else { return };
        let invalid = current.invalid.iter().map(|(name, reason)| RejectedPeerStatus {
            peer: name.clone(),
            subnet: None,
            reason: reason.clone(),
        });
        let failures = self.inputs.extension.borrow().failures.clone();
        let by_commands = failed_commands(&failures, &self.hub);
        let all = current.rejected.iter().cloned().chain(invalid).chain(by_commands);
        let fresh = self.hub.set_rejected(all.collect());
        for RejectedPeerStatus { peer, subnet, reason } in fresh.iter().take(MAX_LOGGED) {
            let subnet = subnet.map(|subnet| subnet.to_string());
            tracing::warn!(peer, subnet, reason, "peer rejected");
        }
        if let Some(more @ 1..) = fresh.len().checked_sub(MAX_LOGGED) {
            tracing::warn!(more, "peers rejected, not logged one by one");
        }
    }

    /// Handles what the commands of the backend `extension` have done.
    fn handle_progress(&mut self) {
        self.report_rejected();
        if self.has_started() {
            self.publish_after(publication::Event::Started);
        }
    }

    /// Returns whether the command after the start of the backend `extension` has ended, if there is one. It may create
    /// what pods need.
    fn has_started(&self) -> bool {
        let progress = self.inputs.extension.borrow();
        self.current.as_ref().is_some_and(|current| progress.has_started(&current.joined))
    }

    /// Tells the other controllers that the network works, if this event is a reason.
    fn publish_after(&mut self, event: publication::Event) {
        let Some(current) = &mut self.current else { return };
        let is_due;
        (current.publication, is_due) = current.publication.step(event);
        if is_due {
            let joined = Arc::clone(&current.joined);
            let pod_mtu = current.publication.pod_mtu().unwrap_or(joined.underlay.mtu);
            self.outputs.programmed.send_replace(Some(Arc::new(Programmed { joined, pod_mtu })));
        }
    }

    async fn handle_path_result(&mut self, result: PathResult) -> Result<(), Failure> {
        if let Some(update) = self.paths.report(&result) {
            let outcome = self.change(|reconciler| reconciler.set_peers(vec![update])).await?;
            self.paths.report_outcome(&result, &outcome);
            self.handle_outcome(&outcome, false);
        }
        Ok(())
    }

    /// Removes the device of the previous backend once no peer uses it.
    async fn check_previous_backend(&mut self) -> Result<(), Failure> {
        let jobs = self.outputs.extension.clone();
        let expired = self.routes(move |reconciler| {
            let (state, outcome) = reconciler.expire_previous();
            send_jobs(&jobs, &outcome.changes);
            (state, outcome)
        });
        let (state, outcome) = expired.await?;
        let next = Some(Instant::now() + PREVIOUS_CHECK_INTERVAL);
        if let Some(current) = &mut self.current {
            current.check_previous_at = next.filter(|_| state == PreviousBackendState::Kept);
        }
        if state == PreviousBackendState::Dropped {
            tracing::info!("previous backend removed, no peer publishes it");
            self.backends.drop_previous();
            self.backends.write_if_due(&self.settings).await;
            self.handle_outcome(&outcome, false);
            self.paths.update(None).await?;
        }
        Ok(())
    }
}

fn invalid(items: &[StoreItem]) -> BTreeMap<String, String> {
    let reason = |item: &StoreItem| match item {
        StoreItem::Node(node) => match &node.state {
            NodeRecordState::Invalid(reason) => Some((node.name.clone(), reason.clone())),
            _ => None,
        },
        StoreItem::Config(_) | StoreItem::ConfigRejected(_) => None,
    };
    items.iter().filter_map(reason).collect()
}

fn rejected(rejected: &overlay::plan::RejectedPeer) -> RejectedPeerStatus {
    RejectedPeerStatus {
        peer: rejected.peer.clone(),
        subnet: rejected.subnet,
        reason: rejected.reason.to_string(),
    }
}

/// Peers whose command has failed.
fn failed_commands(failures: &Failures, hub: &StatusHub) -> Vec<RejectedPeerStatus> {
    if failures.is_empty() {
        return Vec::new();
    }
    let peers = hub.peers();
    let name = |subnet: &IpNet| peers.iter().find(|peer| peer.subnets.contains(subnet));
    let refused = |(subnet, reason): (&IpNet, &String)| RejectedPeerStatus {
        peer: name(subnet).map(|peer| peer.name.clone()).unwrap_or_default(),
        subnet: Some(*subnet),
        reason: reason.clone(),
    };
    failures.iter().map(refused).collect()
}

/// A peer as the status shows it.
fn shown_peer(joined: &Joined, name: &str, lease: &Lease) -> PeerStatus {
    let route = match joined.conf.backend {
        Backend::HostGw => RouteMode::Direct,
        Backend::Alloc | Backend::Extension(_) => RouteMode::None,
        _ => RouteMode::Tunnel,
    };
    PeerStatus {
        name: name.to_owned(),
        subnets: lease.subnets.iter().collect(),
        public: lease.attributes.public.iter().collect(),
        backend: lease.attributes.data.kind().to_owned(),
        route,
        path: PathStatus::default(),
    }
}

/// Names of the peers that were added or changed.
fn names(updates: &[PeerUpdate]) -> Vec<String> {
    let name = |update: &PeerUpdate| match update {
        PeerUpdate::Set { name, .. } => Some(name.clone()),
        _ => None,
    };
    updates.iter().filter_map(name).collect()
}
