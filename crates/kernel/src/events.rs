// SPDX-License-Identifier: Apache-2.0
//! What changes in the kernel, as it happens: links, addresses, routes, neighbours, forwarding entries
//! and next hops through one socket. Listen first, then read the state, and nothing is missed between.
//!
//! Not every change has an event: a link that goes down, or is removed, takes its IPv4 routes and its
//! next hops with it, and a next hop its routes, without a word about them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Instant;

use ::netlink::{Attrs, Monitor, Protocol, Received};

use crate::addr::{self, Addr, RTM_DELADDR, RTM_NEWADDR};
use crate::error::{Error, Result};
use crate::fdb::{self, Fdb};
use crate::link::{self, Link, RTM_DELLINK, RTM_NEWLINK};
use crate::neigh::{self, Neigh, RTM_DELNEIGH, RTM_NEWNEIGH};
use crate::netlink_ip::AF_BRIDGE;
use crate::nexthop::{self, Nexthop, RTM_DELNEXTHOP, RTM_NEWNEXTHOP};
use crate::route::{self, RTM_DELROUTE, RTM_NEWROUTE, Route};
use crate::types::Family;

/// Room for some thousand events: our own changes come back too, and they come in batches.
const BUFFER: usize = 4 << 20;

const RTM_NEWNETCONF: u16 = 80; // linux/rtnetlink.h
const NETCONF_HEADER: usize = 4; // struct netconfmsg, padded
const NETCONFA_IFINDEX: u16 = 1; // linux/netconf.h
const NETCONFA_FORWARDING: u16 = 2;
const NETCONFA_IFINDEX_ALL: i32 = -1;

/// What to listen to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// Links.
    Links,
    /// Addresses of links.
    Addrs,
    /// Routes.
    Routes,
    /// Neighbours and forwarding entries, which the kernel does not tell apart here.
    Neighs,
    /// Next hops.
    Nexthops,
    /// Switches of interfaces, and of all of them.
    Switches,
}

impl Topic {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Links, Self::Addrs, Self::Routes, Self::Neighs, Self::Nexthops, Self::Switches];

    /// `RTNLGRP_*` of linux/rtnetlink.h.
    fn groups(self) -> &'static [u32] {
        match self {
            Self::Links => &[1],
            Self::Addrs => &[5, 9],
            Self::Routes => &[7, 11],
            Self::Neighs => &[3],
            Self::Nexthops => &[32],
            Self::Switches => &[24, 25],
        }
    }
}

/// One change: the object as it is now, or as it was when it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Which object.
    pub object: Object,
    /// It was removed; else it is new or has changed.
    pub is_removal: bool,
}

/// What a change is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// A link.
    Link(Box<Link>),
    /// An address.
    Addr(Addr),
    /// A route.
    Route(Box<Route>),
    /// A neighbour.
    Neigh(Neigh),
    /// A forwarding entry.
    Fdb(Fdb),
    /// A next hop.
    Nexthop(Nexthop),
    /// Whether packets of a family are forwarded at all: sysctl `forwarding` of `all`.
    Forwarding(Family, bool),
}

/// A socket that listens in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Events {
    monitor: Monitor,
}

impl Events {
    /// Begins to listen in the calling thread's namespace.
    pub fn listen(topics: &[Topic]) -> Result<Self> {
        let groups: Vec<u32> = topics.iter().flat_map(|topic| topic.groups()).copied().collect();
        let monitor = Monitor::open(Protocol::Route, &groups)
            .and_then(|monitor| monitor.set_receive_buffer(BUFFER).map(|()| monitor));
        match monitor {
            Ok(monitor) => Ok(Self { monitor }),
            Err(cause) => Err(Error::new("listen to changes", "", cause)),
        }
    }

    /// Waits for events until `deadline` (a past one: takes only what is there) and hands some of them
    /// to `each`. After [`Received::Overrun`] events are lost for good: read the whole state again.
    pub fn receive(&mut self, deadline: Instant, mut each: impl FnMut(Event)) -> Result<Received> {
        let received = self.monitor.receive(deadline, |kind, payload| {
            if let Some(event) = parse(kind, payload) {
                each(event);
            }
        });
        received.map_err(|cause| Error::new("wait for changes", "", cause))
    }
}

/// For who waits for many things at once.
impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.monitor.as_fd().as_raw_fd()
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }
}

fn parse(kind: u16, payload: &[u8]) -> Option<Event> {
    let family = *payload.first()?;
    let object = match kind {
        // A bridge tells of its ports in the same words: one that leaves the bridge is not removed.
        RTM_NEWLINK | RTM_DELLINK if family == AF_BRIDGE => return None,
        RTM_NEWLINK | RTM_DELLINK => Object::Link(Box::new(link::parse(payload)?)),
        RTM_NEWADDR | RTM_DELADDR => Object::Addr(addr::parse(payload)?),
        RTM_NEWROUTE | RTM_DELROUTE => {
            Object::Route(Box::new(route::parse(payload, Family::from_number(family)?)?))
        }
        RTM_NEWNEIGH | RTM_DELNEIGH if family == AF_BRIDGE => Object::Fdb(fdb::parse(payload)?),
        RTM_NEWNEIGH | RTM_DELNEIGH => {
            Object::Neigh(neigh::parse(payload, Family::from_number(family)?)?)
        }
        RTM_NEWNEXTHOP | RTM_DELNEXTHOP => Object::Nexthop(nexthop::parse(payload)?),
        RTM_NEWNETCONF => forwarding(payload, Family::from_number(family)?)?,
        _ => return None,
    };
    let removals = [RTM_DELLINK, RTM_DELADDR, RTM_DELROUTE, RTM_DELNEIGH, RTM_DELNEXTHOP];
    Some(Event { object, is_removal: removals.contains(&kind) })
}

/// None for the switches of a single interface, and for other switches.
fn forwarding(payload: &[u8], family: Family) -> Option<Object> {
    let attrs = Attrs::after(payload, NETCONF_HEADER);
    let number = |kind| attrs.find_kind(kind)?.i32();
    let is_all = number(NETCONFA_IFINDEX)? == NETCONFA_IFINDEX_ALL;
    is_all.then_some(Object::Forwarding(family, number(NETCONFA_FORWARDING)? != 0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::{IfIndex, MacAddr};

    #[test]
    fn what_was_sent_is_told() {
        let entry = Fdb::vxlan(IfIndex(4), MacAddr([2, 0, 0, 0, 0, 1]), [192, 0, 2, 7].into());
        let bytes = fdb::add(&entry).message.to_bytes();
        let event = Event { object: Object::Fdb(entry), is_removal: false };
        assert_eq!(parse(RTM_NEWNEIGH, &bytes[16..]), Some(event));
        let neigh = Neigh::permanent(IfIndex(4), [10, 1, 2, 3].into(), entry.mac);
        let bytes = neigh::remove(&neigh).message.to_bytes();
        let event = Event { object: Object::Neigh(neigh), is_removal: true };
        assert_eq!(parse(RTM_DELNEIGH, &bytes[16..]), Some(event));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(kind in 0_u16..120, bytes: Vec<u8>) {
            let _ = parse(kind, &bytes);
        }
    }
}
