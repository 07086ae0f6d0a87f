// SPDX-License-Identifier: Apache-2.0
//! VLANs of bridge ports: which frames a port takes, and how they leave it. They count where the
//! bridge filters VLANs (`link::set_vlan_filtering`), and can be set before it does.

use ::netlink::{Attrs, Message, u16_at, u32_at};

use crate::error::Result;
use crate::link::{IFINFO_LEN, IFLA_AF_SPEC, IFLA_MASTER, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK};
use crate::netlink_ip::AF_BRIDGE;
use crate::request::{Netlink, Request};
use crate::types::IfIndex;
use crate::{Errno, link};

const RTM_GETVLAN: u16 = 114; // linux/rtnetlink.h, since Linux 5.6
const BRIDGE_VLANDB_ENTRY: u16 = 1; // linux/if_bridge.h
const BRIDGE_VLANDB_ENTRY_INFO: u16 = 1; // linux/if_bridge.h
const BRIDGE_VLANDB_ENTRY_RANGE: u16 = 2; // linux/if_bridge.h
const IFLA_EXT_MASK: u16 = 29; // linux/if_link.h
const RTEXT_FILTER_BRVLAN_COMPRESSED: u32 = 1 << 2; // linux/rtnetlink.h
const IFLA_BRIDGE_VLAN_INFO: u16 = 2; // linux/if_bridge.h
const VLAN_INFO_PVID: u16 = 1 << 1; // linux/if_bridge.h
const VLAN_INFO_UNTAGGED: u16 = 1 << 2; // linux/if_bridge.h
const VLAN_INFO_RANGE_BEGIN: u16 = 1 << 3; // linux/if_bridge.h
const VLAN_INFO_RANGE_END: u16 = 1 << 4; // linux/if_bridge.h

/// `struct br_vlan_msg`.
const VLAN_MSG_LEN: usize = 8;

/// The highest number of a VLAN; the lowest is 1.
pub const MAX: u16 = 4094;

/// VLANs of consecutive numbers that a port is in, in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Vlans {
    /// The lowest number.
    pub first: u16,
    /// The highest number.
    pub last: u16,
    /// Frames that come in without a tag belong here: for one VLAN of a port only.
    pub pvid: bool,
    /// Frames leave without a tag.
    pub untagged: bool,
}

impl Vlans {
    /// Frames have a tag on both ways.
    pub fn tagged(first: u16, last: u16) -> Self {
        Self { first, last, pvid: false, untagged: false }
    }

    /// Frames have no tag on either way.
    pub fn native(vlan: u16) -> Self {
        Self { first: vlan, last: vlan, pvid: true, untagged: true }
    }

    /// Whether a VLAN is among them.
    pub fn contains(&self, vlan: u16) -> bool {
        (self.first..=self.last).contains(&vlan)
    }

    fn flags(&self) -> u16 {
        let flag = |on: bool, flag: u16| if on { flag } else { 0 };
        flag(self.pvid, VLAN_INFO_PVID) | flag(self.untagged, VLAN_INFO_UNTAGGED)
    }
}

/// Puts a port into VLANs. One that it is in already is changed to what is said here.
pub fn add(port: IfIndex, vlans: &[Vlans]) -> Request {
    request("add VLANs to", RTM_SETLINK, port, vlans)
}

/// Takes a port out of VLANs; those it is not in are passed over.
pub fn remove(port: IfIndex, vlans: &[Vlans]) -> Request {
    request("remove VLANs from", RTM_DELLINK, port, vlans)
}

/// Takes a port out of all VLANs: a new one is in the bridge's default VLAN.
pub fn remove_all(port: IfIndex) -> Request {
    remove(port, &[Vlans::tagged(1, MAX)])
}

/// The VLANs of one port, or of a bridge itself, in ascending order.
pub fn list(nl: &Netlink, port: IfIndex) -> Result<Vec<Vlans>> {
    let found = nl.dump("list VLANs", &question(port), |payload| {
        (u32_at(payload, 4)? == port.0).then(|| entries(payload))
    })?;
    Ok(found.into_iter().flatten().collect())
}

/// The ports of a bridge that are in this VLAN. It reads the ports of all bridges.
pub fn ports(nl: &Netlink, bridge: IfIndex, vlan: u16) -> Result<Vec<IfIndex>> {
    let mut message = Message::new(RTM_GETLINK, 0);
    let mut header = link::ifinfo(0, 0, 0);
    header[0] = AF_BRIDGE;
    message.header(&header).u32(IFLA_EXT_MASK, RTEXT_FILTER_BRVLAN_COMPRESSED);
    let mut found = nl.dump("list bridge ports", &message, |payload| {
        let attrs = Attrs::after(payload, IFINFO_LEN);
        let master = attrs.find_kind(IFLA_MASTER).and_then(|attr| attr.u32());
        let vlans = ranges(&attrs.find_kind(IFLA_AF_SPEC)?.nested());
        let is_in = master == Some(bridge.0) && vlans.iter().any(|vlans| vlans.contains(vlan));
        u32_at(payload, 4).filter(|_| is_in).map(IfIndex)
    })?;
    // The bridge itself is shown as a port of its own.
    found.retain(|port| *port != bridge);
    Ok(found)
}

