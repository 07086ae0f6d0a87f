// SPDX-License-Identifier: Apache-2.0
//! The paths to peers: which one packets take, and what the path check found. Pure.

use std::collections::HashSet;

use ipnet::IpNet;
use kernel::IfName;
use overlay::desired::DesiredRoute;
use overlay::plan::Network;

use crate::path_check::{Checksum, PathResult, Target, targets};
use crate::status::{PathStatus, RouteMode, Time};

/// How packets reach a peer, and what the path check has to probe.
#[derive(Debug)]
pub(super) struct PeerPath {
    pub name: String,
    pub route: RouteMode,
    pub targets: Vec<Target>,
}

/// Returns the paths to these peers, or to all. Peers that have left are ignored.
pub(super) fn paths(network: &Network, names: Option<Vec<String>>) -> Vec<PeerPath> {
    let all = || network.peers().keys().cloned().collect();
    let rejected = Rejected::of(network);
    names
        .unwrap_or_else(all)
        .into_iter()
        .filter_map(|name| path(network, &rejected, name))
        .collect()
}

/// Describes the change of a route to a path with a smaller MTU.
pub(super) fn narrowed(subnet: IpNet, mtu: Option<u32>) -> String {
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
pub(super) fn shown(result: &PathResult) -> PathStatus {
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
