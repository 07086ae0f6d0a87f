// SPDX-License-Identifier: Apache-2.0
//! Reads of links, and waiting until a link reaches a state. The requests exclude statistics, which
//! would be most of the reply.

use std::time::Instant;

use ::netlink::{Attr, Attrs, Errno, Message, Monitor, Protocol, Received, u32_at};
use rustix::net::netdevice::{index_to_name, name_to_index};

use super::{
    Detail, IFINFO_LEN, IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_BRPORT_ISOLATED, IFLA_BRPORT_LEARNING,
    IFLA_BRPORT_MODE, IFLA_BRPORT_NEIGH_SUPPRESS, IFLA_BRPORT_UNICAST_FLOOD, IFLA_GROUP,
    IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA,
    IFLA_INFO_SLAVE_KIND, IFLA_LINK, IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU, IFLA_TXQLEN, Link,
    OperState, PortOptions, RTM_GETLINK, ifinfo, kind,
};
use crate::error::{Error, Result};
use crate::netlink_ip::AF_INET6;
use crate::request::Netlink;
use crate::types::{IfIndex, IfName, MacAddr};

const IFLA_OPERSTATE: u16 = 16; // linux/if_link.h
const IFLA_EXT_MASK: u16 = 29; // linux/if_link.h
const IFLA_PROMISCUITY: u16 = 30; // linux/if_link.h
const IFLA_LINK_NETNSID: u16 = 37; // linux/if_link.h
const IFLA_TARGET_NETNSID: u16 = 46; // linux/if_link.h
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3; // linux/rtnetlink.h
const IFLA_INET6_CONF: u16 = 2; // linux/if_link.h
const DEVCONF_ACCEPT_RA: usize = 3; // linux/ipv6.h
const RTNLGRP_LINK: u32 = 1; // linux/rtnetlink.h

/// Finds a link by name; the kernel also considers alternative names.
pub fn by_name(nl: &Netlink, name: IfName) -> Result<Option<Link>> {
    let mut message = request(0);
    message.str(IFLA_IFNAME, name.as_str());
    find(nl, &message, name.as_str())
}

/// Finds a link by name in another namespace, given by its ID in this namespace.
pub fn by_name_in(nl: &Netlink, netns_id: i32, name: IfName) -> Result<Option<Link>> {
    let mut message = request(0);
    message.i32(IFLA_TARGET_NETNSID, netns_id).str(IFLA_IFNAME, name.as_str());
    find(nl, &message, name.as_str())
}

/// Finds a link by index.
pub fn by_index(nl: &Netlink, index: IfIndex) -> Result<Option<Link>> {
    find(nl, &request(index.0), &index.to_string())
}

/// Returns the index of a link that is known to exist, by an ioctl under RCU, which does not wait
/// for RTNL. As root, a name that does *not* exist makes the kernel look for a module of that name.
pub fn index_of(nl: &Netlink, name: IfName) -> Result<IfIndex> {
    let index = name_to_index(nl, name.as_str());
    index.map(IfIndex).map_err(|errno| Error::from_errno("find link", name.as_str(), errno))
}

/// Returns the name of a link by an ioctl under RCU; `None` if no link has this index.
pub fn name_of(nl: &Netlink, index: IfIndex) -> Result<Option<IfName>> {
    match index_to_name(nl, index.0) {
        Ok(name) => Ok(IfName::from_kernel(name.as_bytes())),
        Err(Errno::NODEV) => Ok(None),
        Err(errno) => Err(Error::from_errno("find link", index.to_string(), errno)),
    }
}

/// Lists the links of the socket's namespace.
pub fn list(nl: &Netlink) -> Result<Vec<Link>> {
    nl.dump("list links", &request(0), parse)
}

/// Lists the links of another namespace, given by its ID in this namespace; empty if that namespace
/// is gone.
pub fn list_in(nl: &Netlink, netns_id: i32) -> Result<Vec<Link>> {
    let mut message = request(0);
    message.i32(IFLA_TARGET_NETNSID, netns_id);
    match nl.dump("list links of another namespace", &message, parse) {
        Err(error) if error.errno == Errno::INVAL || error.is_not_found() => Ok(Vec::new()),
        other => other,
    }
}

/// Lists the ports of a bridge or VRF; the kernel filters.
pub fn list_of_master(nl: &Netlink, master: IfIndex) -> Result<Vec<Link>> {
    let mut message = request(0);
    message.u32(IFLA_MASTER, master.0);
    let mut links = nl.dump("list links of master", &message, parse)?;
    // The kernel ignores the filter if the master does not exist.
    links.retain(|link| link.master == Some(master));
    Ok(links)
}

/// Lists the links of a kind; the kernel filters.
pub fn list_of_kind(nl: &Netlink, kind: &str) -> Result<Vec<Link>> {
    let mut message = request(0);
    message.nest(IFLA_LINKINFO, |info| {
        info.str(IFLA_INFO_KIND, kind);
    });
    let mut links = nl.dump("list links of kind", &message, parse)?;
    // The kernel ignores the filter if it does not know the kind.
    links.retain(|link| link.is_kind(kind));
    Ok(links)
}

/// Subscribes to changes of links in the calling thread's namespace.
pub fn monitor() -> Result<Monitor> {
    let monitor = Monitor::open(Protocol::Route, &[RTNLGRP_LINK]);
    monitor.map_err(|cause| Error::new("subscribe to links", "", cause))
}