/// Whether bridges of this kernel can filter VLANs (and tell of it in the way that [`list`] asks). It
/// must have been asked for bridges before (`link::is_supported`), which loads their module.
pub fn is_supported(nl: &Netlink) -> Result<bool> {
    // Any number will do: a kernel that knows the question finds no bridge there.
    let asked: Result<Vec<()>> =
        nl.dump("ask for VLANs of bridges", &question(IfIndex(1)), |_| None);
    match asked {
        Err(error) if error.is_unsupported() => Ok(false),
        Err(error) if error.errno == Errno::INVAL || error.is_not_found() => Ok(true),
        other => other.map(|_| true),
    }
}

fn question(index: IfIndex) -> Message {
    let mut header = [0; VLAN_MSG_LEN];
    header[0] = AF_BRIDGE;
    header[4..8].copy_from_slice(&index.0.to_ne_bytes());
    let mut message = Message::new(RTM_GETVLAN, 0);
    message.header(&header);
    message
}

fn request(op: &'static str, kind: u16, port: IfIndex, vlans: &[Vlans]) -> Request {
    let mut header = link::ifinfo(port.0, 0, 0);
    header[0] = AF_BRIDGE;
    let mut message = Message::new(kind, 0);
    message.header(&header).nest(IFLA_AF_SPEC, |spec| {
        for vlans in vlans {
            put(spec, vlans);
        }
    });
    Request::new(op, port.to_string(), message)
}

fn put(spec: &mut Message, vlans: &Vlans) {
    let mut info = |flags: u16, vlan: u16| {
        let [a, b] = flags.to_ne_bytes();
        let [c, d] = vlan.to_ne_bytes();
        spec.bytes(IFLA_BRIDGE_VLAN_INFO, &[a, b, c, d]);
    };
    if vlans.first == vlans.last {
        return info(vlans.flags(), vlans.first);
    }
    info(vlans.flags() | VLAN_INFO_RANGE_BEGIN, vlans.first);
    info(vlans.flags() | VLAN_INFO_RANGE_END, vlans.last);
}

/// `struct bridge_vlan_info`: flags and number.
fn read(info: &[u8]) -> Option<(u16, u16)> {
    Some((u16_at(info, 0)?, u16_at(info, 2)?))
}

fn vlans(flags: u16, first: u16, last: u16) -> Vlans {
    let (pvid, untagged) = (flags & VLAN_INFO_PVID != 0, flags & VLAN_INFO_UNTAGGED != 0);
    Vlans { first, last, pvid, untagged }
}

/// As `RTM_GETVLAN` shows them: the end of a range beside its beginning.
fn entries(payload: &[u8]) -> Vec<Vlans> {
    let all = Attrs::after(payload, VLAN_MSG_LEN);
    let entries = all.filter(|attr| attr.kind == BRIDGE_VLANDB_ENTRY);
    let entry = |attrs: Attrs<'_>| {
        let (flags, first) = read(attrs.find_kind(BRIDGE_VLANDB_ENTRY_INFO)?.payload)?;
        let last = attrs.find_kind(BRIDGE_VLANDB_ENTRY_RANGE).and_then(|attr| attr.u16());
        Some(vlans(flags, first, last.unwrap_or(first)))
    };
    entries.filter_map(|attr| entry(attr.nested())).collect()
}

/// As `RTM_GETLINK` shows them: the end of a range in an entry of its own.
fn ranges(spec: &Attrs<'_>) -> Vec<Vlans> {
    let mut found = Vec::new();
    let mut begin = None;
    for attr in spec.clone().filter(|attr| attr.kind == IFLA_BRIDGE_VLAN_INFO) {
        let Some((flags, vlan)) = read(attr.payload) else { continue };
        if flags & VLAN_INFO_RANGE_BEGIN != 0 {
            begin = Some(vlan);
            continue;
        }
        found.push(vlans(flags, begin.take().unwrap_or(vlan), vlan));
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes() {
        // bridge vlan add dev <index 7> vid 100 pvid untagged
        // bridge vlan add dev <index 7> vid 200-300
        let request = add(IfIndex(7), &[Vlans::native(100), Vlans::tagged(200, 300)]);
        let expected = [
            60, 0, 0, 0, 19, 0, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, // nlmsghdr
            7, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // ifinfomsg
            28, 0, 26, 0x80, // IFLA_AF_SPEC
            8, 0, 2, 0, 6, 0, 100, 0, // pvid and untagged
            8, 0, 2, 0, 8, 0, 200, 0, 8, 0, 2, 0, 16, 0, 0x2c, 1, // begin and end
        ];
        assert_eq!(request.message.to_bytes(), expected);
        // bridge vlan show dev <index 7>
        let expected = [24, 0, 0, 0, 114, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 7, 0, 0, 0];
        let asked = question(IfIndex(7)).to_bytes();
        assert_eq!(
            (asked[..6].to_vec(), asked[16..].to_vec()),
            (expected[..6].to_vec(), expected[16..].to_vec())
        );
    }

    #[test]
    fn ranges_are_read() {
        let spec = [8, 0, 2, 0, 6, 0, 1, 0, 8, 0, 2, 0, 8, 0, 200, 0, 8, 0, 2, 0, 16, 0, 0x2c, 1];
        let found = ranges(&Attrs::new(&spec));
        assert_eq!(found, [Vlans::native(1), Vlans::tagged(200, 300)]);
        assert!(found[1].contains(200) && found[1].contains(300) && !found[1].contains(301));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes: Vec<u8>) {
            let _ = entries(&bytes);
            let _ = ranges(&Attrs::new(&bytes));
        }
    }
}
