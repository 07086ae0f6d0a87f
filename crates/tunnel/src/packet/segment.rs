// SPDX-License-Identifier: Apache-2.0
//! Turns a packet from the kernel into packets for the wire: segments GSO packets and fills in
//! missing checksums. Payload is summed, never copied.

use std::ops::Range;

use kernel::Family;

use super::vnet::{Gso, Kind, Vnet};
use super::{Fragment, Ip, TCP, UDP, checksum, set_u16, set_u32, short, u16_at, u32_at};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const CWR: u8 = 0x80;

/// One packet for the wire: a new header, empty for an unchanged packet, and a part of the original
/// packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WirePacket {
    /// Position among the new headers.
    pub head: Range<usize>,
    /// Position in the original packet.
    pub body: Range<usize>,
}

impl WirePacket {
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// The packet and its virtio header contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Splits `packet` and passes each packet for the wire to `each`. New headers are appended to
/// `headers`.
pub(crate) fn split(
    vnet: &Vnet,
    packet: &mut [u8],
    ip: &Ip,
    headers: &mut Vec<u8>,
    each: impl FnMut(WirePacket),
) -> Result<(), Malformed> {
    match vnet.gso {
        Some(gso) => Segmenter::new(vnet, gso, packet, ip)?.split(packet, headers, each),
        None => fill_in_checksum(vnet, packet, each)?,
    }
    Ok(())
}

fn fill_in_checksum(
    vnet: &Vnet,
    packet: &mut [u8],
    mut each: impl FnMut(WirePacket),
) -> Result<(), Malformed> {
    if let Some(checksum) = vnet.checksum
        && !checksum::complete(packet, checksum.start, checksum.offset)
    {
        return Err(Malformed);
    }
    each(WirePacket { head: 0..0, body: 0..packet.len() });
    Ok(())
}

/// A GSO packet with parsed headers.
struct Segmenter {
    ip: Ip,
    protocol: u8,
    /// Offset of the TCP or UDP header.
    transport: usize,
    /// Offset of the payload.
    payload: usize,
    /// Payload length of one segment.
    size: usize,
}

impl Segmenter {
    fn new(vnet: &Vnet, gso: Gso, packet: &[u8], ip: &Ip) -> Result<Segmenter, Malformed> {
        let (family, protocol) = match gso.kind {
            Kind::TcpV4 => (Family::V4, TCP),
            Kind::TcpV6 => (Family::V6, TCP),
            Kind::Udp => (ip.family, UDP),
        };
        // With IPv6 extension headers, only the virtio header says where the transport header is.
        let transport = vnet.checksum.map_or(ip.header, |checksum| checksum.start);
        let is_consistent = match family {
            Family::V4 => transport == ip.header && ip.protocol == protocol,
            Family::V6 => transport >= ip.header,
        };
        let is_whole = Fragment::of(packet, ip) == Fragment::Whole;
        let fixed = if protocol == TCP { 20 } else { 8 };
        let has_room = transport + fixed <= ip.len;
        if family != ip.family || !is_consistent || !is_whole || !has_room || gso.size == 0 {
            return Err(Malformed);
        }
        let header = match protocol {
            TCP => usize::from(packet[transport + 12] >> 4) * 4,
            _ => fixed,
        };
        let payload = transport + header;
        if header < fixed || payload >= ip.len {
            return Err(Malformed);
        }
        Ok(Segmenter { ip: *ip, protocol, transport, payload, size: usize::from(gso.size) })
    }

    fn split(&self, packet: &[u8], headers: &mut Vec<u8>, mut each: impl FnMut(WirePacket)) {
        let pseudo = checksum::pseudo(packet, &self.ip, self.protocol, 0);
        let end = self.ip.len;
        let starts = (self.payload..end).step_by(self.size);
        for (at, start) in starts.enumerate() {
            let body = start..(start + self.size).min(end);
            let head = headers.len()..headers.len() + self.payload;
            headers.extend_from_slice(&packet[..self.payload]);
            let header = &mut headers[head.clone()];
            self.set_ip(header, at, body.len());
            self.set_transport(header, at, body.len(), body.end == end);
            let len = self.payload - self.transport + body.len();
            let own =
                checksum::sum(&header[self.transport..]) + checksum::sum(&packet[body.clone()]);
            let checksum = !checksum::fold(pseudo + len as u64 + own);
            // UDP uses 0 for "no checksum"; 0xffff is the same number in ones' complement.
            let checksum = if checksum == 0 { 0xffff } else { checksum };
            set_u16(header, self.checksum_offset(), checksum);
            each(WirePacket { head, body });
        }
    }

    fn set_ip(&self, header: &mut [u8], at: usize, payload: usize) {
        let len = self.payload + payload;
        match self.ip.family {
            Family::V4 => {
                set_u16(header, 2, short(len));
                // Each segment needs its own ID, because a router may fragment it.
                set_u16(header, 4, u16_at(header, 4).wrapping_add(short(at)));
                set_u16(header, 10, 0);
                let checksum = !checksum::fold(checksum::sum(&header[..self.ip.header]));
                set_u16(header, 10, checksum);
            }
            Family::V6 => set_u16(header, 4, short(len - self.ip.header)),
        }
    }

