// SPDX-License-Identifier: Apache-2.0
//! The ways to peers: which one packets take, and what checking it shows.

use std::collections::HashSet;

use ipnet::IpNet;
use kernel::IfName;
use overlay::desired::DesiredRoute;
use overlay::plan::Network;

use super::{End, Session};
use crate::dataplane::routes::PeerUpdate;
use crate::path_check::{Checksum, Command, PathResult, Target, targets};
use crate::run::Worker;
use crate::status::{ConditionKind, Path, RepairKind, Time, Way};

impl Worker {
    /// Looks up the ways to these peers, or to all, shows them and has them checked.
    pub(super) async fn look_at_ways(&self, names: Option<Vec<String>>) -> Result<(), End> {
        let is_all = names.is_none();
        let found = self.kernel.run(move |reconciler| {
            let Some(network) = reconciler.network() else { return Vec::new() };
            let all = || network.peers().keys().cloned().collect();
            let names = names.unwrap_or_else(all);
            let refused = Refused::of(network);
            names.into_iter().filter_map(|name| way(network, &refused, name)).collect()
        });
        let found = found.await;
        let found =
            found.map_err(|error| End::wait(ConditionKind::Kernel, error.to_string(), None))?;
        if is_all {
            let checked = found.iter().filter(|(.., targets)| !targets.is_empty());
            self.check_path(Command::Retain(checked.map(|(name, ..)| name.clone()).collect()));
        }
        for (name, way, targets) in found {
            self.hub.set_way(&name, way);
            if targets.is_empty() && !is_all {
                self.check_path(Command::Forget(name));
            }
            for target in targets {
                self.check_path(Command::Watch(target));
            }
        }
        Ok(())
    }

    /// Where paths are not checked nobody listens.
    pub(super) fn check_path(&self, command: Command) {
        if let Some(paths) = &self.paths {
            let _ = paths.send(command);
        }
    }

    /// What a check has shown. A path that carries less than pods send is told to the kernel, and it to
    /// them.
    pub(super) async fn take_verdict(
        &mut self,
        session: &mut Session,
        verdict: PathResult,
    ) -> Result<(), End> {
        self.hub.set_path(&verdict.peer, shown(&verdict));
        if verdict.checksum == Checksum::Repaired {
            let text = format!("checksums to {} are no longer left to the device", verdict.peer);
            self.hub.repaired(RepairKind::Path, text);
        }
        if !verdict.reachable {
            return Ok(());
        }
        let (name, subnet, mtu) = (verdict.peer.clone(), verdict.subnet, verdict.route_mtu());
        let update = PeerUpdate::Narrow { name, subnet, mtu };
        let outcome = self.kernel(|reconciler| reconciler.set_peers(vec![update])).await?;
        if !outcome.changes.is_empty() {
            self.hub.repaired(RepairKind::Path, narrowed(subnet, mtu));
        }
        self.post(session, &outcome, false).await;
        Ok(())
    }
}

/// What was done for a path that carries less than pods send, or does so no longer.
fn narrowed(subnet: IpNet, mtu: Option<u32>) -> String {
    match mtu {
        Some(mtu) => format!("the route to {subnet} has MTU {mtu}, as its path carries no more"),
        None => format!("the route to {subnet} has no MTU of its own, as its path carries all"),
    }
}

/// What of peers is not served.
struct Refused<'a>(HashSet<(&'a str, Option<IpNet>)>);

impl Refused<'_> {
    fn of(network: &Network) -> Refused<'_> {
        let refused = network.plan().rejected.iter();
        Refused(refused.map(|one| (one.peer.as_str(), one.subnet)).collect())
    }

    fn has(&self, peer: &str, subnet: IpNet) -> bool {
        self.0.contains(&(peer, None)) || self.0.contains(&(peer, Some(subnet)))
    }
}

/// None for a peer that has gone.
fn way(
    network: &Network,
    refused: &Refused<'_>,
    name: String,
) -> Option<(String, Way, Vec<Target>)> {
    let lease = network.served_lease(&name)?;
    let plan = network.plan();
    let routes = lease.subnets.iter().filter_map(|subnet| plan.desired.routes.get(&subnet));
    let is_direct = |device: IfName| !plan.desired.devices.contains_key(&device);
    let way = match routes.filter_map(DesiredRoute::device).map(is_direct).max() {
        Some(true) => Way::Direct,
        Some(false) => Way::Tunnel,
        // One route for the whole network, or none at all.
        None if plan.desired.devices.is_empty() => Way::None,
        None => Way::Tunnel,
    };
    let mtu = network.underlay().mtu;
    let mut targets = targets(plan, mtu, &name, lease);
    // Where another's packets go, or nobody's.
    targets.retain(|target| !refused.has(&name, target.subnet));
    Some((name, way, targets))
}

fn shown(verdict: &PathResult) -> Path {
    let problem = match verdict {
        PathResult { reachable: false, .. } => Some("it does not answer".to_owned()),
        PathResult { checksum: Checksum::Wrong, .. } => {
            Some("checksums arrive wrong: TCP and UDP do not get through".to_owned())
        }
        _ => verdict
            .route_mtu()
            .map(|mtu| format!("its path carries {mtu} bytes, and pods send {}", verdict.full)),
    };
    let last_contact = verdict.reachable.then_some(Time(verdict.at));
    Path { path_mtu: verdict.path_mtu, last_contact, problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_are_told_in_words() {
        let subnet = "10.5.2.0/24".parse().unwrap();
        let wanted = "the route to 10.5.2.0/24 has MTU 1350, as its path carries no more";
        assert_eq!(narrowed(subnet, Some(1350)), wanted);
        assert!(narrowed(subnet, None).contains("no MTU of its own"));
    }
}
