// SPDX-License-Identifier: Apache-2.0
//! The routed controller: turns pools, nodes and blocks into devices and routes. It takes the part of the
//! overlay controller if pods have addresses from pools.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use overlay::plan::RejectedPeer;
use overlay::routed::{RoutedNetwork, RoutedNode};
use tokio::sync::mpsc::{UnboundedReceiver, error::TryRecvError};
use tokio::sync::watch;

use crate::dataplane::nft::RulesConf;
use crate::dataplane::routes::{Outcome, PeerUpdate, Reconciler, Report, RoutesDataplane};
use crate::nat::Translated;
use crate::path_check::{Command, PathResult};
use crate::paths::Paths;
use crate::pools::{RoutedMessage, RoutedSnapshot};
use crate::settings::Settings;
use crate::status::{
    ConditionKind, LeaseStatus, NetworkStatus, PathStatus, PeerStatus, RejectedPeerStatus,
    RepairKind, RouteMode, StatusHub, UnderlayStatus,
};
use crate::supervisor::{Failure, Heartbeat};

/// Maximum number of changes that are sent to the dataplane at once.
const BATCH: usize = 1024;

/// A network of routed pods whose devices and routes are in the kernel.
#[derive(Debug)]
pub(crate) struct ProgrammedPools {
    snapshot: Arc<RoutedSnapshot>,
    pod_mtu: u32,
}

impl ProgrammedPools {
    pub(crate) fn node_name(&self) -> &str {
        &self.snapshot.name
    }

    fn node_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let RoutedSnapshot { own, state, .. } = &*self.snapshot;
        let others = state.nodes.values().flat_map(|node| node.addresses.iter());
        own.addresses.iter().chain(others)
    }

    /// Returns the MTU of pods as Calico writes it to its file.
    pub(crate) fn mtu_text(&self) -> String {
        self.pod_mtu.to_string()
    }

    /// Returns the network as the status shows it.
    pub(crate) fn shown(&self, owner: &str) -> NetworkStatus {
        let RoutedSnapshot { name, underlay, state, own, .. } = &*self.snapshot;
        let blocks = state.routes.iter().filter(|(_, node)| *node == name).map(|(dst, _)| *dst);
        NetworkStatus {
            owner: owner.to_owned(),
            networks: state.pools.iter().map(|pool| pool.cidr).collect(),
            backend: "routed".to_owned(),
            pod_mtu: self.pod_mtu,
            lease: LeaseStatus {
                subnets: blocks.collect(),
                public: own.addresses.iter().collect(),
            },
            underlay: UnderlayStatus {
                name: underlay.name.to_string(),
                addresses: underlay.addresses.iter().collect(),
                mtu: underlay.mtu,
            },
        }
    }
}

impl Translated for ProgrammedPools {
    fn rules_conf(&self, settings: &Settings) -> RulesConf {
        let pools = self.snapshot.state.pools.iter().map(|pool| pool.cidr);
        RulesConf {
            networks: pools.collect(),
            subnets: Vec::new(),
            sources: Some(self.snapshot.nat_sources.clone()),
            masquerade: settings.nat.masquerade.clone().map(|mut masquerade| {
                if settings.nat.excludes_nodes {
                    masquerade.except.extend(self.node_addresses().map(IpNet::from));
                }
                masquerade
            }),
            forwards: settings.nat.forwards,
        }
    }
}

/// The channels that the controller reads. They outlive a restart.
#[derive(Debug)]
pub(crate) struct Inputs {
    pub messages: UnboundedReceiver<RoutedMessage>,
    pub reports: UnboundedReceiver<Report>,
    pub path_results: UnboundedReceiver<PathResult>,
}

/// The controller. After a restart it programs the last network again, with all later changes.
#[derive(Debug)]
pub(crate) struct Routed {
    hub: StatusHub,
    routes: Arc<RoutesDataplane>,
    paths: Paths,
    inputs: Inputs,
    programmed: watch::Sender<Option<Arc<ProgrammedPools>>>,
    current: Option<Arc<RoutedSnapshot>>,
    /// Whether the rules depend on the addresses of all nodes.
    excludes_nodes: bool,
    /// When the last reported outcome was complete.
    last_outcome: Option<Instant>,
}

