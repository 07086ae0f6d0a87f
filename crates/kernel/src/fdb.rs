// SPDX-License-Identifier: Apache-2.0
//! Forwarding entries: the bridge port or VXLAN peer behind which a MAC address is. Only the
//! overlay between nodes uses them.

use std::net::IpAddr;

use ::netlink::{
    Attrs, Message, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, u16_at, u32_at,
};

use crate::error::Result;
use crate::neigh::{
    HEADER_LEN, NDA_DST, NDA_IFINDEX, NDA_LLADDR, PERMANENT, RTM_DELNEIGH, RTM_GETNEIGH,
    RTM_NEWNEIGH, header,
};
use crate::netlink_ip::{self, AF_BRIDGE, put_ip};
use crate::request::{Netlink, Request};
use crate::types::{IfIndex, MacAddr};

const NDA_VLAN: u16 = 5; // linux/neighbour.h
const NDA_VNI: u16 = 7; // linux/neighbour.h
const NDA_MASTER: u16 = 9; // linux/neighbour.h
const NDA_SRC_VNI: u16 = 11; // linux/neighbour.h

/// The entry belongs to the link itself, such as a VXLAN (`NTF_SELF`, linux/neighbour.h).
pub const SELF: u8 = 0x02;
/// The entry belongs to the link's bridge (`NTF_MASTER`, linux/neighbour.h).
pub const MASTER: u8 = 0x04;

/// A forwarding entry, to be added or as read from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fdb {
    /// Bridge port or VXLAN link.
    pub index: IfIndex,
    /// MAC address.
    pub mac: MacAddr,
    /// Address of the VXLAN peer.
    pub dst: Option<IpAddr>,
    /// VLAN of a bridge entry.
    pub vlan: Option<u16>,
    /// VXLAN network identifier, if it differs from the link's own.
    pub vni: Option<u32>,
    /// Bridge, only when read.
    pub master: Option<IfIndex>,
    /// State (`NUD_*`).
    pub state: u16,
    /// Flags (`NTF_*`): [`SELF`] or [`MASTER`].
    pub flags: u8,
}

impl Fdb {
    /// Returns a permanent entry of a VXLAN link: the MAC address is behind this peer.
    pub fn vxlan(index: IfIndex, mac: MacAddr, dst: IpAddr) -> Self {
        let dst = Some(dst);
        Self { dst, flags: SELF, ..Self::port(index, mac) }
    }

    /// Returns a permanent entry of a bridge: the MAC address is behind this port.
    pub fn port(index: IfIndex, mac: MacAddr) -> Self {
        Self {
            index,
            mac,
            dst: None,
            vlan: None,
            vni: None,
            master: None,
            state: PERMANENT,
            flags: MASTER,
        }
    }
}

/// Adds an entry; fails if one for the MAC address exists.
pub fn add(entry: &Fdb) -> Request {
    request("add forwarding entry", RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_EXCL, entry)
}

/// Adds an entry, or changes the existing one for the MAC address.
pub fn replace(entry: &Fdb) -> Request {
    request("replace forwarding entry", RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, entry)
}

/// Adds one more peer for a MAC address. Used for the all-zero address, to which broadcasts go.
pub fn append(entry: &Fdb) -> Request {
    request("append forwarding entry", RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_APPEND, entry)
}

/// Removes an entry.
pub fn remove(entry: &Fdb) -> Request {
    request("remove forwarding entry", RTM_DELNEIGH, 0, entry)
}

/// Lists the entries of a bridge port or VXLAN link; the kernel filters.
pub fn list(nl: &Netlink, index: IfIndex) -> Result<Vec<Fdb>> {
    let mut message = Message::new(RTM_GETNEIGH, 0);
    message.header(&header(AF_BRIDGE, 0, 0, 0)).u32(NDA_IFINDEX, index.0);
    match nl.dump("list forwarding entries", &message, parse) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        listed => {
            let mut entries = listed?;
            entries.retain(|entry| entry.index == index);
            Ok(entries)
        }
    }
}

fn request(op: &'static str, kind: u16, nlm_flags: u16, entry: &Fdb) -> Request {
    let mut message = Message::new(kind, nlm_flags);
    message.header(&header(AF_BRIDGE, entry.index.0, entry.state, entry.flags));
    message.bytes(NDA_LLADDR, &entry.mac.0);
    if let Some(dst) = entry.dst {
        put_ip(&mut message, NDA_DST, dst);
    }
    if let Some(vlan) = entry.vlan {
        message.u16(NDA_VLAN, vlan);
    }
    if let Some(vni) = entry.vni {
        message.u32(NDA_VNI, vni);
    }
    Request::with_parsed_object(op, message, object)
}

fn object(payload: &[u8]) -> Option<String> {
    let Fdb { mac, dst, index, .. } = parse(payload)?;
    let dst = dst.map_or_else(String::new, |dst| format!(" via {dst}"));
    Some(format!("{mac}{dst} on {index}"))
}

pub(crate) fn parse(payload: &[u8]) -> Option<Fdb> {
    if *payload.first()? != AF_BRIDGE {
        return None;
    }
    let attrs = Attrs::after(payload, HEADER_LEN);
    let number = |kind| attrs.find_kind(kind).and_then(|attr| attr.u32());
    Some(Fdb {
        index: IfIndex(u32_at(payload, 4)?),
        mac: MacAddr(attrs.find_kind(NDA_LLADDR)?.fixed()?),
        dst: attrs.find_kind(NDA_DST).and_then(|attr| netlink_ip::ip(attr.payload)),
        vlan: attrs.find_kind(NDA_VLAN).and_then(|attr| attr.u16()),
        vni: number(NDA_VNI).or_else(|| number(NDA_SRC_VNI)),
        master: number(NDA_MASTER).map(IfIndex),
        state: u16_at(payload, 8)?,
        flags: *payload.get(10)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn append_has_golden_bytes() {
        // bridge fdb append 02:00:00:00:00:01 dev <index 4> dst 192.0.2.7 self permanent
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let entry = Fdb::vxlan(IfIndex(4), mac, "192.0.2.7".parse().unwrap());
        let request = append(&entry);
        assert_eq!(
            request.message.to_bytes(),
            [
                48, 0, 0, 0, 28, 0, 0x01, 0x0c, 0, 0, 0, 0, 0, 0, 0, 0, //
                7, 0, 0, 0, 4, 0, 0, 0, 0x80, 0, 2, 0, // ndmsg
                10, 0, 2, 0, 2, 0, 0, 0, 0, 1, 0, 0, // NDA_LLADDR, padded
                8, 0, 1, 0, 192, 0, 2, 7, // NDA_DST
            ]
        );
        assert_eq!(request.object(), "02:00:00:00:00:01 via 192.0.2.7 on #4");
    }
}
