// SPDX-License-Identifier: Apache-2.0
//! The peers as the status shows them: their leases, the paths to them, and which of them are rejected. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipnet::IpNet;

use super::model::{
    PathStatus, PeerCounts, PeerStatus, PeersStatus, RejectedPeerStatus, RouteMode,
};
use super::{MAX_LISTED, shortened};

/// All peers of this node.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: HashMap<String, Peer>,
    rejected: Vec<RejectedPeerStatus>,
}

/// A peer with a lease. The same peer may be rejected.
#[derive(Debug)]
struct Peer {
    status: PeerStatus,
    /// The subnets whose path is checked, each with the last result.
    paths: Vec<(IpNet, PathStatus)>,
}

/// The rejected peers with all rejections of each.
type Rejections<'a> = BTreeMap<&'a str, Vec<&'a RejectedPeerStatus>>;

impl Peers {
    /// Adds or replaces a peer. The paths to it are kept while its public addresses stay the same.
    pub(super) fn set(&mut self, status: PeerStatus) {
        let before = self.peers.remove(&status.name);
        self.peers.insert(status.name.clone(), Peer::new(status, before));
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.peers.remove(name);
    }

    /// Replaces all peers.
    pub(super) fn set_all(&mut self, peers: Vec<PeerStatus>) {
        let mut before = std::mem::take(&mut self.peers);
        for status in peers {
            let peer = before.remove(&status.name);
            self.peers.insert(status.name.clone(), Peer::new(status, peer));
        }
    }

    /// Sets how packets reach a peer, and for which of its subnets the path is checked. Ignores unknown peers.
    pub(super) fn set_route(
        &mut self,
        name: &str,
        route: RouteMode,
        checked: impl IntoIterator<Item = IpNet>,
    ) {
        let Some(peer) = self.peers.get_mut(name) else { return };
        peer.status.route = route;
        let before = std::mem::take(&mut peer.paths);
        let last = |subnet| before.iter().find(|(one, _)| *one == subnet);
        let with_path =
            |subnet| (subnet, last(subnet).map(|(_, path)| path.clone()).unwrap_or_default());
        peer.paths = checked.into_iter().map(with_path).collect();
        peer.status.path = summary(&peer.paths);
    }

    /// Sets the result of a path check. Ignores subnets whose path is not checked any more.
    pub(super) fn set_path(&mut self, name: &str, subnet: IpNet, path: PathStatus) {
        let Some(peer) = self.peers.get_mut(name) else { return };
        let Some((_, last)) = peer.paths.iter_mut().find(|(one, _)| *one == subnet) else { return };
        *last = path;
        peer.status.path = summary(&peer.paths);
    }

    /// Replaces all rejections. Returns those that are new.
    pub(super) fn set_rejected(
        &mut self,
        mut rejected: Vec<RejectedPeerStatus>,
    ) -> Vec<RejectedPeerStatus> {
        for one in &mut rejected {
            one.peer = shortened(std::mem::take(&mut one.peer));
            one.reason = shortened(std::mem::take(&mut one.reason));
        }
        let new = new_rejections(&self.rejected, &rejected);
        self.rejected = rejected;
        new
    }

    pub(super) fn rejected(&self) -> &[RejectedPeerStatus] {
        &self.rejected
    }

    /// Returns all peers by name, and the first of those that have no valid lease and are known only as rejected.
    pub(super) fn list(&self) -> Vec<PeerStatus> {
        let mut shown: BTreeMap<&str, PeerStatus> = self
            .peers
            .values()
            .map(|peer| (peer.status.name.as_str(), peer.status.clone()))
            .collect();
        let mut without_lease = 0;
        for (name, rejections) in self.rejections() {
            if !self.peers.contains_key(name) {
                without_lease += 1;
                if without_lease > MAX_LISTED {
                    continue;
                }
            }
            let peer = shown.entry(name).or_insert_with(|| peer_without_lease(name));
            if are_all_rejected(&peer.subnets, &rejections) {
                peer.route = RouteMode::Rejected;
            }
            let problems: Vec<String> = rejections.iter().map(|one| problem(one)).collect();
            peer.path.problem = Some(problems.join("; "));
        }
        shown.into_values().collect()
    }

    /// Returns everything except the list of peers.
    pub(super) fn summary(&self) -> PeersStatus {
        PeersStatus {
            counts: self.counts(),
            list: Vec::new(),
            rejected: self.rejected.iter().take(MAX_LISTED).cloned().collect(),
            rejected_total: self.rejected.len(),
        }
    }

    fn counts(&self) -> PeerCounts {
        let rejections = self.rejections();
        let without_lease =
            rejections.keys().filter(|name| !self.peers.contains_key(**name)).count();
        let total = self.peers.len() + without_lease;
        let mut counts = PeerCounts { total, rejected: without_lease, ..PeerCounts::default() };
        for Peer { status, .. } in self.peers.values() {
            counts.with_problem += usize::from(status.path.problem.is_some());
            let rejections = rejections.get(status.name.as_str());
            match status.route {
                _ if rejections.is_some_and(|all| are_all_rejected(&status.subnets, all)) => {
                    counts.rejected += 1;
                }
                RouteMode::Direct => counts.direct += 1,
                RouteMode::Tunnel => counts.tunnel += 1,
                RouteMode::None | RouteMode::Rejected => {}
            }
        }
        counts
    }

    fn rejections(&self) -> Rejections<'_> {
        let mut rejections = Rejections::new();
        for one in &self.rejected {
            rejections.entry(one.peer.as_str()).or_default().push(one);
        }
        rejections
    }
}

