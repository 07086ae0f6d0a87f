// SPDX-License-Identifier: Apache-2.0
//! IP packets as bytes: parsing, and the changes that a tunnel makes. Pure.

pub(crate) mod checksum;
pub(crate) mod icmp;
pub(crate) mod merge;
#[cfg(test)]
pub(crate) mod sample;
pub(crate) mod segment;
pub(crate) mod vnet;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kernel::Family;

pub(crate) const TCP: u8 = 6; // linux/in.h
pub(crate) const UDP: u8 = 17; // linux/in.h
pub(crate) const ICMP: u8 = 1; // linux/in.h
pub(crate) const ICMPV6: u8 = 58; // linux/in6.h

pub(crate) const IPV4_HEADER: usize = 20;
pub(crate) const IPV6_HEADER: usize = 40;

/// The parsed IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ip {
    pub family: Family,
    /// Offset of the payload; for IPv6, the length of the fixed header.
    pub header: usize,
    /// Protocol of the payload; for IPv6, the type of the header after the fixed one.
    pub protocol: u8,
    /// Total length according to the header.
    pub len: usize,
    pub source: IpAddr,
    pub destination: IpAddr,
}

impl Ip {
    /// Returns `None` if the bytes are not an IP packet or are truncated.
    pub(crate) fn parse(packet: &[u8]) -> Option<Ip> {
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

/// Position of a packet among the fragments of a larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment {
    Whole,
    First,
    Later,
}

impl Fragment {
    /// Parses an IPv4 header. An IPv6 fragment has an extension header, so its protocol is not TCP
    /// or UDP.
    pub(crate) fn of(packet: &[u8], ip: &Ip) -> Fragment {
        let field = if ip.family == Family::V4 { u16_at(packet, 6) } else { 0 };
        match (field & 0x1fff, field & 0x2000) {
            (0, 0) => Fragment::Whole,
            (0, _) => Fragment::First,
            _ => Fragment::Later,
        }
    }
}

/// Decrements the TTL or hop limit and returns `false` if it has expired.
///
/// Only the sending end of a tunnel does this (RFC 2003). flannel decrements at both ends, which
/// shortens a path by one more router.
pub(crate) fn decrement_ttl(packet: &mut [u8], ip: &Ip) -> bool {
    let at = if ip.family == Family::V4 { 8 } else { 7 };
    if packet[at] <= 1 {
        return false;
    }
    let before = u16_at(packet, 8);
    packet[at] -= 1;
    if ip.family == Family::V4 {
        // RFC 1624, equation 3: an incorrect checksum stays incorrect.
        let kept = [!u16_at(packet, 10), !before, u16_at(packet, 8)];
        set_u16(packet, 10, !checksum::fold(kept.map(u64::from).iter().sum()));
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

/// Converts a length that was checked to fit its 16-bit field.
pub(crate) fn short(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::sample::{Tcp, header_is_valid};

    #[test]
    fn decrement_keeps_the_header_checksum_valid() {
        for ttl in 2..=255_u8 {
            let mut packet = Tcp { ttl, ..Tcp::default() }.packet();
            let ip = Ip::parse(&packet).unwrap();
            assert!(decrement_ttl(&mut packet, &ip));
            assert_eq!(packet[8], ttl - 1);
            assert!(header_is_valid(&packet), "{ttl}");
            let mut packet = Tcp { ttl, ..Tcp::v6() }.packet();
            let ip = Ip::parse(&packet).unwrap();
            assert!(decrement_ttl(&mut packet, &ip));
            assert_eq!(packet[7], ttl - 1);
        }
    }

    #[test]
    fn decrement_of_expired_ttl_fails() {
        for ttl in [0, 1] {
            for sample in [Tcp::default(), Tcp::v6()] {
                let mut packet = Tcp { ttl, ..sample }.packet();
                let ip = Ip::parse(&packet).unwrap();
                assert!(!decrement_ttl(&mut packet, &ip));
            }
        }
    }

    #[test]
    fn decrement_keeps_an_invalid_checksum_invalid() {
        let mut packet = Tcp::default().packet();
        packet[10] ^= 1;
        let ip = Ip::parse(&packet).unwrap();
        decrement_ttl(&mut packet, &ip);
        assert!(!header_is_valid(&packet));
    }

    #[test]
    fn truncated_packets_are_rejected() {
        for sample in [Tcp::default(), Tcp::v6()] {
            let packet = sample.packet();
            assert_eq!(Ip::parse(&packet).unwrap().len, packet.len());
            for len in 0..packet.len() {
                assert_eq!(Ip::parse(&packet[..len]), None, "{len}");
            }
        }
        assert_eq!(Ip::parse(&[0x20; 60]), None);
    }
}
