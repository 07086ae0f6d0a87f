// SPDX-License-Identifier: Apache-2.0
//! Next hop objects: gateway and link under a number, which routes then name. Thousands of routes
//! through one link are linear with them and quadratic without: the kernel keeps the next hops that
//! stand in routes themselves in a table by link alone.
//!
//! What removes a next hop removes its routes too: its own removal, or its link going down.

use std::net::IpAddr;

use ::netlink::{Attrs, Message, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, u32_at};

use crate::error::Result;
use crate::netlink_ip::{self, AF_UNSPEC, put_ip};
use crate::request::{Netlink, Request};
use crate::route::RTNH_F_ONLINK;
use crate::types::{Family, IfIndex};

pub(crate) const RTM_NEWNEXTHOP: u16 = 104; // linux/rtnetlink.h
pub(crate) const RTM_DELNEXTHOP: u16 = 105; // linux/rtnetlink.h
const RTM_GETNEXTHOP: u16 = 106; // linux/rtnetlink.h

const NHA_ID: u16 = 1; // linux/nexthop.h
const NHA_OIF: u16 = 5; // linux/nexthop.h
const NHA_GATEWAY: u16 = 6; // linux/nexthop.h

/// `struct nhmsg`.
const HEADER_LEN: usize = 8;

/// A next hop, to be made or as found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nexthop {
    /// Its number, of all families and makers; 0 is none.
    pub id: u32,
    /// Of the gateway, or of the routes if there is no gateway.
    pub family: Family,
    /// Through whom.
    pub gateway: Option<IpAddr>,
    /// Through which link; found without for a group, a blackhole and forwarding entries.
    pub oif: Option<IfIndex>,
    /// The gateway is on the link although no route says so.
    pub onlink: bool,
    /// `RTPROT_*`: who made it.
    pub protocol: u8,
}

impl Nexthop {
    /// Through a gateway on a link, whatever routes say.
    pub fn onlink(id: u32, gateway: IpAddr, oif: IfIndex, protocol: u8) -> Self {
        Self {
            gateway: Some(gateway),
            onlink: true,
            ..Self::dev(id, Family::of(gateway), oif, protocol)
        }
    }

    /// Straight out of a link.
    pub fn dev(id: u32, family: Family, oif: IfIndex, protocol: u8) -> Self {
        Self { id, family, gateway: None, oif: Some(oif), onlink: false, protocol }
    }
}

/// Which next hops to list; what is not given does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NexthopFilter {
    /// Through this link: chosen by the kernel.
    pub oif: Option<IfIndex>,
    /// Made by this `RTPROT_*`: chosen by us, as the kernel refuses to.
    pub protocol: Option<u8>,
}

/// Adds a next hop; fails if the number is taken.
pub fn add(nexthop: &Nexthop) -> Request {
    request("add next hop", NLM_F_CREATE | NLM_F_EXCL, nexthop)
}

/// Adds a next hop, or changes it under all routes that use it. The kernel refuses to change the
/// family while there are such routes.
pub fn replace(nexthop: &Nexthop) -> Request {
    request("replace next hop", NLM_F_CREATE | NLM_F_REPLACE, nexthop)
}

/// Removes a next hop and all routes that use it. Their removal is not told to those who listen.
pub fn remove(id: u32) -> Request {
    let mut message = Message::new(RTM_DELNEXTHOP, 0);
    message.header(&[0; HEADER_LEN]).u32(NHA_ID, id);
    Request::new("remove next hop", id.to_string(), message)
}

/// The next hops that the filter lets through.
pub fn list(nl: &Netlink, filter: NexthopFilter) -> Result<Vec<Nexthop>> {
    let mut message = Message::new(RTM_GETNEXTHOP, 0);
    let mut header = [0; HEADER_LEN];
    header[0] = AF_UNSPEC;
    message.header(&header);
    if let Some(oif) = filter.oif {
        message.u32(NHA_OIF, oif.0);
    }
    let is_wanted = |found: &Nexthop| filter.protocol.is_none_or(|wanted| wanted == found.protocol);
    nl.dump("list next hops", &message, |payload| parse(payload).filter(is_wanted))
}

fn request(op: &'static str, nlm_flags: u16, nexthop: &Nexthop) -> Request {
    let mut message = Message::new(RTM_NEWNEXTHOP, nlm_flags);
    let flags = if nexthop.onlink { RTNH_F_ONLINK } else { 0 };
    let [a, b, c, d] = flags.to_ne_bytes();
    message.header(&[nexthop.family.number(), 0, nexthop.protocol, 0, a, b, c, d]);
    message.u32(NHA_ID, nexthop.id);
    if let Some(oif) = nexthop.oif {
        message.u32(NHA_OIF, oif.0);
    }
    if let Some(gateway) = nexthop.gateway {
        put_ip(&mut message, NHA_GATEWAY, gateway);
    }
    Request::read(op, message, object)
}

fn object(payload: &[u8]) -> Option<String> {
    let Nexthop { id, gateway, oif, .. } = parse(payload)?;
    let via = gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
    let dev = oif.map_or_else(String::new, |oif| format!(" dev {oif}"));
    Some(format!("{id}{via}{dev}"))
}

/// A group has no family and is not ours.
pub(crate) fn parse(payload: &[u8]) -> Option<Nexthop> {
    let attrs = Attrs::after(payload, HEADER_LEN);
    Some(Nexthop {
        id: attrs.find_kind(NHA_ID)?.u32()?,
        family: Family::from_number(*payload.first()?)?,
        gateway: attrs.find_kind(NHA_GATEWAY).and_then(|attr| netlink_ip::ip(attr.payload)),
        oif: attrs.find_kind(NHA_OIF).and_then(|attr| attr.u32()).map(IfIndex),
        onlink: u32_at(payload, 4)? & RTNH_F_ONLINK != 0,
        protocol: *payload.get(2)?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes() {
        // ip nexthop replace id 7 via 10.1.2.0 dev <index 3> onlink protocol 97
        let nexthop = Nexthop::onlink(7, "10.1.2.0".parse().unwrap(), IfIndex(3), 97);
        let request = replace(&nexthop);
        assert_eq!(
            request.message.to_bytes(),
            [
                48, 0, 0, 0, 104, 0, 0x01, 0x05, 0, 0, 0, 0, 0, 0, 0, 0, //
                2, 0, 97, 0, 4, 0, 0, 0, // nhmsg
                8, 0, 1, 0, 7, 0, 0, 0, // NHA_ID
                8, 0, 5, 0, 3, 0, 0, 0, // NHA_OIF
                8, 0, 6, 0, 10, 1, 2, 0, // NHA_GATEWAY
            ]
        );
        assert_eq!(request.object(), "7 via 10.1.2.0 dev #3");
        // ip nexthop del id 7
        assert_eq!(
            remove(7).message.to_bytes(),
            [
                32, 0, 0, 0, 105, 0, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
                0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0, 7, 0, 0, 0,
            ]
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(mut bytes: Vec<u8>) {
            if let Some(first) = bytes.first_mut() {
                *first = 2;
            }
            let _ = parse(&bytes);
        }

        #[test]
        fn what_is_written_is_read(id: u32, gateway: std::net::IpAddr, oif: u32, protocol: u8) {
            let nexthop = Nexthop::onlink(id, gateway, IfIndex(oif), protocol);
            prop_assert_eq!(parse(&add(&nexthop).message.to_bytes()[16..]), Some(nexthop));
        }
    }
}
