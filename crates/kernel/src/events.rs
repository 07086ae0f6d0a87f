// SPDX-License-Identifier: Apache-2.0
//! Events of the kernel: changes of links, addresses, routes, neighbours, forwarding entries and
//! next hops, received through one socket. Open the socket before reading the state: then no change
//! is missed in between.
//!
//! Not every change has an event. When a link goes down or is removed, its IPv4 routes and next
//! hops vanish without events, and so do the routes of a next hop that is removed.

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

/// Size of the receive buffer, enough for some thousand events. The program's own changes also come
/// back as events, in bursts, and iptables and kube-proxy rewrite whole tables.
const BUFFER: usize = 4 << 20;

const RTM_NEWNETCONF: u16 = 80; // linux/rtnetlink.h
const NETCONF_HEADER: usize = 4; // struct netconfmsg, padded
const NETCONFA_IFINDEX: u16 = 1; // linux/netconf.h
const NETCONFA_FORWARDING: u16 = 2;
const NETCONFA_IFINDEX_ALL: i32 = -1;

/// A kind of object to receive events about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Topic {
    Links,
    Addrs,
    Routes,
    /// Neighbours and forwarding entries; the kernel sends both to one group.
    Neighs,
    Nexthops,
    /// Forwarding and other per-interface settings (`RTM_NEWNETCONF`).
    Switches,
}

impl Topic {
    /// All topics.
    pub const ALL: [Self; 6] =
        [Self::Links, Self::Addrs, Self::Routes, Self::Neighs, Self::Nexthops, Self::Switches];

    /// Returns the multicast groups (`RTNLGRP_*`, linux/rtnetlink.h).
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

/// A change of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The object after the change, or before its removal.
    pub object: Object,
    /// The object was removed; otherwise it was added or changed.
    pub is_removal: bool,
}

/// The object of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Object {
    Link(Box<Link>),
    Addr(Addr),
    Route(Box<Route>),
    Neigh(Neigh),
    Fdb(Fdb),
    Nexthop(Nexthop),
    /// The sysctl `forwarding` of `all`, which enables forwarding for an address family.
    Forwarding(Family, bool),
}

/// A socket that receives the events of its namespace.
pub type Events = EventSocket<Event>;

impl Events {
    /// Opens a socket in the calling thread's namespace.
    pub fn listen(topics: &[Topic]) -> Result<Self> {
        let groups: Vec<u32> = topics.iter().flat_map(|topic| topic.groups()).copied().collect();
        Self::open("rtnetlink", Protocol::Route, &groups, parse)
    }
}

/// A socket that receives events of one netlink protocol as values of type `E`.
#[derive(Debug)]
pub struct EventSocket<E> {
    monitor: Monitor,
    source: &'static str,
    parse: fn(u16, &[u8]) -> Option<E>,
}

impl<E> EventSocket<E> {
    pub(crate) fn open(
        source: &'static str,
        protocol: Protocol,
        groups: &[u32],
        parse: fn(u16, &[u8]) -> Option<E>,
    ) -> Result<Self> {
        let monitor = Monitor::open(protocol, groups)
            .and_then(|monitor| monitor.set_receive_buffer(BUFFER).map(|()| monitor));
        match monitor {
            Ok(monitor) => Ok(Self { monitor, source, parse }),
            Err(cause) => Err(Error::new("subscribe to events of", source, cause)),
        }
    }

    /// Waits for events until `deadline` and passes those that arrive to `each`. With a past
    /// deadline it does not wait. After [`Received::Overrun`] events are lost: read the whole state
    /// again.
    pub fn receive(&mut self, deadline: Instant, mut each: impl FnMut(E)) -> Result<Received> {
        let parse = self.parse;
        let received = self.monitor.receive(deadline, |kind, payload| {
            if let Some(event) = parse(kind, payload) {
                each(event);
            }
        });
        received.map_err(|cause| Error::new("wait for events of", self.source, cause))
    }
}

impl<E> AsRawFd for EventSocket<E> {
    fn as_raw_fd(&self) -> RawFd {
        self.monitor.as_fd().as_raw_fd()
    }
}

impl<E> AsFd for EventSocket<E> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }
}

fn parse(kind: u16, payload: &[u8]) -> Option<Event> {
    let family = *payload.first()?;
    let object = match kind {
        // A bridge reports its ports with the same message types. A port that leaves the bridge
        // still exists.
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

/// Parses a change of `forwarding` of `all`; `None` for settings of one interface and for other
/// settings.
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
    fn event_has_the_object_that_was_sent() {
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
        fn parser_never_panics(kind in 0_u16..120, bytes: Vec<u8>) {
            let _ = parse(kind, &bytes);
        }
    }
}