impl Routed {
    pub(crate) fn new(
        hub: &StatusHub,
        routes: &Arc<RoutesDataplane>,
        paths: Paths,
        inputs: Inputs,
        programmed: watch::Sender<Option<Arc<ProgrammedPools>>>,
        excludes_nodes: bool,
    ) -> Routed {
        Routed {
            hub: hub.clone(),
            routes: Arc::clone(routes),
            paths,
            inputs,
            programmed,
            current: None,
            excludes_nodes,
            last_outcome: None,
        }
    }

    pub(crate) async fn run(&mut self, heartbeat: &Heartbeat) -> Result<(), Failure> {
        self.routes.restart_if_stopped().await.map_err(|error| error.to_string())?;
        if let Some(current) = self.current.clone() {
            self.set_network(current).await?;
        }
        loop {
            heartbeat.beat();
            let Inputs { messages, reports, path_results } = &mut self.inputs;
            tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => self.handle(message).await?,
                    None => return Ok(()),
                },
                Some(report) = reports.recv() => self.handle_report(report).await?,
                Some(result) = path_results.recv() => self.handle_path_result(&result).await?,
                stopped = self.routes.stopped() => return Err(stopped.to_string()),
                () = heartbeat.tick() => {}
            }
        }
    }

    /// Handles a message and those that wait behind it.
    async fn handle(&mut self, first: RoutedMessage) -> Result<(), Failure> {
        let (mut updates, mut changed) = (Vec::new(), BTreeSet::new());
        let mut has_new_addresses = false;
        let mut next = Some(first);
        while let Some(message) = next.take() {
            match message {
                RoutedMessage::Network(snapshot) => {
                    updates.clear();
                    self.set_network(snapshot).await?;
                }
                RoutedMessage::Node(name, node) => {
                    has_new_addresses |= self.remember_node(&name, node.as_ref());
                    changed.insert(name.clone());
                    updates.push(PeerUpdate::Node { name, node });
                }
                RoutedMessage::Route(dst, node) => {
                    changed.extend(self.remember_route(dst, node.as_ref()));
                    changed.extend(node.clone());
                    updates.push(PeerUpdate::Route { dst, node });
                }
            }
            next = match self.inputs.messages.try_recv() {
                Ok(message) if updates.len() < BATCH => Some(message),
                Ok(message) => {
                    self.update(std::mem::take(&mut updates)).await?;
                    Some(message)
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
            };
        }
        self.update(updates).await?;
        if !changed.is_empty() {
            self.paths.update(Some(changed.into_iter().collect())).await?;
        }
        if has_new_addresses && self.excludes_nodes {
            self.publish(None);
        }
        Ok(())
    }

    /// Passes the network on to other controllers, with the MTU of pods if it is new.
    fn publish(&self, pod_mtu: Option<u32>) {
        let Some(snapshot) = self.current.clone() else { return };
        let before = self.programmed.borrow().as_ref().map(|programmed| programmed.pod_mtu);
        let Some(pod_mtu) = pod_mtu.or(before) else { return };
        self.programmed.send_replace(Some(Arc::new(ProgrammedPools { snapshot, pod_mtu })));
    }

    async fn set_network(&mut self, snapshot: Arc<RoutedSnapshot>) -> Result<(), Failure> {
        let start = Instant::now();
        self.current = Some(Arc::clone(&snapshot));
        let RoutedSnapshot { name, own, underlay, state, .. } = (*snapshot).clone();
        let peers = state.nodes.iter().map(|(name, node)| peer(name, node));
        self.hub.set_peers(peers.collect());
        let network = match RoutedNetwork::new(name, own, underlay, state) {
            Ok(network) => network,
            Err(error) => {
                self.hub.set_problem(ConditionKind::Config, error.to_string());
                return Ok(());
            }
        };
        self.hub.clear_problem(ConditionKind::Config);
        let outcome = self.routes(|reconciler| reconciler.set_routed_network(network)).await?;
        self.hub.record_comparison(start.elapsed(), outcome.changes.len());
        self.handle_outcome(&outcome, false);
        let pod_mtu = outcome.pod_mtu.unwrap_or(snapshot.underlay.mtu);
        self.publish(Some(pod_mtu));
        // The path to the same address may be another one.
        self.paths.update(None).await?;
        self.paths.send(Command::CheckAll);
        Ok(())
    }

    async fn update(&mut self, updates: Vec<PeerUpdate>) -> Result<(), Failure> {
        if updates.is_empty() {
            return Ok(());
        }
        let outcome = self.routes(|reconciler| reconciler.set_peers(updates)).await?;
        self.handle_outcome(&outcome, false);
        Ok(())
    }

    /// Returns whether the node's addresses have changed.
    fn remember_node(&mut self, name: &str, node: Option<&RoutedNode>) -> bool {
        match node {
            Some(node) => self.hub.set_peer(peer(name, node)),
            None => self.hub.remove_peer(name),
        }
        let Some(current) = &mut self.current else { return false };
        let nodes = &mut Arc::make_mut(current).state.nodes;
        let before = match node {
            Some(node) => nodes.insert(name.to_owned(), node.clone()),
            None => nodes.remove(name),
        };
        before.map(|node| node.addresses) != node.map(|node| node.addresses)
    }

    /// Returns the node that had the block or the address before.
    fn remember_route(&mut self, dst: IpNet, node: Option<&String>) -> Option<String> {
        let routes = &mut Arc::make_mut(self.current.as_mut()?).state.routes;
        match node {
            Some(node) => routes.insert(dst, node.clone()),
            None => routes.remove(&dst),
        }
    }

    async fn handle_path_result(&mut self, result: &PathResult) -> Result<(), Failure> {
        if let Some(update) = self.paths.report(result) {
            let outcome = self.routes(|reconciler| reconciler.set_peers(vec![update])).await?;
            self.paths.report_outcome(result, &outcome);
            self.handle_outcome(&outcome, false);
        }
        Ok(())
    }

    async fn routes<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Reconciler) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        self.routes.run(command).await.map_err(|error| error.to_string())
    }

    async fn handle_report(&mut self, report: Report) -> Result<(), Failure> {
        let (outcome, is_repair) = match report {
            Report::Repaired(outcome) => (outcome, true),
            Report::Retried(outcome) => (outcome, false),
            other => {
                self.note(other);
                return Ok(());
            }
        };
        self.handle_outcome(&outcome, is_repair);
        // A device may be new, or a path may be another one.
        self.paths.update(None).await
    }

    fn note(&self, report: Report) {
        match report {
            Report::Compared { took, changes } => self.hub.record_comparison(took, changes),
            Report::EventsLost(error) => {
                let text = format!("no events of changes in the kernel: {error}");
                self.hub.set_problem(ConditionKind::Watch, text);
            }
            Report::Restarted => self.hub.clear_problem(ConditionKind::Watch),
            Report::Repaired(_)
            | Report::Retried(_)
            | Report::UnderlayChanged
            | Report::ForwardingChanged => {}
        }
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
        let rejected = outcome.rejected.iter().map(|one| RejectedPeerStatus {
            peer: one.peer.clone(),
            subnet: one.subnet,
            reason: one.reason.to_string(),
        });
        let fresh = self.hub.set_rejected(rejected.collect());
        let is_incomplete = |one: &RejectedPeerStatus| {
            let is_same =
                |other: &&RejectedPeer| (&other.peer, other.subnet) == (&one.peer, one.subnet);
            outcome.rejected.iter().find(is_same).is_some_and(|one| one.reason.is_incomplete())
        };
        for RejectedPeerStatus { peer, subnet, reason } in
            fresh.iter().filter(|one| !is_incomplete(one))
        {
            let subnet = subnet.map(|subnet| subnet.to_string());
            tracing::warn!(peer, subnet, reason, "peer rejected");
        }
    }
}

/// A node as the status shows it.
fn peer(name: &str, node: &RoutedNode) -> PeerStatus {
    PeerStatus {
        name: name.to_owned(),
        subnets: Vec::new(),
        public: node.addresses.iter().collect(),
        backend: "routed".to_owned(),
        route: RouteMode::None,
        path: PathStatus::default(),
    }
}
