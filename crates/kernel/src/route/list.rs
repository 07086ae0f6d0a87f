// SPDX-License-Identifier: Apache-2.0
//! Lists routes, filtered by the kernel, and looks up the route of a packet.

use std::net::IpAddr;

use ::netlink::{Attr, Attrs, Errno, Message, ReplyResult, u16_at, u32_at};

use super::{
    HEADER_LEN, RTA_DST, RTA_GATEWAY, RTA_METRICS, RTA_NH_ID, RTA_OIF, RTA_PREFSRC, RTA_PRIORITY,
    RTA_TABLE, RTA_VIA, RTAX_ADVMSS, RTAX_MTU, RTM_GETROUTE, RTNH_F_ONLINK, Route, default_dst,
};
use crate::error::{Error, Result};
use crate::netlink_ip::{self, put_ip};
use crate::request::Netlink;
use crate::types::{Family, IfIndex};

const RTM_F_LOOKUP_TABLE: u32 = 0x1000; // linux/rtnetlink.h

/// Filter for [`list`]; `None` matches everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouteFilter {
    /// Address family.
    pub family: Option<Family>,
    /// Routing table.
    pub table: Option<u32>,
    /// Outgoing link.
    pub oif: Option<IfIndex>,
    /// Protocol (`RTPROT_*`).
    pub protocol: Option<u8>,
    /// Type (`RTN_*`).
    pub kind: Option<u8>,
}

/// Lists the routes that match the filter.
pub fn list(nl: &Netlink, filter: RouteFilter) -> Result<Vec<Route>> {
    let mut routes = Vec::new();
    for family in Family::ALL {
        if filter.family.is_some_and(|filtered| filtered != family) {
            continue;
        }
        let message = list_request(family, filter);
        match nl.dump("list routes", &message, |payload| parse(payload, family)) {
            Ok(listed) => routes.extend(listed),
            // A table without routes does not exist in the kernel.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(routes)
}

/// Returns the route that a packet from this namespace to `dst` takes; `None` if there is no route.
pub fn lookup(nl: &Netlink, dst: IpAddr) -> Result<Option<Route>> {
    parse_lookup(dst, nl.socket().get(&lookup_request(dst)))
}

/// Looks up many routes at once, as [`lookup`] does.
pub fn lookup_each(nl: &Netlink, dsts: &[IpAddr]) -> Result<Vec<Result<Option<Route>>>> {
    let requests: Vec<Message> = dsts.iter().map(|dst| lookup_request(*dst)).collect();
    match nl.socket().get_each(&requests) {
        Ok(replies) => {
            let results = dsts.iter().zip(replies);
            Ok(results.map(|(dst, reply)| parse_lookup(*dst, reply)).collect())
        }
        Err(cause) => Err(Error::new("look up routes", "", cause)),
    }
}

fn lookup_request(dst: IpAddr) -> Message {
    let family = Family::of(dst);
    let mut header = [0; HEADER_LEN];
    header[0] = family.number();
    header[1] = if dst.is_ipv4() { 32 } else { 128 };
    // IPv4 reports the table only with this flag. IPv6 always reports it, and rejects the flag.
    let flags = if dst.is_ipv4() { RTM_F_LOOKUP_TABLE } else { 0 };
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    let mut message = Message::new(RTM_GETROUTE, 0);
    message.header(&header);
    put_ip(&mut message, RTA_DST, dst);
    message
}

fn parse_lookup(dst: IpAddr, reply: ReplyResult) -> Result<Option<Route>> {
    match reply {
        Ok((_, payload)) => Ok(parse(&payload, Family::of(dst))),
        Err(cause) if matches!(cause.errno, Errno::NETUNREACH | Errno::HOSTUNREACH) => Ok(None),
        Err(cause) => Err(Error::new("look up route to", dst.to_string(), cause)),
    }
}

fn list_request(family: Family, filter: RouteFilter) -> Message {
    let mut header = [0; HEADER_LEN];
    header[0] = family.number();
    header[5] = filter.protocol.unwrap_or(0);
    header[7] = filter.kind.unwrap_or(0);
    let mut message = Message::new(RTM_GETROUTE, 0);
    message.header(&header);
    if let Some(table) = filter.table {
        message.u32(RTA_TABLE, table);
    }
    if let Some(oif) = filter.oif {
        message.u32(RTA_OIF, oif.0);
    }
    message
}

pub(crate) fn parse(payload: &[u8], family: Family) -> Option<Route> {
    // A kernel without IPv6 answers an IPv6 dump with the routes of all its families.
    if *payload.first()? != family.number() {
        return None;
    }
    let mut route = Route {
        table: u32::from(*payload.get(4)?),
        protocol: *payload.get(5)?,
        scope: Some(*payload.get(6)?),
        kind: *payload.get(7)?,
        onlink: u32_at(payload, 8)? & RTNH_F_ONLINK != 0,
        ..Route::new(default_dst(family))
    };
    let dst_len = *payload.get(1)?;
    for attr in Attrs::after(payload, HEADER_LEN) {
        match attr.kind {
            RTA_DST => route.dst = netlink_ip::prefix(netlink_ip::ip(attr.payload)?, dst_len)?,
            _ => parse_attr(&mut route, &attr),
        }
    }
    Some(route)
}

fn parse_attr(route: &mut Route, attr: &Attr<'_>) {
    match attr.kind {
        RTA_GATEWAY => route.gateway = netlink_ip::ip(attr.payload),
        RTA_VIA => route.gateway = parse_via(attr),
        RTA_OIF => route.oif = attr.u32().map(IfIndex),
        RTA_PREFSRC => route.src = netlink_ip::ip(attr.payload),
        RTA_TABLE => route.table = attr.u32().unwrap_or(route.table),
        RTA_PRIORITY => route.priority = attr.u32(),
        RTA_NH_ID => route.nexthop = attr.u32(),
        RTA_METRICS => {
            let metrics = attr.nested();
            route.mtu = metrics.find_kind(RTAX_MTU).and_then(|metric| metric.u32());
            route.advmss = metrics.find_kind(RTAX_ADVMSS).and_then(|metric| metric.u32());
        }
        _ => {}
    }
}

fn parse_via(attr: &Attr<'_>) -> Option<IpAddr> {
    let family = u8::try_from(u16_at(attr.payload, 0)?).ok()?;
    Family::from_number(family)?;
    netlink_ip::ip(attr.payload.get(2..)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parser_never_panics(mut bytes: Vec<u8>) {
            if let Some(first) = bytes.first_mut() {
                *first = 2;
            }
            let _ = parse(&bytes, Family::V4);
        }
    }
}
