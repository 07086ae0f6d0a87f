// SPDX-License-Identifier: Apache-2.0
//! Waiting for a link to become what is wanted: by event, never by sleeping.

use std::time::Instant;

use ::netlink::{Monitor, Protocol, Received};

use super::Link;
use super::read::{by_index, index_in};
use crate::error::{Error, Result};
use crate::request::Netlink;
use crate::types::IfIndex;

const RTNLGRP_LINK: u32 = 1; // linux/rtnetlink.h

/// Listens to changes of links in the calling thread's namespace.
pub fn monitor() -> Result<Monitor> {
    let monitor = Monitor::open(Protocol::Route, &[RTNLGRP_LINK]);
    monitor.map_err(|cause| Error::new("listen to links", "", cause))
}

/// Waits until `wanted` holds for the link (`None`: it does not exist); `false` if it does not
/// by the deadline. The monitor must be of the same namespace as the socket.
pub fn wait_until(
    nl: &Netlink,
    monitor: &mut Monitor,
    index: IfIndex,
    deadline: Instant,
    mut wanted: impl FnMut(Option<&Link>) -> bool,
) -> Result<bool> {
    loop {
        if wanted(by_index(nl, index)?.as_ref()) {
            return Ok(true);
        }
        let mut touched = false;
        while !touched {
            let received = monitor.receive(deadline, |_, payload| {
                touched |= index_in(payload) == Some(index);
            });
            match received {
                Ok(Received::Events) => {}
                Ok(Received::Overrun) => touched = true,
                Ok(Received::Deadline) => return Ok(false),
                Err(cause) => return Err(Error::new("wait for link", index.to_string(), cause)),
            }
        }
    }
}
