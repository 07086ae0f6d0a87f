// SPDX-License-Identifier: Apache-2.0
//! IP packets that are for many: what they are, which of them are carried to other nodes, and what they
//! look like there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use kernel::{Family, MacAddr};

use super::reports::{self, Report};

const UDP: u8 = 17; // linux/in.h
const IGMP: u8 = 2; // linux/in.h
const ICMPV6: u8 = 58; // linux/in6.h
const HOP_BY_HOP: u8 = 0; // linux/in6.h
/// Router solicitations and advertisements, neighbours' likewise, redirects: of one link for ever.
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;
/// Listener queries, reports and leaving, and reports of version 2.
const LISTENERS: [u8; 4] = [130, 131, 132, 143];

/// A packet that somebody sends to many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub to: Many,
    pub content: Content,
}

/// Who it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Many {
    /// All on the link, by an address of all or of all in a subnet.
    All(IpAddr),
    /// Whoever has joined.
    Group(IpAddr),
}

/// What is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Anything, to be carried.
    Any,
    /// Who joins and leaves.
    Reports(Vec<Report>),
    /// What is not for other links.
    Local,
}

impl Packet {
    /// Reads a packet that was sent to many on the link of this subnet. None if it is damaged, or for one
    /// receiver.
    pub fn read(bytes: &[u8], subnet: Option<IpNet>) -> Option<Self> {
        let ip = Ip::read(bytes)?;
        let content = match ip.protocol {
            IGMP => Content::Reports(reports::igmp(ip.payload(bytes))),
            ICMPV6 => match ip.payload(bytes).first() {
                Some(kind) if LISTENERS.contains(kind) => {
                    Content::Reports(reports::mld(ip.payload(bytes)))
                }
                Some(kind) if NEIGHBOUR_DISCOVERY.contains(kind) => Content::Local,
                _ => Content::Any,
            },
            _ => Content::Any,
        };
        Some(Self { source: ip.source, to: many(ip.destination, subnet)?, content })
    }

    /// Whether it is carried at all, for a link of these subnets.
    pub fn is_carried(&self, subnets: &[IpNet]) -> bool {
        let is_of_link = subnets.iter().any(|subnet| subnet.contains(&self.source));
        // Addresses of a link alone are good enough for what is asked and answered on it.
        let is_link_local = matches!((self.source, self.to),
            (IpAddr::V6(source), Many::All(to) | Many::Group(to))
                if source.is_unicast_link_local() && is_of_one_link(to));
        self.content == Content::Any && (is_of_link || is_link_local) && self.to.is_carried()
    }
}

impl Many {
    fn is_carried(self) -> bool {
        match self {
            Self::All(_) => true,
            Self::Group(group) => is_carried(group),
        }
    }

    /// The hardware address that a frame for it has.
    pub fn mac(self) -> MacAddr {
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

/// Whether a group is carried between nodes: not those that routers and hosts of one link use among
/// themselves, but those by which programs find each other.
pub fn is_carried(group: IpAddr) -> bool {
    const MDNS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);
    const LLMNR: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 252);
    const MDNS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb);
    const LLMNR_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 3);
    match group {
        IpAddr::V4(group) if group.octets()[..3] == [224, 0, 0] => [MDNS, LLMNR].contains(&group),
        IpAddr::V4(group) => group.is_multicast(),
        IpAddr::V6(group) => match group.segments()[0] {
            0xff02 => [MDNS_V6, LLMNR_V6].contains(&group),
            // Reserved, or of one interface.
            first if first & 0xf < 2 => false,
            _ => group.is_multicast(),
        },
    }
}

fn is_of_one_link(group: IpAddr) -> bool {
    matches!(group, IpAddr::V6(group) if group.segments()[0] & 0xff0f == 0xff02)
}

fn many(destination: IpAddr, subnet: Option<IpNet>) -> Option<Many> {
    const HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
    const NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let is_of_subnet = subnet.is_some_and(|subnet| {
        destination.is_ipv4() && subnet.prefix_len() < 31 && subnet.broadcast() == destination
    });
    match destination {
        // Nobody reports these, as everybody is in them.
        IpAddr::V4(HOSTS) => Some(Many::All(destination)),
        IpAddr::V6(NODES) => Some(Many::All(destination)),
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some(Many::All(destination)),
        _ if is_of_subnet => Some(Many::All(destination)),
        _ if destination.is_multicast() => Some(Many::Group(destination)),
        _ => None,
    }
}

/// What the broadcast address of the sender's subnet becomes on another node: that of the subnet there. All
/// else stays as it is.
pub fn translate(bytes: &mut [u8], from: Option<IpNet>, to: Option<IpNet>) {
    let (Some(ip), Some(from), Some(to)) = (Ip::read(bytes), from, to) else { return };
    let (IpAddr::V4(old), IpAddr::V4(new)) = (from.broadcast(), to.broadcast()) else { return };
    if ip.destination != IpAddr::V4(old) || from.prefix_len() >= 31 {
        return;
    }
    bytes[16..20].copy_from_slice(&new.octets());
    adjust(bytes, 10, old, new);
    // Of a packet in pieces the first has it. Zero is none.
    let sum_at = ip.start + 6;
    if ip.protocol == UDP
        && ip.is_first
        && bytes.get(sum_at..sum_at + 2).is_some_and(|s| s != [0; 2])
    {
        adjust(bytes, sum_at, old, new);
    }
}

/// A checksum after an address has changed (RFC 1624).
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

/// What headers of IP say.
struct Ip {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// Where the payload begins.
    start: usize,
    /// Where the packet ends: frames may be longer.
    end: usize,
    is_first: bool,
}

impl Ip {
    fn read(bytes: &[u8]) -> Option<Self> {
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
            // What is in a later piece is not known.
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
        // Listener reports have a router alert there.
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

/// The family of a packet, by its first byte.
pub fn family(bytes: &[u8]) -> Option<Family> {
    match bytes.first()? >> 4 {
        4 => Some(Family::V4),
        6 => Some(Family::V6),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests;
