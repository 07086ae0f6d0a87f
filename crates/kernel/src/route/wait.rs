// SPDX-License-Identifier: Apache-2.0
//! Waiting for routes that the kernel makes by itself: by event, never by sleeping.

use std::time::Instant;

use ::netlink::{Monitor, Protocol, Received};

use super::{Route, RouteFilter, list};
use crate::error::{Error, Result};
use crate::request::Netlink;

const RTNLGRP_IPV4_ROUTE: u32 = 7; // linux/rtnetlink.h
const RTNLGRP_IPV6_ROUTE: u32 = 11; // linux/rtnetlink.h

/// Listens to changes of routes in the calling thread's namespace.
pub fn monitor() -> Result<Monitor> {
    let monitor = Monitor::open(Protocol::Route, &[RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE]);
    monitor.map_err(|cause| Error::new("listen to routes", "", cause))
}

/// Waits until `wanted` holds for the routes that the filter lets through; `false` if it does not
/// by the deadline. The monitor must be of the same namespace as the socket.
pub fn wait_until(
    nl: &Netlink,
    monitor: &mut Monitor,
    filter: RouteFilter,
    deadline: Instant,
    mut wanted: impl FnMut(&[Route]) -> bool,
) -> Result<bool> {
    loop {
        if wanted(&list(nl, filter)?) {
            return Ok(true);
        }
        match monitor.receive(deadline, |_, _| {}) {
            Ok(Received::Events | Received::Overrun) => {}
            Ok(Received::Deadline) => return Ok(false),
            Err(cause) => return Err(Error::new("wait for routes", "", cause)),
        }
    }
}
