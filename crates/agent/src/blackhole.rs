// SPDX-License-Identifier: Apache-2.0
//! Routes that drop what goes to addresses of this node's subnets that no pod has, where nothing else has a
//! route for the subnet: without them such packets leave by the default route, and may come back.
//!
//! They have the worst metric, so that the route of a bridge always wins; flannel's have the best one, and
//! cut the bridge off where they were made before it.

use std::fmt;

use ipnet::IpNet;
use kernel::Netlink;
use kernel::route::{self, KIND_BLACKHOLE, PROTOCOL_BOOT, Route, RouteFilter, TABLE_MAIN};
use overlay::desired::default_metric;
use overlay::ownership::PROTOCOL;

/// The worst there is.
pub const METRIC: u32 = u32::MAX;

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    Add(IpNet),
    Remove(Route),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(subnet) => write!(f, "add blackhole {subnet}"),
            Self::Remove(route) => write!(f, "remove blackhole {}", route.dst),
        }
    }
}

/// Makes blackholes for these subnets, and removes all others of ours within the networks; with
/// `takes_over` also flannel's. Tells what was changed.
pub fn settle(
    nl: &Netlink,
    networks: &[IpNet],
    subnets: &[IpNet],
    takes_over: bool,
) -> kernel::Result<Vec<String>> {
    let mut told = Vec::new();
    for change in found_difference(nl, networks, subnets, takes_over)? {
        let request = match &change {
            Change::Add(subnet) => route::add(&ours(*subnet)),
            Change::Remove(route) => route::remove(route),
        };
        match (nl.apply([request]), &change) {
            (Err(error), Change::Add(_)) if error.already_exists() => {}
            (Err(error), Change::Remove(_)) if error.is_not_found() => {}
            (done, _) => done.map(|()| told.push(change.to_string()))?,
        }
    }
    Ok(told)
}

/// What [`settle`] would change.
pub fn preview(
    nl: &Netlink,
    networks: &[IpNet],
    subnets: &[IpNet],
    takes_over: bool,
) -> kernel::Result<Vec<String>> {
    let changes = found_difference(nl, networks, subnets, takes_over)?;
    Ok(changes.iter().map(ToString::to_string).collect())
}

/// Those that an agent has made, whichever that was: nothing else tells.
pub fn of_agents(nl: &Netlink) -> kernel::Result<Vec<IpNet>> {
    let found = found(nl)?;
    Ok(found.iter().filter(|route| is_ours(route)).map(|route| route.dst).collect())
}

fn found(nl: &Netlink) -> kernel::Result<Vec<Route>> {
    let filter = RouteFilter {
        table: Some(TABLE_MAIN),
        kind: Some(KIND_BLACKHOLE),
        ..RouteFilter::default()
    };
    route::list(nl, filter)
}

fn found_difference(
    nl: &Netlink,
    networks: &[IpNet],
    subnets: &[IpNet],
    takes_over: bool,
) -> kernel::Result<Vec<Change>> {
    Ok(difference(&found(nl)?, networks, subnets, takes_over))
}

/// Whether a route is one of these, and a change of it a reason to call [`settle`].
pub fn is_ours(route: &Route) -> bool {
    route.kind == KIND_BLACKHOLE && route.protocol == PROTOCOL && route.table == TABLE_MAIN
}

fn ours(subnet: IpNet) -> Route {
    Route {
        kind: KIND_BLACKHOLE,
        protocol: PROTOCOL,
        priority: Some(METRIC),
        ..Route::new(subnet.trunc())
    }
}

fn difference(
    found: &[Route],
    networks: &[IpNet],
    subnets: &[IpNet],
    takes_over: bool,
) -> Vec<Change> {
    let is_within = |route: &Route| networks.iter().any(|network| network.contains(&route.dst));
    let is_right = |route: &Route| route.priority == Some(METRIC);
    let is_wanted =
        |route: &Route| is_right(route) && subnets.iter().any(|one| one.trunc() == route.dst);
    let is_stale = |route: &&Route| {
        let is_flannels = takes_over && is_flannels(route);
        is_within(route) && (is_flannels || (is_ours(route) && !is_wanted(route)))
    };
    let is_there = |subnet: &IpNet| {
        found.iter().any(|route| is_ours(route) && is_right(route) && route.dst == subnet.trunc())
    };
    let missing = subnets.iter().filter(|subnet| !is_there(subnet));
    let stale = found.iter().filter(is_stale);
    missing.copied().map(Change::Add).chain(stale.cloned().map(Change::Remove)).collect()
}

/// flannel says nothing about who made it, and nobody else has business in the network.
fn is_flannels(route: &Route) -> bool {
    route.kind == KIND_BLACKHOLE
        && route.protocol == PROTOCOL_BOOT
        && route.priority.unwrap_or(0) == default_metric(route.dst)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn flannels(text: &str) -> Route {
        let kind = KIND_BLACKHOLE;
        Route { kind, protocol: PROTOCOL_BOOT, ..Route::new(net(text)) }
    }

    #[test]
    fn stale_ones_of_the_network_go() {
        let networks = [net("10.5.0.0/16")];
        let subnets = [net("10.5.1.0/24")];
        let found = [
            ours(net("10.5.1.0/24")),
            ours(net("10.5.9.0/24")),
            ours(net("10.77.1.0/24")),
            flannels("10.5.1.0/24"),
            flannels("10.77.1.0/24"),
        ];
        let stale = Change::Remove(found[1].clone());
        assert_eq!(difference(&found, &networks, &subnets, false), std::slice::from_ref(&stale));
        let theirs = Change::Remove(found[3].clone());
        assert_eq!(difference(&found, &networks, &subnets, true), [stale, theirs]);
        assert_eq!(difference(&found[3..], &networks, &subnets, false), [Change::Add(subnets[0])]);
        assert_eq!(difference(&found[..1], &networks, &[], false).len(), 1);
    }
}
