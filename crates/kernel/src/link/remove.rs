// SPDX-License-Identifier: Apache-2.0
//! Removing links, in step with the kernel or leaving the waiting to a child.

use std::time::{Duration, Instant};

use ::netlink::{Answer, Errno};
use rustix::net::netdevice::index_to_name_inlined;
use rustix::thread::sched_yield;

use super::detached::send_detached;
use super::{RTM_DELLINK, Target, message_for};
use crate::error::{Error, Result};
use crate::request::{Netlink, Request};
use crate::types::IfIndex;

/// How long the caller watches the child before it removes the link itself.
const PATIENCE: Duration = Duration::from_secs(2);
/// The child usually gets there within its first time slice.
const YIELDS: usize = 100;
const STEP: Duration = Duration::from_micros(100);

/// Removes a link, and a veth's other end with it. Sending it takes one or two RCU grace
/// periods (10–30 ms).
pub fn remove(link: impl Into<Target>) -> Request {
    let link = link.into();
    Request::new("remove link", link.to_string(), message_for(RTM_DELLINK, link, 0, 0))
}

/// Removes a link and returns as soon as it is gone from view; a detached child waits for the
/// rest. A link already gone is success. Names are free again at once, but a change under RTNL
/// right after this one waits for the same grace periods.
pub fn remove_detached(nl: &Netlink, index: IfIndex) -> Result<()> {
    if !is_visible(nl, index)? {
        return Ok(());
    }
    let (seq, bytes) = nl.socket().prepare(&remove(index).message);
    let deadline = Instant::now() + PATIENCE;
    if send_detached(nl.socket(), &bytes).is_err() {
        return remove_now(nl, index);
    }
    for round in 0_usize.. {
        if !is_visible(nl, index)? {
            return Ok(());
        }
        if round < YIELDS {
            sched_yield();
            continue;
        }
        match nl.socket().answer(seq, STEP) {
            Ok(Answer::Pending) if Instant::now() < deadline => {}
            Ok(Answer::Pending) | Err(_) => break,
            Ok(Answer::Done) => return Ok(()),
            Ok(Answer::Failed(cause)) => {
                return gone_is_done(Err(Error::new("remove link", index.to_string(), cause)));
            }
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
