// SPDX-License-Identifier: Apache-2.0
//! Waits for routes that the kernel adds itself, by event and not by polling.

use std::time::Instant;

use ::netlink::{Monitor, Protocol, Received};

use super::{Route, RouteFilter, list};
use crate::error::{Error, Result};
use crate::request::Netlink;

const RTNLGRP_IPV4_ROUTE: u32 = 7; // linux/rtnetlink.h
const RTNLGRP_IPV6_ROUTE: u32 = 11; // linux/rtnetlink.h

/// Subscribes to changes of routes in the calling thread's namespace.
pub fn monitor() -> Result<Monitor> {
    let monitor = Monitor::open(Protocol::Route, &[RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE]);
    monitor.map_err(|cause| Error::new("subscribe to routes", "", cause))
}

/// Waits until `condition` is true for the routes that match the filter. Returns `false` if the
/// deadline passes first. The monitor must belong to the same namespace as the socket.
pub fn wait_until(
    nl: &Netlink,
    monitor: &mut Monitor,
    filter: RouteFilter,
    deadline: Instant,
    mut condition: impl FnMut(&[Route]) -> bool,
) -> Result<bool> {
    loop {
        if condition(&list(nl, filter)?) {
            return Ok(true);
        }
        match monitor.receive(deadline, |_, _| {}) {
            Ok(Received::Events | Received::Overrun) => {}
            Ok(Received::Deadline) => return Ok(false),
            Err(cause) => return Err(Error::new("wait for routes", "", cause)),
        }
    }
}
