// SPDX-License-Identifier: Apache-2.0
//! VLANs of bridge ports: the frames that a port accepts, and their tags when they leave. They take
//! effect when the bridge filters VLANs (`link::set_vlan_filtering`), and can be set before.

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

/// Length of `struct br_vlan_msg`.
const VLAN_MSG_LEN: usize = 8;

/// Highest VLAN ID; the lowest is 1.
pub const MAX: u16 = 4094;

/// A range of VLANs of a port with the same options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Vlans {
    /// Lowest VLAN ID.
    pub first: u16,
    /// Highest VLAN ID.
    pub last: u16,
    /// Untagged frames that arrive belong to this VLAN; a port has at most one such VLAN.
    pub pvid: bool,
    /// Frames leave the port untagged.
    pub untagged: bool,
}

impl Vlans {
    /// Returns VLANs whose frames are tagged in both directions.
    pub fn tagged(first: u16, last: u16) -> Self {
        Self { first, last, pvid: false, untagged: false }
    }

    /// Returns a VLAN whose frames are untagged in both directions.
    pub fn native(vlan: u16) -> Self {
        Self { first: vlan, last: vlan, pvid: true, untagged: true }
    }

    /// Returns whether the range contains a VLAN.
    pub fn contains(&self, vlan: u16) -> bool {
        (self.first..=self.last).contains(&vlan)
    }

    fn flags(&self) -> u16 {
        let flag = |on: bool, flag: u16| if on { flag } else { 0 };
        flag(self.pvid, VLAN_INFO_PVID) | flag(self.untagged, VLAN_INFO_UNTAGGED)
    }
}

/// Adds a port to VLANs. The options of VLANs that it already belongs to are changed.
pub fn add(port: IfIndex, vlans: &[Vlans]) -> Request {
    request("add VLANs to", RTM_SETLINK, port, vlans)
}

/// Removes a port from VLANs; VLANs that it does not belong to are ignored.
pub fn remove(port: IfIndex, vlans: &[Vlans]) -> Request {
    request("remove VLANs from", RTM_DELLINK, port, vlans)
}

/// Removes a port from all VLANs. A new port belongs to the bridge's default VLAN.
pub fn remove_all(port: IfIndex) -> Request {
    remove(port, &[Vlans::tagged(1, MAX)])
}

/// Lists the VLANs of a port, or of the bridge itself, in ascending order.
pub fn list(nl: &Netlink, port: IfIndex) -> Result<Vec<Vlans>> {
    let listed = nl.dump("list VLANs", &list_request(port), |payload| {
        (u32_at(payload, 4)? == port.0).then(|| parse_vlan_entries(payload))
    })?;
    Ok(listed.into_iter().flatten().collect())
}

/// Lists the ports of a bridge that belong to this VLAN. The kernel sends the ports of all bridges.
pub fn ports(nl: &Netlink, bridge: IfIndex, vlan: u16) -> Result<Vec<IfIndex>> {
    let mut message = Message::new(RTM_GETLINK, 0);
    let mut header = link::ifinfo(0, 0, 0);
    header[0] = AF_BRIDGE;
    message.header(&header).u32(IFLA_EXT_MASK, RTEXT_FILTER_BRVLAN_COMPRESSED);
    let mut ports = nl.dump("list bridge ports", &message, |payload| {
        let attrs = Attrs::after(payload, IFINFO_LEN);
        let master = attrs.find_kind(IFLA_MASTER).and_then(|attr| attr.u32());
        let vlans = parse_link_vlans(&attrs.find_kind(IFLA_AF_SPEC)?.nested());
        let is_member = master == Some(bridge.0) && vlans.iter().any(|vlans| vlans.contains(vlan));
        u32_at(payload, 4).filter(|_| is_member).map(IfIndex)
    })?;
    // The kernel also lists the bridge itself as one of its ports.
    ports.retain(|port| *port != bridge);
    Ok(ports)
}

