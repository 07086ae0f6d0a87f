// SPDX-License-Identifier: Apache-2.0
//! Neighbours: the MAC address of an IP address on a link (ARP, NDP), and proxy entries, for which
//! the host answers itself. Forwarding entries of bridges and VXLAN are in [`crate::fdb`]. Only the
//! overlay between nodes uses both.

use std::net::IpAddr;

use ::netlink::{Attrs, Message, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, u16_at, u32_at};

use crate::error::Result;
use crate::netlink_ip::{self, put_ip};
use crate::request::{Netlink, Request};
use crate::types::{Family, IfIndex, MacAddr};

pub(crate) const RTM_NEWNEIGH: u16 = 28; // linux/rtnetlink.h
pub(crate) const RTM_DELNEIGH: u16 = 29; // linux/rtnetlink.h
pub(crate) const RTM_GETNEIGH: u16 = 30; // linux/rtnetlink.h

pub(crate) const NDA_DST: u16 = 1; // linux/neighbour.h
pub(crate) const NDA_LLADDR: u16 = 2; // linux/neighbour.h
pub(crate) const NDA_IFINDEX: u16 = 8; // linux/neighbour.h

/// The entry is valid until it is removed (`NUD_PERMANENT`, linux/neighbour.h).
pub const PERMANENT: u16 = 0x80;
/// The host answers for this address (`NTF_PROXY`, linux/neighbour.h).
pub const PROXY: u8 = 0x08;

/// Length of `struct ndmsg`.
pub(crate) const HEADER_LEN: usize = 12;

/// A neighbour, to be added or as read from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Neigh {
    /// Link of the neighbour.
    pub index: IfIndex,
    /// IP address.
    pub ip: IpAddr,
    /// MAC address; `None` for a proxy entry or an unresolved neighbour.
    pub mac: Option<MacAddr>,
    /// State (`NUD_*`).
    pub state: u16,
    /// Flags (`NTF_*`).
    pub flags: u8,
}

impl Neigh {
    /// Returns a permanent neighbour.
    pub fn permanent(index: IfIndex, ip: IpAddr, mac: MacAddr) -> Self {
        Self { index, ip, mac: Some(mac), state: PERMANENT, flags: 0 }
    }

    /// Returns a proxy entry: the host answers for this address on this link.
    pub fn proxy(index: IfIndex, ip: IpAddr) -> Self {
        Self { index, ip, mac: None, state: 0, flags: PROXY }
    }
}

/// Adds a neighbour; fails if it exists.
pub fn add(neigh: &Neigh) -> Request {
    let message = message(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_EXCL, neigh);
    Request::with_parsed_object("add neighbour", message, object)
}

/// Adds a neighbour, or changes the existing one.
pub fn replace(neigh: &Neigh) -> Request {
    let message = message(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, neigh);
    Request::with_parsed_object("replace neighbour", message, object)
}

/// Removes a neighbour.
pub fn remove(neigh: &Neigh) -> Request {
    Request::with_parsed_object("remove neighbour", message(RTM_DELNEIGH, 0, neigh), object)
}

/// Lists the neighbours of an address family, of one link or of all links. The kernel lists proxy
/// entries separately, see [`list_proxies`].
pub fn list(nl: &Netlink, family: Family, index: Option<IfIndex>) -> Result<Vec<Neigh>> {
    dump(nl, family, index, 0)
}

/// Lists the proxy entries.
pub fn list_proxies(nl: &Netlink, family: Family, index: Option<IfIndex>) -> Result<Vec<Neigh>> {
    dump(nl, family, index, PROXY)
}

fn dump(nl: &Netlink, family: Family, index: Option<IfIndex>, flags: u8) -> Result<Vec<Neigh>> {
    let mut message = Message::new(RTM_GETNEIGH, 0);
    message.header(&header(family.number(), 0, 0, flags));
    if let Some(index) = index {
        message.u32(NDA_IFINDEX, index.0);
    }
    let mut neighbours = nl.dump("list neighbours", &message, |payload| parse(payload, family))?;
    // The kernel ignores the filter if the link does not exist, and always for proxy entries.
    neighbours.retain(|neigh| index.is_none_or(|index| index == neigh.index));
    Ok(neighbours)
}

fn object(payload: &[u8]) -> Option<String> {
    let Neigh { ip, index, .. } = parse(payload, Family::from_number(*payload.first()?)?)?;
    Some(format!("{ip} on {index}"))
}

pub(crate) fn header(family: u8, index: u32, state: u16, flags: u8) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0] = family;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..10].copy_from_slice(&state.to_ne_bytes());
    header[10] = flags;
    header
}

fn message(kind: u16, nlm_flags: u16, neigh: &Neigh) -> Message {
    let mut message = Message::new(kind, nlm_flags);
    let family = Family::of(neigh.ip).number();
    message.header(&header(family, neigh.index.0, neigh.state, neigh.flags));
    put_ip(&mut message, NDA_DST, neigh.ip);
    if let Some(mac) = neigh.mac {
        message.bytes(NDA_LLADDR, &mac.0);
    }
    message
}

pub(crate) fn parse(payload: &[u8], family: Family) -> Option<Neigh> {
    if *payload.first()? != family.number() {
        return None;
    }
    let attrs = Attrs::after(payload, HEADER_LEN);
    Some(Neigh {
        index: IfIndex(u32_at(payload, 4)?),
        ip: netlink_ip::ip(attrs.find_kind(NDA_DST)?.payload)?,
        mac: attrs.find_kind(NDA_LLADDR).and_then(|attr| attr.fixed()).map(MacAddr),
        state: u16_at(payload, 8)?,
        flags: *payload.get(10)?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn replace_has_golden_bytes() {
        // ip neighbour replace 10.1.2.3 lladdr 02:00:00:00:00:01 dev <index 3> nud permanent
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let neigh = Neigh::permanent(IfIndex(3), "10.1.2.3".parse().unwrap(), mac);
        assert_eq!(
            replace(&neigh).message.to_bytes(),
            [
                48, 0, 0, 0, 28, 0, 0x01, 0x05, 0, 0, 0, 0, 0, 0, 0, 0, //
                2, 0, 0, 0, 3, 0, 0, 0, 0x80, 0, 0, 0, // ndmsg
                8, 0, 1, 0, 10, 1, 2, 3, // NDA_DST
                10, 0, 2, 0, 2, 0, 0, 0, 0, 1, 0, 0, // NDA_LLADDR, padded
            ]
        );
    }

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
