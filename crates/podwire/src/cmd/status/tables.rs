// SPDX-License-Identifier: Apache-2.0
//! Tables of an agent's status.

use std::time::{Duration, SystemTime};

use agent::status::{NetworkStatus, PeerStatus, Status, Time};
use text::escape;

use crate::output::{self, table};

/// Maximum number of peers; `podwire peers` shows all of them.
const MAX_PEERS: usize = 10;
const MAX_REPAIRS: usize = 5;

/// All tables, the most important first.
pub(crate) fn status(status: &Status, now: SystemTime) -> String {
    let mut parts = vec![summary(status)];
    parts.extend(status.membership.network.as_ref().map(|joined| network(joined, status, now)));
    parts.push(store(status, now));
    if !status.peers.list.is_empty() {
        parts.push(first_peers(status, now));
    }
    if !status.kernel.repairs.last.is_empty() {
        parts.push(repairs(status, now));
    }
    parts.join("\n")
}

fn summary(status: &Status) -> String {
    let state = match (status.ready, status.healthy) {
        (true, true) => "ready",
        (true, false) => "ready, but the agent is not healthy",
        (false, _) => "not ready",
    };
    let mut text = format!("{}: {state}\n", escape::line(&status.agent.node));
    for reason in &status.reasons {
        text += &format!("  because {}\n", escape::line(reason));
    }
    for warning in &status.warnings {
        text += &format!("  warning: {}\n", escape::line(warning));
    }
    text
}

fn network(joined: &NetworkStatus, status: &Status, now: SystemTime) -> String {
    let lease_ends = match status.membership.lease_until {
        None => "never".to_owned(),
        Some(Time(until)) => match until.duration_since(now) {
            Ok(left) => format!("in {}", output::rough(left)),
            Err(past) => ago(now - past.duration(), now),
        },
    };
    let underlay = &joined.underlay;
    let network = table(
        ["NETWORK", "BACKEND", "SUBNETS", "POD MTU", "LEASE ENDS"],
        [[
            join(&joined.networks),
            joined.backend.clone(),
            join(&joined.lease.subnets),
            joined.pod_mtu.to_string(),
            lease_ends,
        ]],
    );
    let interface = table(
        ["INTERFACE", "ADDRESSES", "MTU", "REACHED AT"],
        [[
            underlay.name.clone(),
            join(&underlay.addresses),
            underlay.mtu.to_string(),
            join(&joined.lease.public),
        ]],
    );
    format!("{network}\n{interface}")
}

fn store(status: &Status, now: SystemTime) -> String {
    let reachable = match status.store.reachable {
        Some(true) => "yes",
        Some(false) => "no",
        None => "not reached yet",
    };
    let since = output::rough(now.duration_since(status.store.since.0).unwrap_or_default());
    let behind = status.membership.watch.map_or(String::new(), |watch| watch.behind.to_string());
    let compared = status.kernel.comparison.map_or(String::new(), |comparison| {
        let took = output::duration(Duration::from_secs_f64(comparison.seconds.max(0.0)));
        format!("{}, took {took}", ago(comparison.at.0, now))
    });
    table(
        ["STORE", "REACHABLE", "BEHIND", "COMPARED", "REPAIRS", "RUNS FOR"],
        [[
            status.store.kind.clone(),
            format!("{reachable}, for {since}"),
            behind,
            compared,
            status.kernel.repairs.counts.values().sum::<u64>().to_string(),
            output::rough(now.duration_since(status.agent.started.0).unwrap_or_default()),
        ]],
    )
}

/// Peers with a problem first.
fn first_peers(status: &Status, now: SystemTime) -> String {
    let mut shown: Vec<&PeerStatus> = status.peers.list.iter().collect();
    shown.sort_by_key(|peer| peer.path.problem.is_none());
    shown.truncate(MAX_PEERS);
    let more = status.peers.list.len() - shown.len();
    let mut text = peers(shown, now);
    if more > 0 {
        text += &format!("and {more} more: podwire peers\n");
    }
    text
}

/// One line per peer.
pub(crate) fn peers<'a>(
    peers: impl IntoIterator<Item = &'a PeerStatus>,
    now: SystemTime,
) -> String {
    table(
        ["PEER", "SUBNETS", "ADDRESS", "BACKEND", "WAY", "PATH MTU", "LAST CONTACT", "PROBLEM"],
        peers.into_iter().map(|peer| {
            [
                peer.name.clone(),
                join(&peer.subnets),
                join(&peer.public),
                peer.backend.clone(),
                peer.route.name().to_owned(),
                peer.path.path_mtu.map_or(String::new(), |mtu| mtu.to_string()),
                peer.path.last_contact.map_or(String::new(), |Time(at)| ago(at, now)),
                peer.path.problem.clone().unwrap_or_default(),
            ]
        }),
    )
}

fn repairs(status: &Status, now: SystemTime) -> String {
    let last = status.kernel.repairs.last.iter().rev().take(MAX_REPAIRS);
    table(
        ["REPAIRED", "WHEN", "WHAT"],
        last.map(|repair| {
            [repair.kind.name().to_owned(), ago(repair.at.0, now), repair.text.clone()]
        }),
    )
}

fn ago(at: SystemTime, now: SystemTime) -> String {
    // The time may be in the future if the clock was set back.
    format!("{} ago", output::rough(now.duration_since(at).unwrap_or_default()))
}

fn join(values: &[impl ToString]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
