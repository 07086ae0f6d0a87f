// SPDX-License-Identifier: Apache-2.0
//! Waiting for IPv6 duplicate address detection: by event, never by sleeping.

use std::net::IpAddr;
use std::time::Instant;

use ::netlink::{Monitor, Protocol, Received};

use super::{IFA_F_DADFAILED, IFA_F_TENTATIVE, list};
use crate::error::{Error, Result};
use crate::request::Netlink;
use crate::types::IfIndex;

const RTNLGRP_IPV6_IFADDR: u32 = 9; // linux/rtnetlink.h

/// How duplicate detection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Every address is in use.
    Yes,
    /// Somebody else holds this one.
    Duplicate(IpAddr),
    /// The deadline came first.
    NotInTime,
}

/// Listens to changes of IPv6 addresses in the calling thread's namespace.
pub fn monitor() -> Result<Monitor> {
    let monitor = Monitor::open(Protocol::Route, &[RTNLGRP_IPV6_IFADDR]);
    monitor.map_err(|cause| Error::new("listen to addresses", "", cause))
}

/// Waits until no address of the link is tentative. The monitor must be of the same namespace as
/// the socket and older than the addresses' last change.
pub fn wait_until_settled(
    nl: &Netlink,
    monitor: &mut Monitor,
    index: IfIndex,
    deadline: Instant,
) -> Result<Settled> {
    loop {
        let found = list(nl, Some(index))?;
        if let Some(duplicate) = found.iter().find(|addr| addr.flags & IFA_F_DADFAILED != 0) {
            return Ok(Settled::Duplicate(duplicate.prefix.addr()));
        }
        if found.iter().all(|addr| addr.flags & IFA_F_TENTATIVE == 0) {
            return Ok(Settled::Yes);
        }
        match monitor.receive(deadline, |_, _| {}) {
            Ok(Received::Events | Received::Overrun) => {}
            Ok(Received::Deadline) => return Ok(Settled::NotInTime),
            Err(cause) => return Err(Error::new("wait for addresses", index.to_string(), cause)),
        }
    }
}
