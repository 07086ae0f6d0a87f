// SPDX-License-Identifier: Apache-2.0
//! Routes with one next hop, given by a gateway, a link or a next hop object.

mod list;
mod wait;

use std::net::IpAddr;

use ::netlink::{Message, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::netlink_ip::put_ip;
use crate::request::Request;
use crate::types::{Family, IfIndex};

pub(crate) use self::list::parse;
pub use self::list::{RouteFilter, list, lookup, lookup_each};
pub use self::wait::{monitor, wait_until};

pub(crate) const RTM_NEWROUTE: u16 = 24; // linux/rtnetlink.h
pub(crate) const RTM_DELROUTE: u16 = 25; // linux/rtnetlink.h
const RTM_GETROUTE: u16 = 26; // linux/rtnetlink.h

const RTA_DST: u16 = 1; // linux/rtnetlink.h
const RTA_OIF: u16 = 4; // linux/rtnetlink.h
const RTA_GATEWAY: u16 = 5; // linux/rtnetlink.h
const RTA_PRIORITY: u16 = 6; // linux/rtnetlink.h
const RTA_PREFSRC: u16 = 7; // linux/rtnetlink.h
const RTA_METRICS: u16 = 8; // linux/rtnetlink.h
const RTA_TABLE: u16 = 15; // linux/rtnetlink.h
const RTA_VIA: u16 = 18; // linux/rtnetlink.h
const RTA_NH_ID: u16 = 30; // linux/rtnetlink.h
const RTAX_MTU: u16 = 2; // linux/rtnetlink.h
const RTAX_ADVMSS: u16 = 8; // linux/rtnetlink.h
pub(crate) const RTNH_F_ONLINK: u32 = 4; // linux/rtnetlink.h

/// The table looked up after main, usually empty (`RT_TABLE_DEFAULT`, linux/rtnetlink.h).
pub const TABLE_DEFAULT: u32 = 253;
/// The table of local addresses (`RT_TABLE_LOCAL`, linux/rtnetlink.h).
pub const TABLE_LOCAL: u32 = 255;
/// The main table (`RT_TABLE_MAIN`, linux/rtnetlink.h).
pub const TABLE_MAIN: u32 = 254;
/// Scope of destinations beyond the link (`RT_SCOPE_UNIVERSE`, linux/rtnetlink.h).
pub const SCOPE_UNIVERSE: u8 = 0;
/// Scope of destinations on the link (`RT_SCOPE_LINK`, linux/rtnetlink.h).
pub const SCOPE_LINK: u8 = 253;
/// Scope of addresses of this host (`RT_SCOPE_HOST`, linux/rtnetlink.h).
pub const SCOPE_HOST: u8 = 254;
/// Matches any scope when removing a route (`RT_SCOPE_NOWHERE`, linux/rtnetlink.h).
const SCOPE_NOWHERE: u8 = 255;
/// Protocol of routes that the kernel adds for an address (`RTPROT_KERNEL`, linux/rtnetlink.h).
pub const PROTOCOL_KERNEL: u8 = 2;
/// Protocol that `ip route` and the Go plugins use (`RTPROT_BOOT`, linux/rtnetlink.h).
pub const PROTOCOL_BOOT: u8 = 3;
/// Forwards packets to the next hop (`RTN_UNICAST`, linux/rtnetlink.h).
pub const KIND_UNICAST: u8 = 1;
/// Delivers packets locally (`RTN_LOCAL`, linux/rtnetlink.h).
pub const KIND_LOCAL: u8 = 2;
/// Drops packets silently (`RTN_BLACKHOLE`, linux/rtnetlink.h).
pub const KIND_BLACKHOLE: u8 = 6;

/// Length of `struct rtmsg`.
const HEADER_LEN: usize = 12;

/// A route, to be added or as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Route {
    /// Destination; host bits are cleared when the request is built.
    pub dst: IpNet,
    /// Gateway; may be of the other address family (`via inet6`).
    pub gateway: Option<IpAddr>,
    /// Outgoing link.
    pub oif: Option<IfIndex>,
    /// Preferred source address.
    pub src: Option<IpAddr>,
    /// Routing table.
    pub table: u32,
    /// Scope (`RT_SCOPE_*`); `None` chooses the scope as `ip route` does.
    pub scope: Option<u8>,
    /// Protocol that added the route (`RTPROT_*`).
    pub protocol: u8,
    /// Type (`RTN_*`).
    pub kind: u8,
    /// Metric; `None` leaves the choice to the kernel (IPv4: 0, IPv6: 1024).
    pub priority: Option<u32>,
    /// Path MTU.
    pub mtu: Option<u32>,
    /// Advertised maximum segment size of TCP.
    pub advmss: Option<u32>,
    /// The gateway is on the link even if no route covers it.
    pub onlink: bool,
    /// Next hop object instead of gateway and link. When read, gateway and link are those of the
    /// object.
    pub nexthop: Option<u32>,
}

