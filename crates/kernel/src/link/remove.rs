// SPDX-License-Identifier: Apache-2.0
//! Removing links, in step with the kernel or leaving the waiting to a child.
//! The kernel takes a link out of view first (0.2 ms, under RTNL), then waits for one or two RCU
//! grace periods without RTNL: others go on, only the caller sleeps.

use std::time::{Duration, Instant};

use ::netlink::{Answer, Errno};
use rustix::net::netdevice::index_to_name_inlined;
use rustix::thread::sched_yield;

use super::{RTM_DELLINK, Target, message_for};
use crate::deferred_close;
use crate::error::{Error, Result};
use crate::request::{Netlink, Request};
use crate::types::IfIndex;

/// How long the caller watches the child before it removes the link itself.
const PATIENCE: Duration = Duration::from_secs(2);
/// The child gets there within 0.3 ms on a quiet machine; a timer would fire late.
const SPIN: Duration = Duration::from_millis(1);
const STEP: Duration = Duration::from_micros(100);

/// Removes a link, and a veth's other end with it. Applying it takes 10–30 ms.
pub fn remove(link: impl Into<Target>) -> Request {
    let link = link.into();
    Request::new("remove link", link.to_string(), message_for(RTM_DELLINK, link, 0, 0))
}

/// Removes a link and returns as soon as it is gone from view; a forked child waits for the
/// rest. A link already gone is success. The name is free again at once.
///
/// For processes with little memory that end soon: a fork copies page tables (30 µs a
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
    while start.elapsed() < PATIENCE {
        if !is_visible(nl, index)? {
            return Ok(());
        }
        if start.elapsed() < SPIN {
            sched_yield();
            continue;
        }
        match nl.socket().answer(seq, STEP) {
            Ok(Answer::Pending) => {}
            Ok(Answer::Done) => return Ok(()),
            Ok(Answer::Failed(cause)) => {
                return gone_is_done(Err(Error::new("remove link", index.to_string(), cause)));
            }
            Err(_) => break,
        }
    }
    remove_now(nl, index)
}

fn remove_now(nl: &Netlink, index: IfIndex) -> Result<()> {
    gone_is_done(nl.apply([remove(index)]))
}

fn gone_is_done(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

/// Looks under RCU: `RTM_GETLINK` would wait for RTNL, which the child's removal holds. By
/// index, as `SIOCGIFINDEX` of a missing name makes the kernel run modprobe.
fn is_visible(nl: &Netlink, index: IfIndex) -> Result<bool> {
    match index_to_name_inlined(nl, index.0) {
        Ok(_) => Ok(true),
        Err(Errno::NODEV) => Ok(false),
        Err(errno) => Err(Error::from_errno("look for link", index.to_string(), errno)),
    }
}
