// SPDX-License-Identifier: Apache-2.0
//! Finding links. Statistics are left out of the replies: they are most of the bytes.

use ::netlink::{Attr, Attrs, Errno, Message, u32_at};
use rustix::net::netdevice::{index_to_name, name_to_index};

use super::{
    Detail, IFINFO_LEN, IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_BR_VLAN_FILTERING, IFLA_BRPORT_ISOLATED,
    IFLA_BRPORT_LEARNING, IFLA_BRPORT_MODE, IFLA_BRPORT_NEIGH_SUPPRESS, IFLA_BRPORT_UNICAST_FLOOD,
    IFLA_GROUP, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA,
    IFLA_INFO_SLAVE_KIND, IFLA_LINK, IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU, IFLA_TXQLEN, Ipip,
    IpvlanMode, Link, MacvlanMode, OperState, PortOptions, RTM_GETLINK, Vxlan, ifinfo,
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
const IFLA_VLAN_ID: u16 = 1; // linux/if_link.h
const IFLA_VRF_TABLE: u16 = 1; // linux/if_link.h
const IFLA_MACVLAN_MODE: u16 = 1; // linux/if_link.h
const IFLA_IPVLAN_MODE: u16 = 1; // linux/if_link.h

/// The link of this name; the kernel also looks among alternative names.
pub fn by_name(nl: &Netlink, name: IfName) -> Result<Option<Link>> {
    let mut message = question(0);
    message.str(IFLA_IFNAME, name.as_str());
    find(nl, &message, name.as_str())
}

/// The link of this name in another namespace, by this one's number for it.
pub fn by_name_in(nl: &Netlink, netns_id: i32, name: IfName) -> Result<Option<Link>> {
    let mut message = question(0);
    message.i32(IFLA_TARGET_NETNSID, netns_id).str(IFLA_IFNAME, name.as_str());
    find(nl, &message, name.as_str())
}

/// The link of this index.
pub fn by_index(nl: &Netlink, index: IfIndex) -> Result<Option<Link>> {
    find(nl, &question(index.0), &index.to_string())
}

/// The index of a link that is known to exist: an ioctl under RCU, without waiting for RTNL.
/// As root a name that does *not* exist makes the kernel look for a module of that name.
pub fn index_of(nl: &Netlink, name: IfName) -> Result<IfIndex> {
    let index = name_to_index(nl, name.as_str());
    index.map(IfIndex).map_err(|errno| Error::from_errno("find link", name.as_str(), errno))
}

/// The name of a link, in the same way; `None` if there is none of this index.
pub fn name_of(nl: &Netlink, index: IfIndex) -> Result<Option<IfName>> {
    match index_to_name(nl, index.0) {
        Ok(name) => Ok(IfName::from_kernel(name.as_bytes())),
        Err(Errno::NODEV) => Ok(None),
        Err(errno) => Err(Error::from_errno("find link", index.to_string(), errno)),
    }
}

/// All links of the namespace.
pub fn list(nl: &Netlink) -> Result<Vec<Link>> {
    nl.dump("list links", &question(0), parse)
}

/// All links of another namespace, by this one's number for it; none if it has gone.
pub fn list_in(nl: &Netlink, netns_id: i32) -> Result<Vec<Link>> {
    let mut message = question(0);
    message.i32(IFLA_TARGET_NETNSID, netns_id);
    match nl.dump("list links of another namespace", &message, parse) {
        Err(error) if error.errno == Errno::INVAL || error.is_not_found() => Ok(Vec::new()),
        other => other,
    }
}

/// The ports of a bridge or VRF, chosen by the kernel.
pub fn list_of_master(nl: &Netlink, master: IfIndex) -> Result<Vec<Link>> {
    let mut message = question(0);
    message.u32(IFLA_MASTER, master.0);
    let mut links = nl.dump("list links of master", &message, parse)?;
    // A master that is gone makes the kernel ignore the filter.
    links.retain(|link| link.master == Some(master));
    Ok(links)
}

/// All links of a kind, chosen by the kernel.
pub fn list_of_kind(nl: &Netlink, kind: &str) -> Result<Vec<Link>> {
    let mut message = question(0);
    message.nest(IFLA_LINKINFO, |info| {
        info.str(IFLA_INFO_KIND, kind);
    });
    let mut links = nl.dump("list links of kind", &message, parse)?;
    // A kind that the kernel does not know makes it ignore the filter.
    links.retain(|link| link.is_kind(kind));
    Ok(links)
}

fn question(index: u32) -> Message {
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

/// The index an `RTM_*LINK` message is about.
pub(super) fn index_in(payload: &[u8]) -> Option<IfIndex> {
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
        read_attr(&mut link, &attr);
    }
    Some(link)
}

fn read_attr(link: &mut Link, attr: &Attr<'_>) {
    let text = || String::from_utf8_lossy(attr.text()).into_owned();
    match attr.kind {
        IFLA_ADDRESS => link.mac = attr.fixed().map(MacAddr),
        IFLA_MTU => link.mtu = attr.u32().unwrap_or(0),
        IFLA_OPERSTATE => link.operstate = operstate(attr.u8().unwrap_or(0)),
        IFLA_MASTER => link.master = attr.u32().map(IfIndex),
        // A parent that is gone, or is the link itself, is index 0.
        IFLA_LINK => link.link = attr.u32().filter(|index| *index != 0).map(IfIndex),
        IFLA_LINK_NETNSID => link.link_netnsid = attr.i32(),
        IFLA_IFALIAS => link.alias = Some(text()).filter(|alias| !alias.is_empty()),
        IFLA_GROUP => link.group = attr.u32().unwrap_or(0),
        IFLA_PROMISCUITY => link.promiscuity = attr.u32().unwrap_or(0),
        IFLA_TXQLEN => link.txqlen = attr.u32().unwrap_or(0),
        IFLA_LINKINFO => read_info(link, &attr.nested()),
        IFLA_AF_SPEC => link.accept_ra = accept_ra(&attr.nested()),
        _ => {}
    }
}

/// The kernel tells a link's IPv6 switches with it, as an array of numbers.
fn accept_ra(families: &Attrs<'_>) -> Option<u32> {
    let inet6 = families.find_kind(u16::from(AF_INET6))?;
    u32_at(inet6.nested().find_kind(IFLA_INET6_CONF)?.payload, 4 * DEVCONF_ACCEPT_RA)
}

fn read_info(link: &mut Link, info: &Attrs<'_>) {
    link.kind = info.find_kind(IFLA_INFO_KIND).and_then(|kind| kind.str().map(str::to_owned));
    if let (Some(kind), Some(data)) = (link.kind.as_deref(), info.find_kind(IFLA_INFO_DATA)) {
        link.detail = detail(kind, &data.nested());
    }
    let slave_kind = info.find_kind(IFLA_INFO_SLAVE_KIND).and_then(|kind| kind.str());
    if slave_kind == Some("bridge") {
        let data = info.find_kind(IFLA_INFO_SLAVE_DATA);
        link.port = data.map(|data| port_options(&data.nested()));
    }
}

fn detail(kind: &str, data: &Attrs<'_>) -> Detail {
    let number = |id| data.find_kind(id).and_then(|attr| attr.u32());
    let short = |id| data.find_kind(id).and_then(|attr| attr.u16());
    match kind {
        "bridge" => {
            let filtering = data.find_kind(IFLA_BR_VLAN_FILTERING).and_then(|attr| attr.u8());
            Detail::Bridge { vlan_filtering: filtering.is_some_and(|on| on != 0) }
        }
        "macvlan" => Detail::Macvlan(number(IFLA_MACVLAN_MODE).and_then(MacvlanMode::from_number)),
        "ipvlan" => Detail::Ipvlan(short(IFLA_IPVLAN_MODE).and_then(IpvlanMode::from_number)),
        "vlan" => short(IFLA_VLAN_ID).map_or(Detail::None, Detail::Vlan),
        "vrf" => number(IFLA_VRF_TABLE).map_or(Detail::None, Detail::Vrf),
        "vxlan" => Vxlan::read(data).map_or(Detail::None, Detail::Vxlan),
        "ipip" => Detail::Ipip(Ipip::read(data)),
        _ => Detail::None,
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
        fn any_bytes_are_parsed_without_panic(mut bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = parse(&bytes);
            bytes.resize(16, 0);
            bytes.extend_from_slice(&[6, 0, 3, 0, b'x', 0, 0, 0]);
            bytes.extend_from_slice(&tail);
            let _ = parse(&bytes);
        }
    }
}