impl Route {
    /// Returns a unicast route in the main table, as `ip route add` creates it.
    pub fn new(dst: IpNet) -> Self {
        Self {
            dst,
            gateway: None,
            oif: None,
            src: None,
            table: TABLE_MAIN,
            scope: None,
            protocol: PROTOCOL_BOOT,
            kind: KIND_UNICAST,
            priority: None,
            mtu: None,
            advmss: None,
            onlink: false,
            nexthop: None,
        }
    }

    /// Sets the gateway.
    #[must_use]
    pub fn via(self, gateway: IpAddr) -> Self {
        Self { gateway: Some(gateway), ..self }
    }

    /// Sets the outgoing link.
    #[must_use]
    pub fn dev(self, oif: IfIndex) -> Self {
        Self { oif: Some(oif), ..self }
    }

    /// Sets the next hop object, see [`crate::nexthop`].
    #[must_use]
    pub fn via_nexthop(self, nexthop: u32) -> Self {
        Self { nexthop: Some(nexthop), ..self }
    }

    fn default_scope(&self) -> u8 {
        match self.kind {
            _ if self.dst.addr().is_ipv6() => SCOPE_UNIVERSE,
            KIND_LOCAL => SCOPE_HOST,
            KIND_UNICAST if self.gateway.is_none() && self.nexthop.is_none() => SCOPE_LINK,
            _ => SCOPE_UNIVERSE,
        }
    }
}

/// Returns the destination of the default route.
pub fn default_dst(family: Family) -> IpNet {
    match family {
        Family::V4 => Ipv4Net::default().into(),
        Family::V6 => Ipv6Net::default().into(),
    }
}

/// Adds a route; fails if a route to this destination with this priority exists.
pub fn add(route: &Route) -> Request {
    request("add route", RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, route)
}

/// Adds a route before other routes to this destination; fails if an equal route exists.
pub fn create(route: &Route) -> Request {
    request("create route", RTM_NEWROUTE, NLM_F_CREATE, route)
}

/// Adds a route, or replaces the first one to this destination with this priority.
pub fn replace(route: &Route) -> Request {
    request("replace route", RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, route)
}

/// Removes a route that matches all given attributes, including the protocol.
pub fn remove(route: &Route) -> Request {
    let any_scope = Route { scope: route.scope.or(Some(SCOPE_NOWHERE)), ..route.clone() };
    request("remove route", RTM_DELROUTE, 0, &any_scope)
}

fn request(op: &'static str, kind: u16, nlm_flags: u16, route: &Route) -> Request {
    let mut message = Message::new(kind, nlm_flags);
    let mut header = [0; HEADER_LEN];
    header[0] = Family::of(route.dst.addr()).number();
    header[1] = route.dst.prefix_len();
    // A table number above 255 does not fit into the header and is only in RTA_TABLE.
    header[4] = u8::try_from(route.table).unwrap_or(0);
    header[5] = route.protocol;
    header[6] = route.scope.unwrap_or_else(|| route.default_scope());
    header[7] = route.kind;
    let flags = if route.onlink { RTNH_F_ONLINK } else { 0 };
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    message.header(&header);
    put_attrs(&mut message, route);
    Request::with_parsed_object(op, message, object)
}

fn put_attrs(message: &mut Message, route: &Route) {
    if route.dst.prefix_len() > 0 {
        put_ip(message, RTA_DST, route.dst.network());
    }
    match route.gateway {
        Some(gateway) if gateway.is_ipv4() == route.dst.addr().is_ipv4() => {
            put_ip(message, RTA_GATEWAY, gateway);
        }
        Some(gateway) => put_via(message, gateway),
        None => {}
    }
    if let Some(oif) = route.oif {
        message.u32(RTA_OIF, oif.0);
    }
    if let Some(src) = route.src {
        put_ip(message, RTA_PREFSRC, src);
    }
    if route.table > u32::from(u8::MAX) {
        message.u32(RTA_TABLE, route.table);
    }
    if let Some(priority) = route.priority {
        message.u32(RTA_PRIORITY, priority);
    }
    if let Some(nexthop) = route.nexthop {
        message.u32(RTA_NH_ID, nexthop);
    }
    if route.mtu.is_some() || route.advmss.is_some() {
        message.nest(RTA_METRICS, |metrics| {
            for (kind, value) in [(RTAX_MTU, route.mtu), (RTAX_ADVMSS, route.advmss)] {
                if let Some(value) = value {
                    metrics.u32(kind, value);
                }
            }
        });
    }
}

