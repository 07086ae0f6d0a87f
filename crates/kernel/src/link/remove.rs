// SPDX-License-Identifier: Apache-2.0
//! Removal of links, either waiting for the kernel or leaving the wait to a background child.
//!
//! The kernel first makes the link invisible (0.2 ms, under RTNL), then waits for one or two RCU
//! grace periods without RTNL. Other programs continue; only the caller sleeps.

use std::time::{Duration, Instant};

use ::netlink::{AckStatus, Errno};
use rustix::net::netdevice::index_to_name_inlined;
use rustix::thread::sched_yield;

use super::{RTM_DELLINK, Target, message_for};
use crate::deferred_close;
use crate::error::{Error, Result};
use crate::request::{Netlink, Request};
use crate::types::IfIndex;

/// Maximum time to wait for the child before the caller removes the link itself.
const CHILD_TIMEOUT: Duration = Duration::from_secs(2);
/// Time to poll without sleeping. On an idle machine the link is gone within 0.3 ms, and a timer
/// would fire later.
const SPIN_TIME: Duration = Duration::from_millis(1);
/// Interval of polling after [`SPIN_TIME`].
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Removes a link; with a veth, also its peer. Applying the request takes 10 to 30 ms.
pub fn remove(link: impl Into<Target>) -> Request {
    let link = link.into();
    Request::new("remove link", link.to_string(), message_for(RTM_DELLINK, link, 0, 0))
}

/// Removes a link and returns as soon as it is invisible; a background child waits for the rest.
/// The name can be used again at once. Succeeds if the link does not exist.
///
/// Meant for processes with little memory that end soon: a fork copies page tables (30 µs per
/// megabyte), and the child stays a zombie until the next removal.
pub fn remove_in_background(nl: &Netlink, index: IfIndex) -> Result<()> {
    if !is_visible(nl, index)? {
        return Ok(());
    }
    let (seq, bytes) = nl.socket().prepare(&remove(index).message);
    let start = Instant::now();
    if deferred_close::send_in_background(nl.socket(), &bytes).is_err() {
        return remove_now(nl, index);
    }
    while start.elapsed() < CHILD_TIMEOUT {
        if !is_visible(nl, index)? {
            return Ok(());
        }
        if start.elapsed() < SPIN_TIME {
            sched_yield();
            continue;
        }
        match nl.socket().ack_status(seq, POLL_INTERVAL) {
            Ok(AckStatus::Pending) => {}
            Ok(AckStatus::Done) => return Ok(()),
            Ok(AckStatus::Failed(cause)) => {
                return ignore_missing(Err(Error::new("remove link", index.to_string(), cause)));
            }
            Err(_) => break,
        }
    }
    remove_now(nl, index)
}

fn remove_now(nl: &Netlink, index: IfIndex) -> Result<()> {
    ignore_missing(nl.apply([remove(index)]))
}

fn ignore_missing(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

/// Returns whether the link is visible, by an ioctl under RCU: `RTM_GETLINK` would wait for RTNL,
/// which the child's removal holds. The lookup is by index, because `SIOCGIFINDEX` of a missing
/// name makes the kernel run modprobe.
fn is_visible(nl: &Netlink, index: IfIndex) -> Result<bool> {
    match index_to_name_inlined(nl, index.0) {
        Ok(_) => Ok(true),
        Err(Errno::NODEV) => Ok(false),
        Err(errno) => Err(Error::from_errno("look up link", index.to_string(), errno)),
    }
}
