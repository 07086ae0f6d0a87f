// SPDX-License-Identifier: Apache-2.0
//! Waits for IPv6 duplicate address detection (DAD), by event and not by polling.

use std::net::IpAddr;
use std::time::Instant;

use ::netlink::{Monitor, Protocol, Received};

use super::{IFA_F_DADFAILED, IFA_F_TENTATIVE, list};
use crate::error::{Error, Result};
use crate::request::Netlink;
use crate::types::IfIndex;

const RTNLGRP_IPV6_IFADDR: u32 = 9; // linux/rtnetlink.h

/// Result of duplicate address detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DadResult {
    /// No address of the link is tentative any more.
    Done,
    /// Another host has this address.
    Duplicate(IpAddr),
    /// The deadline passed first.
    Timeout,
}

/// Subscribes to changes of IPv6 addresses in the calling thread's namespace.
pub fn monitor() -> Result<Monitor> {
    let monitor = Monitor::open(Protocol::Route, &[RTNLGRP_IPV6_IFADDR]);
    monitor.map_err(|cause| Error::new("subscribe to addresses", "", cause))
}

/// Waits until no address of the link is tentative. The monitor must belong to the same namespace
/// as the socket and must have been opened before the last change of the addresses.
pub fn wait_for_dad(
    nl: &Netlink,
    monitor: &mut Monitor,
    index: IfIndex,
    deadline: Instant,
) -> Result<DadResult> {
    loop {
        let addresses = list(nl, Some(index))?;
        if let Some(duplicate) = addresses.iter().find(|addr| addr.flags & IFA_F_DADFAILED != 0) {
            return Ok(DadResult::Duplicate(duplicate.prefix.addr()));
        }
        if addresses.iter().all(|addr| addr.flags & IFA_F_TENTATIVE == 0) {
            return Ok(DadResult::Done);
        }
        match monitor.receive(deadline, |_, _| {}) {
            Ok(Received::Events | Received::Overrun) => {}
            Ok(Received::Deadline) => return Ok(DadResult::Timeout),
            Err(cause) => return Err(Error::new("wait for addresses", index.to_string(), cause)),
        }
    }
}