/// Writes a `struct rtvia`: the family, then the address.
fn put_via(message: &mut Message, gateway: IpAddr) {
    let mut via = u16::from(Family::of(gateway).number()).to_ne_bytes().to_vec();
    match gateway {
        IpAddr::V4(ip) => via.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => via.extend_from_slice(&ip.octets()),
    }
    message.bytes(RTA_VIA, &via);
}

fn object(payload: &[u8]) -> Option<String> {
    let route = parse(payload, Family::from_number(*payload.first()?)?)?;
    let mut text = route.dst.to_string();
    if let Some(gateway) = route.gateway {
        text += &format!(" via {gateway}");
    }
    if let Some(oif) = route.oif {
        text += &format!(" dev {oif}");
    }
    if let Some(nexthop) = route.nexthop {
        text += &format!(" by next hop {nexthop}");
    }
    if route.table != TABLE_MAIN {
        text += &format!(" table {}", route.table);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_route_has_golden_bytes() {
        // ip route add default via 10.1.2.1 dev <index 2>
        let route =
            Route::new(default_dst(Family::V4)).via("10.1.2.1".parse().unwrap()).dev(IfIndex(2));
        assert_eq!(
            add(&route).message.to_bytes(),
            [
                44, 0, 0, 0, 24, 0, 0x01, 0x06, 0, 0, 0, 0, 0, 0, 0, 0, //
                2, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0, // rtmsg
                8, 0, 5, 0, 10, 1, 2, 1, // RTA_GATEWAY
                8, 0, 4, 0, 2, 0, 0, 0, // RTA_OIF
            ]
        );
        assert_eq!(add(&route).object(), "0.0.0.0/0 via 10.1.2.1 dev #2");
    }

    #[test]
    fn link_route_in_high_table_has_golden_bytes() {
        // ip route replace 10.1.2.0/24 dev <index 2> table 1000 metric 5 mtu 1400 advmss 1360
        let route = Route {
            table: 1000,
            priority: Some(5),
            mtu: Some(1400),
            advmss: Some(1360),
            ..Route::new("10.1.2.3/24".parse().unwrap()).dev(IfIndex(2))
        };
        assert_eq!(
            replace(&route).message.to_bytes()[6..],
            [
                0x01, 0x05, 0, 0, 0, 0, 0, 0, 0, 0, //
                2, 24, 0, 0, 0, 3, 253, 1, 0, 0, 0, 0, //
                8, 0, 1, 0, 10, 1, 2, 0, // RTA_DST, host bits cleared
                8, 0, 4, 0, 2, 0, 0, 0, //
                8, 0, 15, 0, 0xe8, 3, 0, 0, // RTA_TABLE
                8, 0, 6, 0, 5, 0, 0, 0, // RTA_PRIORITY
                20, 0, 8, 0x80, 8, 0, 2, 0, 0x78, 5, 0, 0, 8, 0, 8, 0, 0x50, 5, 0, 0,
            ]
        );
    }

    #[test]
    fn route_via_nexthop_has_golden_bytes() {
        // ip route replace 10.5.94.0/24 nhid 7 proto 97
        let route =
            Route { protocol: 97, ..Route::new("10.5.94.0/24".parse().unwrap()).via_nexthop(7) };
        let request = replace(&route);
        assert_eq!(
            request.message.to_bytes()[16..],
            [
                2, 24, 0, 0, 254, 97, 0, 1, 0, 0, 0, 0, // rtmsg
                8, 0, 1, 0, 10, 5, 94, 0, // RTA_DST
                8, 0, 30, 0, 7, 0, 0, 0, // RTA_NH_ID
            ]
        );
        assert_eq!(request.object(), "10.5.94.0/24 by next hop 7");
    }

    #[test]
    fn route_via_ipv6_gateway_has_golden_bytes() {
        // ip route add 10.0.0.0/8 via inet6 fe80::1 dev <index 2> onlink
        let route = Route {
            onlink: true,
            ..Route::new("10.0.0.0/8".parse().unwrap())
                .via("fe80::1".parse().unwrap())
                .dev(IfIndex(2))
        };
        let bytes = create(&route).message.to_bytes();
        assert_eq!(bytes[24..28], [4, 0, 0, 0]); // RTNH_F_ONLINK
        assert_eq!(bytes[36..42], [22, 0, 18, 0, 10, 0]); // RTA_VIA, AF_INET6
    }
}
