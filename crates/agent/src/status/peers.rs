// SPDX-License-Identifier: Apache-2.0
//! Peers as they are shown: which of them are refused, and why. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::MAX_LISTED;
use super::model::{Path, Peer, PeerCounts, Refused, Way};

/// What is said against each peer.
type Charges<'a> = BTreeMap<&'a str, Vec<&'a Refused>>;

/// All of them by name, also the first of those of which nothing is known but that they are refused.
pub(super) fn shown(peers: &HashMap<String, Peer>, refused: &[Refused]) -> Vec<Peer> {
    let mut shown: BTreeMap<&str, Peer> =
        peers.values().map(|peer| (peer.name.as_str(), peer.clone())).collect();
    let mut strangers = 0;
    for (name, charges) in charges(refused) {
        strangers += usize::from(!peers.contains_key(name));
        if strangers > MAX_LISTED && !peers.contains_key(name) {
            continue;
        }
        let peer = shown.entry(name).or_insert_with(|| unknown(name));
        if is_refused(peer, &charges) {
            peer.way = Way::Refused;
        }
        let texts: Vec<String> = charges.iter().map(|one| text(one)).collect();
        peer.path.problem = Some(texts.join("; "));
    }
    shown.into_values().collect()
}

pub(super) fn counts(peers: &HashMap<String, Peer>, refused: &[Refused]) -> PeerCounts {
    let charges = charges(refused);
    let unknown = charges.keys().filter(|name| !peers.contains_key(**name)).count();
    let total = peers.len() + unknown;
    let mut counts = PeerCounts { total, refused: unknown, ..PeerCounts::default() };
    for peer in peers.values() {
        counts.with_problem += usize::from(peer.path.problem.is_some());
        let against = charges.get(peer.name.as_str());
        match peer.way {
            _ if against.is_some_and(|charges| is_refused(peer, charges)) => counts.refused += 1,
            Way::Direct => counts.direct += 1,
            Way::Tunnel => counts.tunnel += 1,
            Way::None | Way::Refused => {}
        }
    }
    counts
}

/// Those that were not said before.
pub(super) fn fresh(before: &[Refused], now: &[Refused]) -> Vec<Refused> {
    let key = |one: &Refused| (one.peer.clone(), one.subnet, one.reason.clone());
    // Most often nothing has changed.
    if before == now {
        return Vec::new();
    }
    let known: BTreeSet<_> = before.iter().map(key).collect();
    now.iter().filter(|one| !known.contains(&key(one))).cloned().collect()
}

fn charges(refused: &[Refused]) -> Charges<'_> {
    let mut charges = Charges::new();
    for one in refused {
        charges.entry(one.peer.as_str()).or_default().push(one);
    }
    charges
}

/// Whether nothing of it is served.
fn is_refused(peer: &Peer, charges: &[&Refused]) -> bool {
    let is_about = |subnet| charges.iter().any(|one| one.subnet.is_none_or(|one| one == subnet));
    peer.subnets.iter().all(|subnet| is_about(*subnet))
}

fn text(refused: &Refused) -> String {
    match refused.subnet {
        Some(subnet) => format!("{subnet} is refused: {}", refused.reason),
        None => format!("it is refused: {}", refused.reason),
    }
}

fn unknown(name: &str) -> Peer {
    Peer {
        name: name.to_owned(),
        subnets: Vec::new(),
        public: Vec::new(),
        backend: String::new(),
        way: Way::Refused,
        path: Path::default(),
    }
}