    fn set_transport(&self, header: &mut [u8], at: usize, payload: usize, is_last: bool) {
        let transport = &mut header[self.transport..];
        if self.protocol == UDP {
            set_u16(transport, 4, short(8 + payload));
            set_u16(transport, 6, 0);
            return;
        }
        let before = u32::try_from(at * self.size).unwrap_or(0);
        set_u32(transport, 4, u32_at(transport, 4).wrapping_add(before));
        if !is_last {
            transport[13] &= !(FIN | PSH);
        }
        if at > 0 {
            // Only the first segment carries this flag.
            transport[13] &= !CWR;
        }
        set_u16(transport, 16, 0);
    }

    fn checksum_offset(&self) -> usize {
        self.transport + if self.protocol == TCP { 16 } else { 6 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::sample::{Tcp, Udp, header_is_valid, transport_is_valid};
    use crate::packet::vnet::Checksum;

    fn split_all(vnet: &Vnet, packet: &mut [u8]) -> Vec<Vec<u8>> {
        let ip = Ip::parse(packet).unwrap();
        let (mut headers, mut packets) = (Vec::new(), Vec::new());
        split(vnet, packet, &ip, &mut headers, |one| packets.push(one)).unwrap();
        let bytes = |one: WirePacket| [&headers[one.head], &packet[one.body]].concat();
        packets.into_iter().map(bytes).collect()
    }

    #[test]
    fn tcp_segments_have_valid_headers() {
        for sample in [Tcp::default(), Tcp::v6()] {
            let sample = Tcp { payload: 3000, flags: 0x10 | PSH | FIN | CWR, ..sample };
            let packets = split_all(&sample.vnet(1400), &mut sample.packet());
            let transport = if sample.is_v6 { 40 } else { 20 };
            assert_eq!(packets.len(), 3);
            for (at, packet) in packets.iter().enumerate() {
                let (is_first, is_last) = (at == 0, at == 2);
                assert_eq!(Ip::parse(packet).unwrap().len, packet.len());
                assert!(header_is_valid(packet) && transport_is_valid(packet), "{at}");
                let payload = packet.len() - transport - 32;
                assert_eq!(payload, if is_last { 200 } else { 1400 });
                let seq = sample.seq.wrapping_add(1400 * at as u32);
                assert_eq!(u32_at(packet, transport + 4), seq);
                let flags = packet[transport + 13];
                assert_eq!(flags & (FIN | PSH) != 0, is_last);
                assert_eq!(flags & CWR != 0, is_first);
                if !sample.is_v6 {
                    assert_eq!(u16_at(packet, 4), sample.id.wrapping_add(at as u16));
                }
            }
        }
    }

    #[test]
    fn udp_gso_packet_becomes_datagrams() {
        for is_v6 in [false, true] {
            let sample = Udp { is_v6, payload: 2500 };
            let packets = split_all(&sample.vnet(1000), &mut sample.packet());
            let lens: Vec<_> = packets.iter().map(Vec::len).collect();
            let headers = if is_v6 { 48 } else { 28 };
            assert_eq!(lens, [1000, 1000, 500].map(|len| len + headers));
            for packet in &packets {
                assert!(header_is_valid(packet) && transport_is_valid(packet));
                assert_eq!(usize::from(u16_at(packet, headers - 4)), packet.len() - headers + 8);
            }
        }
    }

    #[test]
    fn missing_checksum_is_filled_in() {
        for sample in [Tcp::default(), Tcp::v6()] {
            let mut packet = sample.packet();
            assert!(!transport_is_valid(&packet));
            let vnet = Vnet { gso: None, ..sample.vnet(0) };
            let packets = split_all(&vnet, &mut packet);
            assert_eq!(packets.len(), 1);
            assert!(header_is_valid(&packets[0]) && transport_is_valid(&packets[0]));
        }
    }

    #[test]
    fn contradicting_headers_are_rejected() {
        let sample = Tcp { payload: 3000, ..Tcp::default() };
        let is_rejected = |vnet: Vnet| {
            let mut packet = sample.packet();
            let ip = Ip::parse(&packet).unwrap();
            split(&vnet, &mut packet, &ip, &mut Vec::new(), |_| {}) == Err(Malformed)
        };
        let valid = sample.vnet(1400);
        assert!(!is_rejected(valid));
        assert!(is_rejected(sample.vnet(0)));
        let at = |start| Some(Checksum { start, offset: 16 });
        assert!(is_rejected(Vnet { checksum: at(24), ..valid }));
        assert!(is_rejected(Vnet { checksum: at(60_000), gso: None }));
        let kind = |kind| Some(Gso { kind, size: 1400 });
        assert!(is_rejected(Vnet { gso: kind(Kind::TcpV6), ..valid }));
        assert!(is_rejected(Vnet { gso: kind(Kind::Udp), ..valid }));
    }
}
