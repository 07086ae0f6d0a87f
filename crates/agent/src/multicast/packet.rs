// SPDX-License-Identifier: Apache-2.0
//! Multicast and broadcast packets: parsing, which of them are forwarded to other nodes, and how they are rewritten
//! there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use kernel::{Family, MacAddr};

use super::igmp::{self, Report};

const UDP: u8 = 17; // linux/in.h
const IGMP: u8 = 2; // linux/in.h
const ICMPV6: u8 = 58; // linux/in6.h
const HOP_BY_HOP: u8 = 0; // linux/in6.h
/// Router solicitations and advertisements, neighbours' likewise, redirects: of one link for ever.
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;
/// MLD queries, reports and leave messages.
const LISTENERS: [u8; 4] = [130, 131, 132, 143];

/// A packet to more than one receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packet {
    pub source: IpAddr,
    pub to: Destination,
    pub content: Content,
}

/// The receivers of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    /// All hosts of the link: broadcast, subnet broadcast, all-hosts and all-nodes.
    All(IpAddr),
    /// Members of a group.
    Group(IpAddr),
}

/// The content of a packet, as far as it matters for forwarding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// Any content that may be forwarded.
    Any,
    /// Reports of group memberships.
    Reports(Vec<Report>),
    /// Messages that belong to one link, such as neighbour discovery.
    Local,
}

impl Packet {
    /// Parses a packet on the link of this subnet. Returns `None` if the packet is malformed or has a unicast
    /// destination.
    pub(super) fn parse(bytes: &[u8], subnet: Option<IpNet>) -> Option<Self> {
        let ip = Ip::parse(bytes)?;
        let content = match ip.protocol {
            IGMP => Content::Reports(igmp::parse_igmp(ip.payload(bytes))),
            ICMPV6 => match ip.payload(bytes).first() {
                Some(kind) if LISTENERS.contains(kind) => {
                    Content::Reports(igmp::parse_mld(ip.payload(bytes)))
                }
                Some(kind) if NEIGHBOUR_DISCOVERY.contains(kind) => Content::Local,
                _ => Content::Any,
            },
            _ => Content::Any,
        };
        Some(Self { source: ip.source, to: destination(ip.destination, subnet)?, content })
    }

    /// Whether a packet of a link with these subnets is forwarded.
    pub(super) fn is_forwarded(&self, subnets: &[IpNet]) -> bool {
        let is_of_link = subnets.iter().any(|subnet| subnet.contains(&self.source));
        // A link-local source is fine for a link-local group.
        let is_link_local = matches!((self.source, self.to),
            (IpAddr::V6(source), Destination::All(to) | Destination::Group(to))
                if source.is_unicast_link_local() && is_link_local_group(to));
        self.content == Content::Any && (is_of_link || is_link_local) && self.to.is_forwarded()
    }
}

impl Destination {
    fn is_forwarded(self) -> bool {
        match self {
            Self::All(_) => true,
            Self::Group(group) => is_forwarded(group),
        }
    }

    /// The destination MAC address of a frame.
    pub(super) fn mac(self) -> MacAddr {
        match self {
            Self::All(IpAddr::V4(_)) => kernel::socket::packet::BROADCAST,
            Self::Group(IpAddr::V4(group)) => {
                let [_, b, c, d] = group.octets();
                MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d])
            }
            Self::All(IpAddr::V6(group)) | Self::Group(IpAddr::V6(group)) => {
                let [.., a, b, c, d] = group.octets();
                MacAddr([0x33, 0x33, a, b, c, d])
            }
        }
    }
}

/// Whether a group is forwarded between nodes. Groups of link-local protocols are not, except those for service
/// discovery.
pub(super) fn is_forwarded(group: IpAddr) -> bool {
    const MDNS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);
    const LLMNR: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 252);
    const MDNS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb);
    const LLMNR_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 3);
    match group {
        IpAddr::V4(group) if group.octets()[..3] == [224, 0, 0] => [MDNS, LLMNR].contains(&group),
        IpAddr::V4(group) => group.is_multicast(),
        IpAddr::V6(group) => match group.segments()[0] {
            0xff02 => [MDNS_V6, LLMNR_V6].contains(&group),
            // Reserved or interface-local scope.
            first if first & 0xf < 2 => false,
            _ => group.is_multicast(),
        },
    }
}

