// SPDX-License-Identifier: Apache-2.0
//! Sample packets for tests, built and verified without the code under test.

use super::vnet::{Checksum, Gso, Kind, Vnet};
use super::{TCP, UDP};

/// A TCP packet with a timestamp option, as the kernel delivers it: without a complete checksum.
#[derive(Debug, Clone)]
pub(crate) struct Tcp {
    pub is_v6: bool,
    pub ttl: u8,
    pub id: u16,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub payload: usize,
    /// Varies the payload.
    pub seed: u8,
}

impl Default for Tcp {
    fn default() -> Tcp {
        let (id, seq) = (0xfffe, 0xffff_fc00);
        Tcp { is_v6: false, ttl: 64, id, seq, ack: 7, flags: 0x10, payload: 100, seed: 3 }
    }
}

impl Tcp {
    pub(crate) fn v6() -> Tcp {
        Tcp { is_v6: true, ..Tcp::default() }
    }

    pub(crate) fn packet(&self) -> Vec<u8> {
        let mut tcp = vec![0x30, 0x39, 0x00, 0x50];
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([0x80, self.flags, 0x01, 0xf6, 0, 0, 0, 0]);
        tcp.extend([1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8]);
        tcp.extend(bytes(self.payload, self.seed));
        let checksum = pseudo(self.is_v6, TCP, tcp.len());
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        ip(self.is_v6, TCP, self.ttl, self.id, &tcp)
    }

    /// Builds the packet with valid checksums, as on the wire.
    pub(crate) fn on_wire(&self) -> Vec<u8> {
        let mut packet = self.packet();
        let (at, _) = transport(&packet);
        packet[at + 16..at + 18].copy_from_slice(&[0, 0]);
        let checksum = !transport_sum(&packet);
        packet[at + 16..at + 18].copy_from_slice(&checksum.to_be_bytes());
        packet
    }

    pub(crate) fn vnet(&self, size: u16) -> Vnet {
        let (kind, start) = if self.is_v6 { (Kind::TcpV6, 40) } else { (Kind::TcpV4, 20) };
        Vnet { gso: Some(Gso { kind, size }), checksum: Some(Checksum { start, offset: 16 }) }
    }
}

/// A UDP packet, also without a complete checksum.
#[derive(Debug, Clone)]
pub(crate) struct Udp {
    pub is_v6: bool,
    pub payload: usize,
}

impl Udp {
    pub(crate) fn packet(&self) -> Vec<u8> {
        let len = 8 + self.payload;
        let mut udp = vec![0x30, 0x39, 0x00, 0x35];
        udp.extend((len as u16).to_be_bytes());
        udp.extend(pseudo(self.is_v6, UDP, len).to_be_bytes());
        udp.extend(bytes(self.payload, 1));
        ip(self.is_v6, UDP, 64, 1, &udp)
    }

    pub(crate) fn vnet(&self, size: u16) -> Vnet {
        let start = if self.is_v6 { 40 } else { 20 };
        Vnet {
            gso: Some(Gso { kind: Kind::Udp, size }),
            checksum: Some(Checksum { start, offset: 6 }),
        }
    }
}

fn bytes(count: usize, seed: u8) -> impl Iterator<Item = u8> {
    (0..count).map(move |at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 8) as u8)
}

fn addresses(is_v6: bool) -> Vec<u8> {
    if !is_v6 {
        return vec![10, 244, 1, 2, 10, 244, 2, 2];
    }
    let address = |last: u8| [&[0xfd, 0x44][..], &[0; 13], &[last]].concat();
    [address(1), address(2)].concat()
}

fn ip(is_v6: bool, protocol: u8, ttl: u8, id: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet;
    if is_v6 {
        packet = vec![0x60, 0, 0, 5];
        packet.extend((payload.len() as u16).to_be_bytes());
        packet.extend([protocol, ttl]);
        packet.extend(addresses(true));
    } else {
        packet = vec![0x45, 0];
        packet.extend((20 + payload.len() as u16).to_be_bytes());
        packet.extend(id.to_be_bytes());
        packet.extend([0x40, 0, ttl, protocol, 0, 0]);
        packet.extend(addresses(false));
        let checksum = !plain_sum(&packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    packet.extend(payload);
    packet
}

fn pseudo(is_v6: bool, protocol: u8, len: usize) -> u16 {
    let mut bytes = addresses(is_v6);
    bytes.extend([0, protocol]);
    bytes.extend((len as u32).to_be_bytes());
    plain_sum(&bytes)
}

/// Computes the sum word by word, as in RFC 1071.
pub(crate) fn plain_sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) * 256 + u32::from(*pair.get(1).unwrap_or(&0));
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    sum as u16
}

/// Returns the offset and the protocol of the transport header.
fn transport(packet: &[u8]) -> (usize, u8) {
    match packet[0] >> 4 {
        6 => (40, packet[6]),
        _ => (usize::from(packet[0] & 15) * 4, packet[9]),
    }
}

fn transport_sum(packet: &[u8]) -> u16 {
    let (at, protocol) = transport(packet);
    let addresses = if packet[0] >> 4 == 6 { &packet[8..40] } else { &packet[12..20] };
    let mut bytes = addresses.to_vec();
    bytes.extend([0, protocol]);
    bytes.extend(((packet.len() - at) as u32).to_be_bytes());
    bytes.extend(&packet[at..]);
    plain_sum(&bytes)
}

/// Returns whether the IPv4 header checksum is valid; IPv6 has none.
pub(crate) fn header_is_valid(packet: &[u8]) -> bool {
    packet[0] >> 4 == 6 || plain_sum(&packet[..transport(packet).0]) == 0xffff
}

/// Returns whether the TCP or UDP checksum is valid.
pub(crate) fn transport_is_valid(packet: &[u8]) -> bool {
    transport_sum(packet) == 0xffff
}