/// Waits until `condition` is true for the link, which is `None` while it does not exist. Returns
/// `false` if the deadline passes first. The monitor must belong to the same namespace as the
/// socket.
pub fn wait_until(
    nl: &Netlink,
    monitor: &mut Monitor,
    index: IfIndex,
    deadline: Instant,
    mut condition: impl FnMut(Option<&Link>) -> bool,
) -> Result<bool> {
    loop {
        if condition(by_index(nl, index)?.as_ref()) {
            return Ok(true);
        }
        let mut changed = false;
        while !changed {
            let received = monitor.receive(deadline, |_, payload| {
                changed |= index_in(payload) == Some(index);
            });
            match received {
                Ok(Received::Events) => {}
                Ok(Received::Overrun) => changed = true,
                Ok(Received::Deadline) => return Ok(false),
                Err(cause) => return Err(Error::new("wait for link", index.to_string(), cause)),
            }
        }
    }
}

fn request(index: u32) -> Message {
    let mut message = Message::new(RTM_GETLINK, 0);
    message.header(&ifinfo(index, 0, 0)).u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    message
}

fn find(nl: &Netlink, message: &Message, object: &str) -> Result<Option<Link>> {
    match nl.socket().get(message) {
        Ok((_, payload)) => Ok(parse(&payload)),
        Err(cause) if cause.errno == Errno::NODEV => Ok(None),
        Err(cause) => Err(Error::new("find link", object, cause)),
    }
}

/// Returns the index of the link in an `RTM_*LINK` message.
fn index_in(payload: &[u8]) -> Option<IfIndex> {
    u32_at(payload, 4).map(IfIndex)
}

pub(crate) fn parse(payload: &[u8]) -> Option<Link> {
    let mut link = Link {
        index: index_in(payload)?,
        name: IfName::from_kernel(
            Attrs::after(payload, IFINFO_LEN).find_kind(IFLA_IFNAME)?.text(),
        )?,
        kind: None,
        detail: Detail::None,
        mac: None,
        mtu: 0,
        flags: u32_at(payload, 8)?,
        operstate: OperState::Unknown,
        master: None,
        link: None,
        link_netnsid: None,
        alias: None,
        group: 0,
        promiscuity: 0,
        txqlen: 0,
        port: None,
        accept_ra: None,
    };
    for attr in Attrs::after(payload, IFINFO_LEN) {
        parse_attr(&mut link, &attr);
    }
    Some(link)
}

fn parse_attr(link: &mut Link, attr: &Attr<'_>) {
    let text = || String::from_utf8_lossy(attr.text()).into_owned();
    match attr.kind {
        IFLA_ADDRESS => link.mac = attr.fixed().map(MacAddr),
        IFLA_MTU => link.mtu = attr.u32().unwrap_or(0),
        IFLA_OPERSTATE => link.operstate = operstate(attr.u8().unwrap_or(0)),
        IFLA_MASTER => link.master = attr.u32().map(IfIndex),
        // The kernel reports index 0 if the parent is gone or is the link itself.
        IFLA_LINK => link.link = attr.u32().filter(|index| *index != 0).map(IfIndex),
        IFLA_LINK_NETNSID => link.link_netnsid = attr.i32(),
        IFLA_IFALIAS => link.alias = Some(text()).filter(|alias| !alias.is_empty()),
        IFLA_GROUP => link.group = attr.u32().unwrap_or(0),
        IFLA_PROMISCUITY => link.promiscuity = attr.u32().unwrap_or(0),
        IFLA_TXQLEN => link.txqlen = attr.u32().unwrap_or(0),
        IFLA_LINKINFO => parse_info(link, &attr.nested()),
        IFLA_AF_SPEC => link.accept_ra = accept_ra(&attr.nested()),
        _ => {}
    }
}

/// Parses `accept_ra` from the IPv6 settings, which the kernel reports as an array of numbers.
fn accept_ra(families: &Attrs<'_>) -> Option<u32> {
    let inet6 = families.find_kind(u16::from(AF_INET6))?;
    u32_at(inet6.nested().find_kind(IFLA_INET6_CONF)?.payload, 4 * DEVCONF_ACCEPT_RA)
}

fn parse_info(link: &mut Link, info: &Attrs<'_>) {
    link.kind = info.find_kind(IFLA_INFO_KIND).and_then(|kind| kind.str().map(str::to_owned));
    if let (Some(kind), Some(data)) = (link.kind.as_deref(), info.find_kind(IFLA_INFO_DATA)) {
        link.detail = kind::parse_detail(kind, &data.nested());
    }
    let slave_kind = info.find_kind(IFLA_INFO_SLAVE_KIND).and_then(|kind| kind.str());
    if slave_kind == Some("bridge") {
        let data = info.find_kind(IFLA_INFO_SLAVE_DATA);
        link.port = data.map(|data| port_options(&data.nested()));
    }
}

fn port_options(data: &Attrs<'_>) -> PortOptions {
    let on = |id| data.find_kind(id).and_then(|attr| attr.u8()).map(|value| value != 0);
    PortOptions {
        hairpin: on(IFLA_BRPORT_MODE),
        isolated: on(IFLA_BRPORT_ISOLATED),
        learning: on(IFLA_BRPORT_LEARNING),
        flood: on(IFLA_BRPORT_UNICAST_FLOOD),
        neigh_suppress: on(IFLA_BRPORT_NEIGH_SUPPRESS),
    }
}

fn operstate(value: u8) -> OperState {
    match value {
        1 => OperState::NotPresent,
        2 => OperState::Down,
        3 => OperState::LowerLayerDown,
        4 => OperState::Testing,
        5 => OperState::Dormant,
        6 => OperState::Up,
        _ => OperState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parser_never_panics(mut bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = parse(&bytes);
            bytes.resize(16, 0);
            bytes.extend_from_slice(&[6, 0, 3, 0, b'x', 0, 0, 0]);
            bytes.extend_from_slice(&tail);
            let _ = parse(&bytes);
        }
    }
}