fn is_link_local_group(group: IpAddr) -> bool {
    matches!(group, IpAddr::V6(group) if group.segments()[0] & 0xff0f == 0xff02)
}

fn destination(address: IpAddr, subnet: Option<IpNet>) -> Option<Destination> {
    const HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
    const NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let is_subnet_broadcast = subnet.is_some_and(|subnet| {
        address.is_ipv4() && subnet.prefix_len() < 31 && subnet.broadcast() == address
    });
    match address {
        // Hosts do not report these groups, because all hosts are members.
        IpAddr::V4(HOSTS) => Some(Destination::All(address)),
        IpAddr::V6(NODES) => Some(Destination::All(address)),
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some(Destination::All(address)),
        _ if is_subnet_broadcast => Some(Destination::All(address)),
        _ if address.is_multicast() => Some(Destination::Group(address)),
        _ => None,
    }
}

/// Replaces the broadcast address of the sender's subnet by that of the receiver's subnet. Other packets do not change.
pub(super) fn translate(bytes: &mut [u8], from: Option<IpNet>, to: Option<IpNet>) {
    let (Some(ip), Some(from), Some(to)) = (Ip::parse(bytes), from, to) else { return };
    let (IpAddr::V4(old), IpAddr::V4(new)) = (from.broadcast(), to.broadcast()) else { return };
    if ip.destination != IpAddr::V4(old) || from.prefix_len() >= 31 {
        return;
    }
    bytes[16..20].copy_from_slice(&new.octets());
    adjust(bytes, 10, old, new);
    // Only the first fragment has the UDP checksum. Zero means no checksum.
    let sum_at = ip.start + 6;
    if ip.protocol == UDP
        && ip.is_first
        && bytes.get(sum_at..sum_at + 2).is_some_and(|s| s != [0; 2])
    {
        adjust(bytes, sum_at, old, new);
    }
}

/// Updates a checksum after a change of an address (RFC 1624).
fn adjust(bytes: &mut [u8], at: usize, old: Ipv4Addr, new: Ipv4Addr) {
    let word = |bytes: &[u8], at: usize| u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    let (old, new) = (old.octets(), new.octets());
    let mut sum = u32::from(!(word(bytes, at) as u16));
    for half in [0, 2] {
        sum += u32::from(!(word(&old, half) as u16)) + word(&new, half);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    bytes[at..at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// The fields of the IP header that matter here.
struct Ip {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// Offset of the payload.
    start: usize,
    /// Length of the packet. The frame may be longer.
    end: usize,
    /// Whether this is the first fragment, or not fragmented.
    is_first: bool,
}

impl Ip {
    fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => Self::v4(bytes),
            6 => Self::v6(bytes),
            _ => None,
        }
    }

    fn v4(bytes: &[u8]) -> Option<Self> {
        let header = bytes.first_chunk::<20>()?;
        let start = usize::from(header[0] & 0xf) * 4;
        let end = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let is_whole = (20..=end).contains(&start) && end <= bytes.len();
        let address = |at: usize| header[at..].first_chunk::<4>().copied().map(IpAddr::from);
        let offset = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
        is_whole.then_some(Self {
            source: address(12)?,
            destination: address(16)?,
            // A later fragment does not contain the header of the protocol.
            protocol: if offset == 0 { header[9] } else { u8::MAX },
            start,
            end,
            is_first: offset == 0,
        })
    }

    fn v6(bytes: &[u8]) -> Option<Self> {
        let header = bytes.first_chunk::<40>()?;
        let end = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
        let address = |at: usize| header[at..].first_chunk::<16>().copied().map(IpAddr::from);
        let (mut protocol, mut start) = (header[6], 40);
        // MLD reports have a hop-by-hop header with the router alert option.
        if protocol == HOP_BY_HOP {
            protocol = *bytes.get(40)?;
            start += 8 + usize::from(*bytes.get(41)?) * 8;
        }
        (start <= end && end <= bytes.len()).then_some(Self {
            source: address(8)?,
            destination: address(24)?,
            protocol,
            start,
            end,
            is_first: true,
        })
    }

    fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.start..self.end).unwrap_or_default()
    }
}

/// Returns the family of a packet.
pub(super) fn family(bytes: &[u8]) -> Option<Family> {
    match bytes.first()? >> 4 {
        4 => Some(Family::V4),
        6 => Some(Family::V6),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests;