impl Peer {
    fn new(status: PeerStatus, before: Option<Peer>) -> Peer {
        let is_same = |before: &Peer| before.status.public == status.public;
        match before.filter(is_same) {
            Some(Peer { status: PeerStatus { path, .. }, paths })
                if status.path == PathStatus::default() =>
            {
                Peer { status: PeerStatus { path, ..status }, paths }
            }
            _ => Peer { status, paths: Vec::new() },
        }
    }
}

/// Combines the paths to all subnets of a peer: one broken path is a problem, even if the others work.
fn summary(paths: &[(IpNet, PathStatus)]) -> PathStatus {
    let problem = |(subnet, path): &(IpNet, PathStatus)| {
        let problem = path.problem.as_ref()?;
        Some(if paths.len() > 1 { format!("{subnet}: {problem}") } else { problem.clone() })
    };
    let problems: Vec<String> = paths.iter().filter_map(problem).collect();
    PathStatus {
        path_mtu: paths.iter().filter_map(|(_, path)| path.path_mtu).min(),
        last_contact: paths.iter().filter_map(|(_, path)| path.last_contact).max(),
        problem: Some(problems.join("; ")).filter(|text| !text.is_empty()),
    }
}

fn new_rejections(
    before: &[RejectedPeerStatus],
    now: &[RejectedPeerStatus],
) -> Vec<RejectedPeerStatus> {
    // The usual case, which needs no sorting.
    if before == now {
        return Vec::new();
    }
    let key = |one: &RejectedPeerStatus| (one.peer.clone(), one.subnet, one.reason.clone());
    let known: BTreeSet<_> = before.iter().map(key).collect();
    now.iter().filter(|one| !known.contains(&key(one))).cloned().collect()
}

fn are_all_rejected(subnets: &[IpNet], rejections: &[&RejectedPeerStatus]) -> bool {
    let is_rejected =
        |subnet: IpNet| rejections.iter().any(|one| one.subnet.is_none_or(|one| one == subnet));
    subnets.iter().all(|subnet| is_rejected(*subnet))
}

fn problem(rejected: &RejectedPeerStatus) -> String {
    match rejected.subnet {
        Some(subnet) => format!("{subnet} refused: {}", rejected.reason),
        None => format!("refused: {}", rejected.reason),
    }
}

fn peer_without_lease(name: &str) -> PeerStatus {
    PeerStatus {
        name: name.to_owned(),
        subnets: Vec::new(),
        public: Vec::new(),
        backend: String::new(),
        route: RouteMode::Rejected,
        path: PathStatus::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Time;

    fn peer(public: &str) -> PeerStatus {
        PeerStatus {
            name: "b".into(),
            subnets: ["10.244.2.0/24", "fd00:2::/64"].map(subnet).into(),
            public: vec![public.parse().unwrap()],
            backend: "vxlan".into(),
            route: RouteMode::Tunnel,
            path: PathStatus::default(),
        }
    }

    fn subnet(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn path(path_mtu: Option<u32>, problem: Option<&str>) -> PathStatus {
        let last_contact = path_mtu.is_some().then(Time::now);
        PathStatus { path_mtu, last_contact, problem: problem.map(str::to_owned) }
    }

    /// One peer with paths to these subnets.
    fn checked(subnets: &[&str]) -> Peers {
        let mut peers = Peers::default();
        peers.set(peer("192.0.2.2"));
        peers.set_route("b", RouteMode::Tunnel, subnets.iter().map(|one| subnet(one)));
        peers
    }

    fn shown(peers: &Peers) -> PathStatus {
        peers.list()[0].path.clone()
    }

    #[test]
    fn broken_path_of_one_family_is_shown_beside_others() {
        let mut peers = checked(&["10.244.2.0/24", "fd00:2::/64"]);
        peers.set_path("b", subnet("10.244.2.0/24"), path(None, Some("no answer")));
        peers.set_path("b", subnet("fd00:2::/64"), path(Some(1400), None));
        let found = shown(&peers);
        assert_eq!(found.problem.as_deref(), Some("10.244.2.0/24: no answer"));
        assert_eq!((found.path_mtu, found.last_contact.is_some()), (Some(1400), true));
        assert_eq!(peers.summary().counts.with_problem, 1);
        peers.set_path("b", subnet("10.244.2.0/24"), path(Some(1450), None));
        assert_eq!((shown(&peers).problem, shown(&peers).path_mtu), (None, Some(1400)));
    }

    #[test]
    fn problem_of_an_unchecked_path_is_dropped() {
        let mut peers = checked(&["10.244.2.0/24"]);
        peers.set_path("b", subnet("10.244.2.0/24"), path(None, Some("no answer")));
        assert_eq!(shown(&peers).problem.as_deref(), Some("no answer"));
        peers.set_route("b", RouteMode::None, []);
        assert_eq!(shown(&peers), PathStatus::default());
        peers.set_path("b", subnet("10.244.2.0/24"), path(None, Some("late result")));
        assert_eq!(shown(&peers), PathStatus::default());
    }

    #[test]
    fn paths_are_kept_while_the_public_addresses_stay() {
        let mut peers = checked(&["10.244.2.0/24"]);
        let narrow = path(Some(1400), Some("narrow"));
        peers.set_path("b", subnet("10.244.2.0/24"), narrow.clone());
        peers.set_path("unknown", subnet("10.244.2.0/24"), narrow.clone());
        peers.set(PeerStatus { backend: "ipip".into(), ..peer("192.0.2.2") });
        assert_eq!(shown(&peers), narrow);
        peers.set_all(vec![peer("192.0.2.2")]);
        assert_eq!(shown(&peers), narrow);
        peers.set(peer("192.0.2.9"));
        assert_eq!(shown(&peers), PathStatus::default());
        peers.remove("b");
        assert!(peers.list().is_empty());
    }
}
