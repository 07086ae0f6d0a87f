// SPDX-License-Identifier: Apache-2.0
//! Connection tracking: removal of connections whose address translation is outdated.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ::netlink::{Attr, Attrs, Errno, Message, Protocol, Socket};

use crate::error::{Error, Result};

const SUBSYS_CTNETLINK: u16 = 1; // linux/netfilter/nfnetlink.h

// linux/netfilter/nfnetlink_conntrack.h
const IPCTNL_MSG_CT_GET: u16 = 1;
const IPCTNL_MSG_CT_DELETE: u16 = 2;
const NLA_F_NESTED: u16 = 1 << 15; // linux/netlink.h
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_ID: u16 = 12;
const CTA_FILTER: u16 = 25;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_DST_PORT: u16 = 3;
// net/netfilter/nf_internals.h: filters of a dump, since Linux 5.8.
const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;
const CTA_FILTER_F_CTA_PROTO_DST_PORT: u32 = 1 << 5;

/// Length of `struct nfgenmsg`.
const HEADER_LEN: usize = 4;

/// Original destination of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SentTo {
    /// Protocol, such as `IPPROTO_UDP`.
    pub protocol: u8,
    /// Port before address translation.
    pub port: u16,
    /// Address before address translation; `None` for any address.
    pub address: Option<IpAddr>,
}

/// The part of a connection that its removal needs.
struct Connection {
    family: u8,
    tuple: Vec<u8>,
    id: Option<u32>,
}

/// Removes the connections to these destinations and returns their number. Address translation then
/// treats the next packet of each as the first one again. The kernel walks through all connections
/// once per protocol and address family, but sends only those that match.
pub fn remove(sent_to: &[SentTo]) -> Result<usize> {
    const OP: &str = "remove connections";
    let fail = |cause| Error::new(OP, "", cause);
    let socket = Socket::open(Protocol::Netfilter).map_err(fail)?;
    crate::deferred_close::defer_close(&socket);
    let protocols: BTreeSet<u8> = sent_to.iter().map(|one| one.protocol).collect();
    let mut removed = 0;
    let families = [libc::AF_INET, libc::AF_INET6];
    let all = protocols.iter().flat_map(|one| families.map(|family| (*one, family)));
    for (protocol, family) in all {
        let destinations = of_family(sent_to, protocol, family);
        if destinations.is_empty() {
            continue;
        }
        let message = list_request(family, protocol, &destinations);
        let connections = socket.dump(&message, |_, payload| parse(payload, &destinations));
        let connections = match connections {
            // The kernel has no connection tracking for this address family.
            Err(cause) if cause.errno == Errno::OPNOTSUPP || cause.errno == Errno::NOENT => {
                continue;
            }
            other => other.map_err(fail)?,
        };
        let messages: Vec<Message> = connections.iter().map(removal).collect();
        // A removal that fails is of a connection that has ended in the meantime.
        removed += messages.len() - socket.request(&messages).map_err(fail)?.len();
    }
    Ok(removed)
}

/// Returns the destinations of this protocol and address family.
fn of_family(sent_to: &[SentTo], protocol: u8, family: libc::c_int) -> Vec<SentTo> {
    let is_family = |address: IpAddr| address.is_ipv4() == (family == libc::AF_INET);
    let fits = |one: &SentTo| one.protocol == protocol && one.address.is_none_or(is_family);
    sent_to.iter().copied().filter(fits).collect()
}

fn message(kind: u16, family: u8) -> Message {
    let mut message = Message::new(SUBSYS_CTNETLINK << 8 | kind, 0);
    message.header(&[family, 0, 0, 0]);
    message
}

/// Requests the connections to a single port, or all connections of the protocol if there are
/// several ports.
fn list_request(family: libc::c_int, protocol: u8, destinations: &[SentTo]) -> Message {
    let port = match destinations {
        [one] => Some(one.port),
        _ => None,
    };
    let family = u8::try_from(family).unwrap_or_default();
    let mut message = message(IPCTNL_MSG_CT_GET, family);
    message.nest(CTA_TUPLE_ORIG, |tuple| {
        tuple.nest(CTA_TUPLE_PROTO, |proto| {
            proto.u8(CTA_PROTO_NUM, protocol).be16(CTA_PROTO_DST_PORT, port.unwrap_or_default());
        });
    });
    let by_port = port.map_or(0, |_| CTA_FILTER_F_CTA_PROTO_DST_PORT);
    message.nest(CTA_FILTER, |filter| {
        filter.u32(CTA_FILTER_ORIG_FLAGS, CTA_FILTER_F_CTA_PROTO_NUM | by_port);
    });
    message
}

/// Parses a connection; `None` if it has another destination, because older kernels ignore the
/// filter.
fn parse(payload: &[u8], destinations: &[SentTo]) -> Option<Connection> {
    let attrs = Attrs::after(payload, HEADER_LEN);
    let tuple = attrs.find_kind(CTA_TUPLE_ORIG)?;
    let proto = tuple.nested().find_kind(CTA_TUPLE_PROTO)?.nested();
    let protocol = proto.find_kind(CTA_PROTO_NUM)?.u8()?;
    let port = proto.find_kind(CTA_PROTO_DST_PORT)?.be16()?;
    let to = destination(&tuple);
    let is_match = destinations.iter().any(|one| {
        let is_address = one.address.is_none_or(|address| to == Some(address));
        one.protocol == protocol && one.port == port && is_address
    });
    is_match.then(|| Connection {
        family: payload.first().copied().unwrap_or_default(),
        tuple: tuple.payload.to_vec(),
        id: attrs.find_kind(CTA_ID).and_then(|id| id.be32()),
    })
}

fn destination(tuple: &Attr<'_>) -> Option<IpAddr> {
    let ip = tuple.nested().find_kind(CTA_TUPLE_IP)?.nested();
    let v4 = || ip.find_kind(CTA_IP_V4_DST)?.fixed::<4>().map(IpAddr::from);
    v4().or_else(|| ip.find_kind(CTA_IP_V6_DST)?.fixed::<16>().map(IpAddr::from))
}

fn removal(connection: &Connection) -> Message {
    let mut message = message(IPCTNL_MSG_CT_DELETE, connection.family);
    message.bytes(CTA_TUPLE_ORIG | NLA_F_NESTED, &connection.tuple);
    if let Some(id) = connection.id {
        // The ID prevents the removal of a newer connection with the same addresses.
        message.be32(CTA_ID, id);
    }
    message
}
