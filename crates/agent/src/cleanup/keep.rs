// SPDX-License-Identifier: Apache-2.0
//! A node that goes back to flanneld: the network stays, in the form that flanneld knows.

use std::collections::HashMap;

use kernel::nexthop::{self, Nexthop, NexthopFilter};
use kernel::route::{self, PROTOCOL_BOOT, Route, RouteFilter, TABLE_MAIN};
use kernel::{Netlink, Request, link};
use overlay::ownership::{Ownership, PROTOCOL};

use super::Cleaner;
use crate::dataplane::routes::complete;
use crate::run;

/// In an order in which traffic goes on: the kernel removes the routes of a next hop with it.
struct Step {
    what: String,
    request: Request,
}

impl Cleaner<'_> {
    /// Devices lose our mark, and routes our number and the next hop objects: the kernel does not let flanneld remove
    /// a route through one by its gateway, which is all that flanneld knows.
    pub(super) fn leave_network(&mut self) -> Result<(), run::Error> {
        let nl = Netlink::open()?;
        for Step { what, request } in steps(&nl, &self.settings.mark)? {
            let done = if self.settings.dry_run { Ok(()) } else { nl.apply([request]) };
            match done {
                Ok(()) => self.done(what),
                Err(error) => {
                    self.cleaned.failed.push(format!("{what}: {error}"));
                    break;
                }
            }
        }
        Ok(())
    }
}

fn steps(nl: &Netlink, mark: &str) -> kernel::Result<Vec<Step>> {
    let mut steps = Vec::new();
    for link in link::list(nl)?.iter().filter(|link| link.alias.as_deref() == Some(mark)) {
        let what = format!("leave device {} to flanneld", link.name);
        steps.push(Step { what, request: link::set_alias(link.index, "") });
    }
    let scope = Ownership::for_cleanup(mark, Vec::new());
    let is_ours = |id: &u32| scope.nexthops.as_ref().is_some_and(|range| range.contains(id));
    let nexthops = match nexthop::list(nl, NexthopFilter::default()) {
        Err(error) if error.is_unsupported() => return Ok(steps),
        listed => listed?,
    };
    let ours: HashMap<u32, &Nexthop> =
        nexthops.iter().map(|one| (one.id, one)).filter(|(id, _)| is_ours(id)).collect();
    let filter =
        RouteFilter { table: Some(TABLE_MAIN), protocol: Some(PROTOCOL), ..RouteFilter::default() };
    for mut route in route::list(nl, filter)? {
        if !route.nexthop.is_some_and(|id| ours.contains_key(&id)) {
            continue;
        }
        complete(&mut route, &ours);
        let what = format!("leave route {} to flanneld", route.dst);
        let flannels = Route { protocol: PROTOCOL_BOOT, nexthop: None, ..route };
        steps.push(Step { what, request: route::replace(&flannels) });
    }
    let mut ids: Vec<u32> = ours.into_keys().collect();
    ids.sort_unstable();
    steps.extend(
        ids.into_iter()
            .map(|id| Step { what: format!("remove nexthop {id}"), request: nexthop::remove(id) }),
    );
    Ok(steps)
}
