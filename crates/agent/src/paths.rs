// SPDX-License-Identifier: Apache-2.0
//! The paths to peers, for both modes: tells the path check what to probe, and applies what it finds.

use std::collections::HashSet;
use std::sync::Arc;

use ipnet::IpNet;
use kernel::{Family, IfName};
use overlay::desired::DesiredRoute;
use overlay::plan::{AnyNetwork, Network};
use overlay::routed::RoutedNetwork;
use tokio::sync::mpsc::UnboundedSender;

use crate::dataplane::routes::{Outcome, PeerUpdate, Reconciler, RoutesDataplane};
use crate::path_check::{Checksum, Command, PathResult, Target, routed_targets, targets};
use crate::status::{PathStatus, RepairKind, RouteMode, StatusHub, Time};
use crate::supervisor::Failure;

/// The paths to all peers.
#[derive(Debug)]
pub(crate) struct Paths {
    hub: StatusHub,
    routes: Arc<RoutesDataplane>,
    /// `None` if paths are not checked.
    commands: Option<UnboundedSender<Command>>,
}

impl Paths {
    pub(crate) fn new(
        hub: &StatusHub,
        routes: &Arc<RoutesDataplane>,
        commands: Option<UnboundedSender<Command>>,
    ) -> Paths {
        Paths { hub: hub.clone(), routes: Arc::clone(routes), commands }
    }

    /// Looks up the paths to these peers, or to all, and passes them to the status and the path check.
    pub(crate) async fn update(&self, names: Option<Vec<String>>) -> Result<(), Failure> {
        let is_all = names.is_none();
        let found = self.run(move |reconciler| {
            reconciler.any_network().map(|network| paths(network, names)).unwrap_or_default()
        });
        let found = found.await?;
        if is_all {
            let checked = found.iter().filter(|path| !path.targets.is_empty());
            self.send(Command::Retain(checked.map(|path| path.name.clone()).collect()));
        }
        for PeerPath { name, route, targets } in found {
            self.hub.set_route(&name, route, targets.iter().map(|target| target.subnet));
            if targets.is_empty() && !is_all {
                self.send(Command::Forget(name));
            }
            for target in targets {
                self.send(Command::Watch(target));
            }
        }
        Ok(())
    }

    /// Sends a command to the path check.
    pub(crate) fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // The receiver is gone only while the agent shuts down.
            let _ = commands.send(command);
        }
    }

    /// Reports a result. Returns the update that sets the MTU of the routes to the peer, if the peer answers.
    pub(crate) fn report(&self, result: &PathResult) -> Option<PeerUpdate> {
        self.hub.set_path(&result.peer, result.subnet, shown(result));
        if result.checksum == Checksum::Repaired {
            let text = format!("checksums to {} are no longer left to the device", result.peer);
            self.hub.record_repair(RepairKind::Path, text);
        }
        let (name, subnet, mtu) = (result.peer.clone(), result.subnet, result.route_mtu());
        result.reachable.then_some(PeerUpdate::PathMtu { name, subnet, mtu })
    }

    /// Reports the outcome of the update that [`report`](Self::report) returned.
    pub(crate) fn report_outcome(&self, result: &PathResult, outcome: &Outcome) {
        if !outcome.changes.is_empty() {
            self.hub.record_repair(RepairKind::Path, narrowed(result.subnet, result.route_mtu()));
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Reconciler) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        self.routes.run(command).await.map_err(|error| error.to_string())
    }
}

/// How packets reach a peer, and what the path check has to probe.
#[derive(Debug)]
struct PeerPath {
    name: String,
    route: RouteMode,
    targets: Vec<Target>,
}

/// Returns the paths to these peers, or to all. Peers that have left are ignored.
fn paths(network: &AnyNetwork, names: Option<Vec<String>>) -> Vec<PeerPath> {
    match network {
        AnyNetwork::Subnets(network) => {
            let names = names.unwrap_or_else(|| network.peers().keys().cloned().collect());
            let rejected = Rejected::of(network);
            names.into_iter().filter_map(|name| path(network, &rejected, name)).collect()
        }
        AnyNetwork::Routed(network) => {
            let names = names.unwrap_or_else(|| network.nodes().keys().cloned().collect());
            names.into_iter().map(|name| routed_path(network, name)).collect()
        }
    }
}

fn routed_path(network: &RoutedNetwork, name: String) -> PeerPath {
    let paths = || Family::ALL.into_iter().filter_map(|family| network.path(&name, family));
    let route = match paths().map(|path| path.tunnel.is_none()).max() {
        Some(true) => RouteMode::Direct,
        Some(false) => RouteMode::Tunnel,
        None => RouteMode::None,
    };
    let targets = routed_targets(network, &name);
    PeerPath { name, route, targets }
}

/// Describes the change of a route to a path with a smaller MTU.
fn narrowed(subnet: IpNet, mtu: Option<u32>) -> String {
    match mtu {
        Some(mtu) => format!("the route to {subnet} has MTU {mtu}, as its path carries no more"),
        None => format!("the route to {subnet} has no MTU of its own, as its path carries all"),
    }
}

/// Peers and subnets that are not served.
struct Rejected<'a>(HashSet<(&'a str, Option<IpNet>)>);

impl Rejected<'_> {
    fn of(network: &Network) -> Rejected<'_> {
        let rejected = network.plan().rejected.iter();
        Rejected(rejected.map(|one| (one.peer.as_str(), one.subnet)).collect())
    }

    fn has(&self, peer: &str, subnet: IpNet) -> bool {
        self.0.contains(&(peer, None)) || self.0.contains(&(peer, Some(subnet)))
    }
}

fn path(network: &Network, rejected: &Rejected<'_>, name: String) -> Option<PeerPath> {
    let lease = network.served_lease(&name)?;
    let plan = network.plan();
    let routes = lease.subnets.iter().filter_map(|subnet| plan.desired.routes.get(&subnet));
    let is_direct = |device: IfName| !plan.desired.devices.contains_key(&device);
    let route = match routes.filter_map(DesiredRoute::device).map(is_direct).max() {
        Some(true) => RouteMode::Direct,
        Some(false) => RouteMode::Tunnel,
        // The peer has no route of its own: one route serves the whole network, or none exists.
        None if plan.desired.devices.is_empty() => RouteMode::None,
        None => RouteMode::Tunnel,
    };
    let mtu = network.underlay().mtu;
    let mut targets = targets(plan, mtu, &name, lease);
    // Packets to a rejected subnet go to another peer, or nowhere.
    targets.retain(|target| !rejected.has(&name, target.subnet));
    Some(PeerPath { name, route, targets })
}

/// The result of a path check as the status shows it.
fn shown(result: &PathResult) -> PathStatus {
    let problem = match result {
        PathResult { reachable: false, .. } => Some("it does not answer".to_owned()),
        PathResult { checksum: Checksum::Wrong, .. } => {
            Some("checksums arrive wrong: TCP and UDP do not get through".to_owned())
        }
        _ => result
            .route_mtu()
            .map(|mtu| format!("its path carries {mtu} bytes, and pods send {}", result.full)),
    };
    let last_contact = result.reachable.then_some(Time(result.at));
    PathStatus { path_mtu: result.path_mtu, last_contact, problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_mtu_repair_is_described() {
        let subnet = "10.5.2.0/24".parse().unwrap();
        let wanted = "the route to 10.5.2.0/24 has MTU 1350, as its path carries no more";
        assert_eq!(narrowed(subnet, Some(1350)), wanted);
        assert!(narrowed(subnet, None).contains("no MTU of its own"));
    }
}
