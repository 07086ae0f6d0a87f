// SPDX-License-Identifier: Apache-2.0
//! A lease that changed, on the container's interface. What the plugin that made the interface has
//! set up at first is replaced by what holds now.

use kernel::addr::{self, AddrOptions};
use kernel::route::{self, Route};
use kernel::{IfIndex, Request};

use super::super::lease::Terms;
use super::spot::Spot;
use crate::attach::interface;

/// Brings the interface from one lease, or none, to another, or none. Returns what went wrong.
pub fn change(
    spot: &Spot,
    before: Option<&Terms>,
    after: Option<&Terms>,
    priority: u32,
) -> Vec<kernel::Error> {
    let Some((_, nl)) = spot.enter() else { return Vec::new() };
    let (removals, additions) = plan(spot.index(), before, after, priority);
    let removed = nl.apply_each(removals).into_iter().filter_map(Result::err);
    let mut problems: Vec<kernel::Error> = removed.filter(|error| !error.is_not_found()).collect();
    problems.extend(nl.apply_each(additions).into_iter().filter_map(Result::err));
    problems
}

/// What goes, then what comes. Old routes go before their address, which would take only some of
/// them with it.
fn plan(
    index: IfIndex,
    before: Option<&Terms>,
    after: Option<&Terms>,
    priority: u32,
) -> (Vec<Request>, Vec<Request>) {
    let routes = |terms: &Terms| -> Vec<Route> {
        interface::routes(index, &[terms.ip()], &terms.cni_routes(priority))
    };
    let old = before.map(routes).unwrap_or_default();
    let new = after.map(routes).unwrap_or_default();
    let mut removals: Vec<Request> =
        old.iter().filter(|route| !new.contains(route)).map(route::remove).collect();
    if let Some(before) = before
        && after.map(|after| after.address) != Some(before.address)
    {
        removals.push(addr::remove(index, before.address));
    }
    let mut additions = Vec::new();
    if let Some(after) = after {
        additions.push(addr::replace(index, after.address, AddrOptions::default()));
    }
    additions.extend(new.iter().map(route::replace));
    (removals, additions)
}