/// Returns whether the kernel's bridges filter VLANs and support the request of [`list`]. Call
/// `link::is_supported` for bridges first: it loads the bridge module.
pub fn is_supported(nl: &Netlink) -> Result<bool> {
    // The index does not matter: a kernel that supports the request finds no bridge there.
    let listed: Result<Vec<()>> =
        nl.dump("probe for VLANs of bridges", &list_request(IfIndex(1)), |_| None);
    match listed {
        Err(error) if error.is_unsupported() => Ok(false),
        Err(error) if error.errno == Errno::INVAL || error.is_not_found() => Ok(true),
        other => other.map(|_| true),
    }
}

fn list_request(index: IfIndex) -> Message {
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
            put_vlans(spec, vlans);
        }
    });
    Request::new(op, port.to_string(), message)
}

fn put_vlans(spec: &mut Message, vlans: &Vlans) {
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

/// Parses a `struct bridge_vlan_info`: flags and VLAN ID.
fn parse_info(info: &[u8]) -> Option<(u16, u16)> {
    Some((u16_at(info, 0)?, u16_at(info, 2)?))
}

fn vlans(flags: u16, first: u16, last: u16) -> Vlans {
    let (pvid, untagged) = (flags & VLAN_INFO_PVID != 0, flags & VLAN_INFO_UNTAGGED != 0);
    Vlans { first, last, pvid, untagged }
}

/// Parses the reply to `RTM_GETVLAN`: the first and last ID of a range are in one entry.
fn parse_vlan_entries(payload: &[u8]) -> Vec<Vlans> {
    let all = Attrs::after(payload, VLAN_MSG_LEN);
    let entries = all.filter(|attr| attr.kind == BRIDGE_VLANDB_ENTRY);
    let entry = |attrs: Attrs<'_>| {
        let (flags, first) = parse_info(attrs.find_kind(BRIDGE_VLANDB_ENTRY_INFO)?.payload)?;
        let last = attrs.find_kind(BRIDGE_VLANDB_ENTRY_RANGE).and_then(|attr| attr.u16());
        Some(vlans(flags, first, last.unwrap_or(first)))
    };
    entries.filter_map(|attr| entry(attr.nested())).collect()
}

/// Parses the reply to `RTM_GETLINK`: the first and last ID of a range are in two entries.
fn parse_link_vlans(spec: &Attrs<'_>) -> Vec<Vlans> {
    let mut parsed = Vec::new();
    let mut begin = None;
    for attr in spec.clone().filter(|attr| attr.kind == IFLA_BRIDGE_VLAN_INFO) {
        let Some((flags, vlan)) = parse_info(attr.payload) else { continue };
        if flags & VLAN_INFO_RANGE_BEGIN != 0 {
            begin = Some(vlan);
            continue;
        }
        parsed.push(vlans(flags, begin.take().unwrap_or(vlan), vlan));
    }
    parsed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn add_and_list_have_golden_bytes() {
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
        let listing = list_request(IfIndex(7)).to_bytes();
        assert_eq!(
            (listing[..6].to_vec(), listing[16..].to_vec()),
            (expected[..6].to_vec(), expected[16..].to_vec())
        );
    }

    #[test]
    fn link_vlans_are_parsed() {
        let spec = [8, 0, 2, 0, 6, 0, 1, 0, 8, 0, 2, 0, 8, 0, 200, 0, 8, 0, 2, 0, 16, 0, 0x2c, 1];
        let parsed = parse_link_vlans(&Attrs::new(&spec));
        assert_eq!(parsed, [Vlans::native(1), Vlans::tagged(200, 300)]);
        assert!(parsed[1].contains(200) && parsed[1].contains(300) && !parsed[1].contains(301));
    }

    proptest! {
        #[test]
        fn parser_never_panics(bytes: Vec<u8>) {
            let _ = parse_vlan_entries(&bytes);
            let _ = parse_link_vlans(&Attrs::new(&bytes));
        }
    }
}
