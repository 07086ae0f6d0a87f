// SPDX-License-Identifier: Apache-2.0
//! From a packet as the kernel hands it over to packets as they are on a wire: large ones are cut into
//! segments with headers of their own, and checksums that were left to us are filled in. Payload is summed,
//! never copied.

use std::ops::Range;

use kernel::Family;

use super::vnet::{Kind, Large, Vnet};
use super::{Fragment, Ip, TCP, UDP, set_u16, set_u32, short, sum, u16_at, u32_at};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const CWR: u8 = 0x80;

/// One packet for the wire: a header of its own (none if it is a packet as it was) and a part of the
/// packet that it was cut from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub head: Range<usize>,
    pub body: Range<usize>,
}

impl Piece {
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// The packet makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Calls `each` for every packet that `packet` stands for. New headers are added to `heads`.
pub(crate) fn pieces(
    vnet: &Vnet,
    packet: &mut [u8],
    ip: &Ip,
    heads: &mut Vec<u8>,
    each: impl FnMut(Piece),
) -> Result<(), Malformed> {
    match vnet.large {
        Some(large) => Cut::new(vnet, large, packet, ip)?.all(packet, heads, each),
        None => whole(vnet, packet, each)?,
    }
    Ok(())
}

fn whole(vnet: &Vnet, packet: &mut [u8], mut each: impl FnMut(Piece)) -> Result<(), Malformed> {
    if let Some(checksum) = vnet.checksum
        && !sum::complete(packet, checksum.start, checksum.offset)
    {
        return Err(Malformed);
    }
    each(Piece { head: 0..0, body: 0..packet.len() });
    Ok(())
}

/// A large packet, understood.
struct Cut {
    ip: Ip,
    protocol: u8,
    /// Where the header of TCP or UDP begins.
    transport: usize,
    /// Where the payload begins.
    payload: usize,
    /// Payload of one segment.
    size: usize,
}

impl Cut {
    fn new(vnet: &Vnet, large: Large, packet: &[u8], ip: &Ip) -> Result<Cut, Malformed> {
        let (family, protocol) = match large.kind {
            Kind::TcpV4 => (Family::V4, TCP),
            Kind::TcpV6 => (Family::V6, TCP),
            Kind::Udp => (ip.family, UDP),
        };
        // With extension headers of IPv6 only the kernel knows where.
        let transport = vnet.checksum.map_or(ip.header, |checksum| checksum.start);
        let is_where = match family {
            Family::V4 => transport == ip.header && ip.protocol == protocol,
            Family::V6 => transport >= ip.header,
        };
        let whole = Fragment::of(packet, ip) == Fragment::Whole;
        let fixed = if protocol == TCP { 20 } else { 8 };
        let room = transport + fixed <= ip.len;
        if family != ip.family || !is_where || !whole || !room || large.size == 0 {
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
        Ok(Cut { ip: *ip, protocol, transport, payload, size: usize::from(large.size) })
    }

    fn all(&self, packet: &[u8], heads: &mut Vec<u8>, mut each: impl FnMut(Piece)) {
        let pseudo = sum::pseudo(packet, &self.ip, self.protocol, 0);
        let end = self.ip.len;
        let starts = (self.payload..end).step_by(self.size);
        for (at, start) in starts.enumerate() {
            let body = start..(start + self.size).min(end);
            let head = heads.len()..heads.len() + self.payload;
            heads.extend_from_slice(&packet[..self.payload]);
            let header = &mut heads[head.clone()];
            self.set_ip(header, at, body.len());
            self.set_transport(header, at, body.len(), body.end == end);
            let len = self.payload - self.transport + body.len();
            let own = sum::sum(&header[self.transport..]) + sum::sum(&packet[body.clone()]);
            let checksum = !sum::fold(pseudo + len as u64 + own);
            // Zero means none for UDP, and for TCP the same as this.
            let checksum = if checksum == 0 { 0xffff } else { checksum };
            set_u16(header, self.checksum(), checksum);
            each(Piece { head, body });
        }
    }

    fn set_ip(&self, header: &mut [u8], at: usize, payload: usize) {
        let len = self.payload + payload;
        match self.ip.family {
            Family::V4 => {
                set_u16(header, 2, short(len));
                // Each is a packet of its own, that a router may take apart.
                set_u16(header, 4, u16_at(header, 4).wrapping_add(short(at)));
                set_u16(header, 10, 0);
                let checksum = !sum::fold(sum::sum(&header[..self.ip.header]));
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
            // Said once, in the first.
            transport[13] &= !CWR;
        }
        set_u16(transport, 16, 0);
    }

    /// Where the checksum is.
    fn checksum(&self) -> usize {
        self.transport + if self.protocol == TCP { 16 } else { 6 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::sample::{Tcp, Udp, header_is_right, transport_is_right};
    use crate::packet::vnet::Checksum;

    fn cut(vnet: &Vnet, packet: &mut [u8]) -> Vec<Vec<u8>> {
        let ip = Ip::of(packet).unwrap();
        let (mut heads, mut found) = (Vec::new(), Vec::new());
        pieces(vnet, packet, &ip, &mut heads, |piece| found.push(piece)).unwrap();
        let bytes = |piece: Piece| [&heads[piece.head], &packet[piece.body]].concat();
        found.into_iter().map(bytes).collect()
    }

    #[test]
    fn segments_have_headers_of_their_own() {
        for sample in [Tcp::default(), Tcp::v6()] {
            let sample = Tcp { payload: 3000, flags: 0x10 | PSH | FIN | CWR, ..sample };
            let cut = cut(&sample.vnet(1400), &mut sample.packet());
            let transport = if sample.is_v6 { 40 } else { 20 };
            assert_eq!(cut.len(), 3);
            for (at, packet) in cut.iter().enumerate() {
                let (is_first, is_last) = (at == 0, at == 2);
                assert_eq!(Ip::of(packet).unwrap().len, packet.len());
                assert!(header_is_right(packet) && transport_is_right(packet), "{at}");
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
    fn large_udp_becomes_datagrams() {
        for is_v6 in [false, true] {
            let sample = Udp { is_v6, payload: 2500 };
            let cut = cut(&sample.vnet(1000), &mut sample.packet());
            let lens: Vec<_> = cut.iter().map(Vec::len).collect();
            let headers = if is_v6 { 48 } else { 28 };
            assert_eq!(lens, [1000, 1000, 500].map(|len| len + headers));
            for packet in &cut {
                assert!(header_is_right(packet) && transport_is_right(packet));
                assert_eq!(usize::from(u16_at(packet, headers - 4)), packet.len() - headers + 8);
            }
        }
    }

    #[test]
    fn checksum_left_to_us_is_filled_in() {
        for sample in [Tcp::default(), Tcp::v6()] {
            let mut packet = sample.packet();
            assert!(!transport_is_right(&packet));
            let vnet = Vnet { large: None, ..sample.vnet(0) };
            let cut = cut(&vnet, &mut packet);
            assert_eq!(cut.len(), 1);
            assert!(header_is_right(&cut[0]) && transport_is_right(&cut[0]));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let sample = Tcp { payload: 3000, ..Tcp::default() };
        let refused = |vnet: Vnet| {
            let mut packet = sample.packet();
            let ip = Ip::of(&packet).unwrap();
            pieces(&vnet, &mut packet, &ip, &mut Vec::new(), |_| {}) == Err(Malformed)
        };
        let good = sample.vnet(1400);
        assert!(!refused(good));
        assert!(refused(sample.vnet(0)));
        let at = |start| Some(Checksum { start, offset: 16 });
        assert!(refused(Vnet { checksum: at(24), ..good }));
        assert!(refused(Vnet { checksum: at(60_000), large: None }));
        let kind = |kind| Some(Large { kind, size: 1400 });
        assert!(refused(Vnet { large: kind(Kind::TcpV6), ..good }));
        assert!(refused(Vnet { large: kind(Kind::Udp), ..good }));
    }
}
