// SPDX-License-Identifier: Apache-2.0
//! IP packets as bytes: where things are in them, and what a tunnel does to them. Pure.

pub(crate) mod cut;
pub(crate) mod icmp;
pub(crate) mod merge;
#[cfg(test)]
pub(crate) mod sample;
pub(crate) mod sum;
pub(crate) mod vnet;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kernel::Family;

pub(crate) const TCP: u8 = 6; // linux/in.h
pub(crate) const UDP: u8 = 17; // linux/in.h
pub(crate) const ICMP: u8 = 1; // linux/in.h
pub(crate) const ICMPV6: u8 = 58; // linux/in6.h

pub(crate) const IPV4_HEADER: usize = 20;
pub(crate) const IPV6_HEADER: usize = 40;

/// What of an IP packet must be known to carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ip {
    pub family: Family,
    /// Where the payload begins; behind the fixed header for IPv6.
    pub header: usize,
    /// Of the payload; for IPv6 of what follows the fixed header.
    pub protocol: u8,
    /// The length it says it has.
    pub len: usize,
    pub source: IpAddr,
    pub destination: IpAddr,
}

impl Ip {
    /// `None` if it is no IP packet, or one that is cut off.
    pub(crate) fn of(packet: &[u8]) -> Option<Ip> {
        let ip = match packet.first()? >> 4 {
            4 => Ip::v4(packet)?,
            6 => Ip::v6(packet)?,
            _ => return None,
        };
        (ip.header <= ip.len && ip.len <= packet.len()).then_some(ip)
    }

    fn v4(packet: &[u8]) -> Option<Ip> {
        let fixed = packet.first_chunk::<IPV4_HEADER>()?;
        let header = usize::from(fixed[0] & 0xf) * 4;
        Some(Ip {
            family: Family::V4,
            header: (header >= IPV4_HEADER).then_some(header)?,
            protocol: fixed[9],
            len: usize::from(u16_at(fixed, 2)),
            source: Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]).into(),
            destination: Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]).into(),
        })
    }

    fn v6(packet: &[u8]) -> Option<Ip> {
        let fixed = packet.first_chunk::<IPV6_HEADER>()?;
        let address = |at: usize| {
            let octets: [u8; 16] = fixed[at..at + 16].try_into().ok()?;
            Some(IpAddr::from(Ipv6Addr::from(octets)))
        };
        Some(Ip {
            family: Family::V6,
            header: IPV6_HEADER,
            protocol: fixed[6],
            len: IPV6_HEADER + usize::from(u16_at(fixed, 4)),
            source: address(8)?,
            destination: address(24)?,
        })
    }
}

/// Whether it is a later part of a packet, or a part at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment {
    Whole,
    First,
    Later,
}

impl Fragment {
    /// Of an IPv4 header; IPv6 has an extension header for it, which is a protocol that nobody here knows.
    pub(crate) fn of(packet: &[u8], ip: &Ip) -> Fragment {
        let field = if ip.family == Family::V4 { u16_at(packet, 6) } else { 0 };
        match (field & 0x1fff, field & 0x2000) {
            (0, 0) => Fragment::Whole,
            (0, _) => Fragment::First,
            _ => Fragment::Later,
        }
    }
}

/// Takes one from the number of routers that it may still pass; `false` if this one is the last.
///
/// As the sender of a tunnel does (RFC 2003), and the receiver does not. flannel takes one at both ends,
/// which only shortens a path by one more router.
pub(crate) fn take_hop(packet: &mut [u8], ip: &Ip) -> bool {
    let at = if ip.family == Family::V4 { 8 } else { 7 };
    if packet[at] <= 1 {
        return false;
    }
    let before = u16_at(packet, 8);
    packet[at] -= 1;
    if ip.family == Family::V4 {
        // RFC 1624, equation 3: a wrong checksum stays wrong.
        let kept = [!u16_at(packet, 10), !before, u16_at(packet, 8)];
        set_u16(packet, 10, !sum::fold(kept.map(u64::from).iter().sum()));
    }
    true
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn set_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

pub(crate) fn set_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// A length that fits its field by what was checked before.
pub(crate) fn short(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::sample::{Tcp, header_is_right};

    #[test]
    fn hop_is_taken_and_the_checksum_stays_right() {
        for hops in 2..=255_u8 {
            let mut packet = Tcp { hops, ..Tcp::default() }.packet();
            let ip = Ip::of(&packet).unwrap();
            assert!(take_hop(&mut packet, &ip));
            assert_eq!(packet[8], hops - 1);
            assert!(header_is_right(&packet), "{hops}");
            let mut packet = Tcp { hops, ..Tcp::v6() }.packet();
            let ip = Ip::of(&packet).unwrap();
            assert!(take_hop(&mut packet, &ip));
            assert_eq!(packet[7], hops - 1);
        }
    }

    #[test]
    fn last_hop_is_refused() {
        for hops in [0, 1] {
            for sample in [Tcp::default(), Tcp::v6()] {
                let mut packet = Tcp { hops, ..sample }.packet();
                let ip = Ip::of(&packet).unwrap();
                assert!(!take_hop(&mut packet, &ip));
            }
        }
    }

    #[test]
    fn wrong_header_stays_wrong() {
        let mut packet = Tcp::default().packet();
        packet[10] ^= 1;
        let ip = Ip::of(&packet).unwrap();
        take_hop(&mut packet, &ip);
        assert!(!header_is_right(&packet));
    }

    #[test]
    fn packets_cut_off_are_none() {
        for sample in [Tcp::default(), Tcp::v6()] {
            let packet = sample.packet();
            assert_eq!(Ip::of(&packet).unwrap().len, packet.len());
            for len in 0..packet.len() {
                assert_eq!(Ip::of(&packet[..len]), None, "{len}");
            }
        }
        assert_eq!(Ip::of(&[0x20; 60]), None);
    }
}
