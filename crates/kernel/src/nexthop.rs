// SPDX-License-Identifier: Apache-2.0
//! Next hop objects: a gateway and a link with an ID that routes refer to.
//!
//! With them, adding thousands of routes through one link takes linear time. Without them it takes
//! quadratic time, because the kernel hashes the next hops that are part of routes by link only.
//!
//! When a next hop is removed, or its link goes down, the kernel removes its routes too.

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

/// Length of `struct nhmsg`.
const HEADER_LEN: usize = 8;

/// A next hop, to be added or as read from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nexthop {
    /// ID, unique among all address families and protocols; 0 is invalid.
    pub id: u32,
    /// Address family of the gateway, or of the routes if there is no gateway.
    pub family: Family,
    /// Gateway.
    pub gateway: Option<IpAddr>,
    /// Outgoing link; `None` for groups, blackholes and forwarding entries read from the kernel.
    pub oif: Option<IfIndex>,
    /// The gateway is on the link even if no route covers it.
    pub onlink: bool,
    /// Protocol that added the next hop (`RTPROT_*`).
    pub protocol: u8,
}

impl Nexthop {
    /// Returns a next hop through a gateway on a link, regardless of routes.
    pub fn onlink(id: u32, gateway: IpAddr, oif: IfIndex, protocol: u8) -> Self {
        Self {
            gateway: Some(gateway),
            onlink: true,
            ..Self::dev(id, Family::of(gateway), oif, protocol)
        }
    }

    /// Returns a next hop through a link without a gateway.
    pub fn dev(id: u32, family: Family, oif: IfIndex, protocol: u8) -> Self {
        Self { id, family, gateway: None, oif: Some(oif), onlink: false, protocol }
    }
}

/// Filter for [`list`]; `None` matches everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NexthopFilter {
    /// Outgoing link; the kernel filters.
    pub oif: Option<IfIndex>,
    /// Protocol (`RTPROT_*`); filtered here, because the kernel rejects such a filter.
    pub protocol: Option<u8>,
}

/// Adds a next hop; fails if the ID is taken.
pub fn add(nexthop: &Nexthop) -> Request {
    request("add next hop", NLM_F_CREATE | NLM_F_EXCL, nexthop)
}

/// Adds a next hop, or changes it for all routes that use it. The kernel rejects a change of the
/// address family while such routes exist.
pub fn replace(nexthop: &Nexthop) -> Request {
    request("replace next hop", NLM_F_CREATE | NLM_F_REPLACE, nexthop)
}

/// Removes a next hop and all routes that use it. The kernel sends no events for these routes.
pub fn remove(id: u32) -> Request {
    let mut message = Message::new(RTM_DELNEXTHOP, 0);
    message.header(&[0; HEADER_LEN]).u32(NHA_ID, id);
    Request::new("remove next hop", id.to_string(), message)
}

/// Lists the next hops that match the filter.
pub fn list(nl: &Netlink, filter: NexthopFilter) -> Result<Vec<Nexthop>> {
    let mut message = Message::new(RTM_GETNEXTHOP, 0);
    let mut header = [0; HEADER_LEN];
    header[0] = AF_UNSPEC;
    message.header(&header);
    if let Some(oif) = filter.oif {
        message.u32(NHA_OIF, oif.0);
    }
    let is_match = |nexthop: &Nexthop| filter.protocol.is_none_or(|it| it == nexthop.protocol);
    nl.dump("list next hops", &message, |payload| parse(payload).filter(is_match))
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
    Request::with_parsed_object(op, message, object)
}

fn object(payload: &[u8]) -> Option<String> {
    let Nexthop { id, gateway, oif, .. } = parse(payload)?;
    let via = gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
    let dev = oif.map_or_else(String::new, |oif| format!(" dev {oif}"));
    Some(format!("{id}{via}{dev}"))
}

/// Parses a next hop; `None` for a group, which has no address family and is not podwire's.
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
    fn replace_and_remove_have_golden_bytes() {
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
        fn parser_never_panics(mut bytes: Vec<u8>) {
            if let Some(first) = bytes.first_mut() {
                *first = 2;
            }
            let _ = parse(&bytes);
        }

        #[test]
        fn nexthop_round_trips(id: u32, gateway: std::net::IpAddr, oif: u32, protocol: u8) {
            let nexthop = Nexthop::onlink(id, gateway, IfIndex(oif), protocol);
            prop_assert_eq!(parse(&add(&nexthop).message.to_bytes()[16..]), Some(nexthop));
        }
    }
}
