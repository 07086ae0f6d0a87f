// SPDX-License-Identifier: Apache-2.0
//! From packets as they come off the wire to packets as the kernel takes them: segments of one TCP
//! connection that follow each other become one large packet. The kernel does not look at the checksums
//! of such a packet again, so only segments whose checksums are right are merged; the rules are those of
//! the kernel's own GRO. Payload is summed, never copied.

use kernel::Family;

use super::cut::{FIN, PSH};
use super::vnet::{self, Checksum, Kind, Large, Vnet};
use super::{Fragment, IPV4_HEADER, Ip, TCP, set_u16, short, sum, u16_at, u32_at};

const ACK: u8 = 0x10;
const ECE: u8 = 0x40;
/// Segments in one packet: one that is read back in a few hundred parts would gain nothing.
const MOST: usize = 256;
/// The longest that an IP header can say.
const LONGEST: usize = 65_535;
/// Our header, and the longest of IPv6 and TCP.
const HEAD: usize = vnet::LEN + 40 + 60;

/// A packet for the kernel: a head and the parts behind it.
#[derive(Debug)]
pub(crate) struct Ready<'a> {
    head: [u8; HEAD],
    head_len: usize,
    first: &'a [u8],
    rest: Vec<&'a [u8]>,
}

impl<'a> Ready<'a> {
    fn one(packet: &'a [u8]) -> Ready<'a> {
        Ready { head: [0; HEAD], head_len: vnet::LEN, first: packet, rest: Vec::new() }
    }

    /// In order, to be written as one.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        [&self.head[..self.head_len], self.first].into_iter().chain(self.rest.iter().copied())
    }

    /// How many packets it stands for.
    pub(crate) fn packets(&self) -> usize {
        1 + self.rest.len()
    }
}

/// Takes packets in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Merger<'a> {
    run: Option<Run<'a>>,
}

impl<'a> Merger<'a> {
    /// Takes a packet, and gives the one before if this does not continue it.
    pub(crate) fn push(&mut self, packet: &'a [u8]) -> Option<Ready<'a>> {
        let segment = Segment::of(packet);
        if let (Some(run), Some(segment)) = (&mut self.run, &segment)
            && run.take(segment)
        {
            return None;
        }
        let before = self.finish();
        match segment.filter(Segment::can_begin) {
            Some(segment) => {
                self.run = Some(Run::new(segment));
                before
            }
            // Nothing before: no need to wait for what follows.
            None if before.is_none() => Some(Ready::one(packet)),
            None => {
                self.run = Some(Run::lone(packet));
                before
            }
        }
    }

    /// What is left.
    pub(crate) fn finish(&mut self) -> Option<Ready<'a>> {
        self.run.take().map(Run::ready)
    }
}

/// A whole TCP segment with some payload and no options of IP.
#[derive(Debug, Clone, Copy)]
struct Segment<'a> {
    packet: &'a [u8],
    ip: Ip,
    /// Where the payload begins.
    at: usize,
}

impl<'a> Segment<'a> {
    fn of(packet: &'a [u8]) -> Option<Segment<'a>> {
        let ip = Ip::of(packet)?;
        let is_plain = ip.family == Family::V6 || ip.header == IPV4_HEADER;
        let is_whole = Fragment::of(packet, &ip) == Fragment::Whole && ip.len == packet.len();
        if ip.protocol != TCP || !is_plain || !is_whole || packet.len() < ip.header + 20 {
            return None;
        }
        let header = usize::from(packet[ip.header + 12] >> 4) * 4;
        let at = ip.header + header;
        (header >= 20 && at < packet.len()).then_some(Segment { packet, ip, at })
    }

    fn tcp(&self) -> &'a [u8] {
        &self.packet[self.ip.header..self.at]
    }

    fn payload(&self) -> &'a [u8] {
        &self.packet[self.at..]
    }

    fn flags(&self) -> u8 {
        self.tcp()[13]
    }

    fn can_begin(&self) -> bool {
        let flags = self.flags();
        flags & ACK != 0 && flags & !(ACK | ECE | PSH | FIN) == 0
    }

    /// What all segments of a run have in common, and what not: lengths, number, sequence, checksums.
    fn is_like(&self, first: &Segment<'_>, nth: usize) -> bool {
        let (one, other) = (self.packet, first.packet);
        let same = |parts: &[(usize, usize)]| parts.iter().all(|&(a, b)| one[a..b] == other[a..b]);
        let ip = match first.ip.family {
            Family::V4 => {
                let may_not_be_cut = one[6] & 0x40 != 0;
                let number = u16_at(other, 4).wrapping_add(short(nth));
                same(&[(0, 2), (6, 10), (12, 20)]) && (may_not_be_cut || u16_at(one, 4) == number)
            }
            Family::V6 => same(&[(0, 4), (6, 40)]),
        };
        let (one, other) = (self.tcp(), first.tcp());
        let flags = (one[13] ^ other[13]) & !(PSH | FIN) == 0;
        ip && flags
            && one.len() == other.len()
            && one[..4] == other[..4]
            && one[8..13] == other[8..13]
            && one[14..16] == other[14..16]
            && one[18..] == other[18..]
    }

    fn is_right(&self) -> bool {
        let header = &self.packet[..self.ip.header];
        let is_v4 = self.ip.family == Family::V4;
        if is_v4 && !sum::is_right(sum::sum(header)) {
            return false;
        }
        let tcp = &self.packet[self.ip.header..];
        let pseudo = sum::pseudo(self.packet, &self.ip, TCP, tcp.len());
        sum::is_right(pseudo + sum::sum(tcp))
    }
}

/// Segments that follow each other.
#[derive(Debug)]
struct Run<'a> {
    packet: &'a [u8],
    first: Option<Segment<'a>>,
    rest: Vec<&'a [u8]>,
    /// Of all payload.
    len: usize,
    /// Flags that only the last has.
    last_flags: u8,
    /// Nothing can follow.
    is_closed: bool,
}

impl<'a> Run<'a> {
    fn new(first: Segment<'a>) -> Run<'a> {
        let len = first.payload().len();
        let last_flags = first.flags() & (PSH | FIN);
        let (packet, is_closed) = (first.packet, last_flags != 0);
        Run { packet, first: Some(first), rest: Vec::new(), len, last_flags, is_closed }
    }

    /// A packet that nothing can be added to.
    fn lone(packet: &'a [u8]) -> Run<'a> {
        let rest = Vec::new();
        Run { packet, first: None, rest, len: 0, last_flags: 0, is_closed: true }
    }

    /// Whether the segment continues the run; it is part of it then.
    fn take(&mut self, next: &Segment<'a>) -> bool {
        let Some(first) = self.first else { return false };
        let (size, payload) = (first.payload().len(), next.payload());
        let len = self.len + payload.len();
        let is_next = !self.is_closed
            && payload.len() <= size
            && self.rest.len() + 1 < MOST
            && first.at + len <= LONGEST
            && u32_at(next.tcp(), 4) == self.next_seq(&first)
            && next.is_like(&first, self.rest.len() + 1);
        if !is_next || (self.rest.is_empty() && !self.begins_right(&first)) || !next.is_right() {
            return false;
        }
        self.rest.push(payload);
        self.len = len;
        self.last_flags = next.flags() & (PSH | FIN);
        self.is_closed = payload.len() < size || self.last_flags != 0;
        true
    }

    /// Looked at only when there is a second, as the kernel looks at lone packets itself.
    fn begins_right(&mut self, first: &Segment<'_>) -> bool {
        let is_right = first.is_right();
        self.is_closed = !is_right;
        is_right
    }

    fn next_seq(&self, first: &Segment<'_>) -> u32 {
        // At most 2^16.
        u32_at(first.tcp(), 4).wrapping_add(self.len as u32)
    }

    fn ready(self) -> Ready<'a> {
        let Some(first) = self.first.filter(|_| !self.rest.is_empty()) else {
            return Ready::one(self.packet);
        };
        let Segment { ip, at, .. } = first;
        let mut head = [0; HEAD];
        let header = &mut head[vnet::LEN..vnet::LEN + at];
        header.copy_from_slice(&self.packet[..at]);
        let kind = match ip.family {
            Family::V4 => {
                set_u16(header, 2, short(at + self.len));
                set_u16(header, 10, 0);
                let checksum = !sum::fold(sum::sum(&header[..ip.header]));
                set_u16(header, 10, checksum);
                Kind::TcpV4
            }
            Family::V6 => {
                set_u16(header, 4, short(at + self.len - ip.header));
                Kind::TcpV6
            }
        };
        header[ip.header + 13] |= self.last_flags;
        // The kernel fills in the rest of it, if the packet ever leaves.
        let pseudo = sum::pseudo(header, &ip, TCP, at - ip.header + self.len);
        set_u16(header, ip.header + 16, sum::fold(pseudo));
        let size = short(first.payload().len());
        let vnet = Vnet {
            large: Some(Large { kind, size }),
            checksum: Some(Checksum { start: ip.header, offset: 16 }),
        };
        head[..vnet::LEN].copy_from_slice(&vnet.bytes(short(at)));
        Ready { head, head_len: vnet::LEN + at, first: first.payload(), rest: self.rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::sample::{Tcp, Udp};

    /// How many packets each that comes out stands for.
    fn merge(packets: &[Vec<u8>]) -> Vec<usize> {
        let mut merger = Merger::default();
        let mut ready: Vec<usize> = Vec::new();
        for packet in packets {
            ready.extend(merger.push(packet).map(|ready| ready.packets()));
        }
        ready.extend(merger.finish().map(|ready| ready.packets()));
        ready
    }

    fn nth(sample: &Tcp, at: u16) -> Tcp {
        let seq = sample.seq.wrapping_add(u32::from(at) * 100);
        Tcp { seq, id: sample.id.wrapping_add(at), ..sample.clone() }
    }

    #[test]
    fn segments_in_a_row_are_merged() {
        for sample in [Tcp::default(), Tcp::v6()] {
            let row: Vec<_> = (0..4).map(|at| nth(&sample, at).on_wire()).collect();
            assert_eq!(merge(&row), [4]);
            let other = Tcp { ack: 8, ..nth(&sample, 2) }.on_wire();
            assert_eq!(merge(&[row[0].clone(), row[1].clone(), other]), [2, 1]);
            assert_eq!(merge(&[row[0].clone(), row[2].clone()]), [1, 1]);
            assert_eq!(merge(&[row[1].clone(), row[0].clone()]), [1, 1]);
            let short = Tcp { payload: 60, ..nth(&sample, 1) }.on_wire();
            let after = Tcp { seq: sample.seq.wrapping_add(160), ..nth(&sample, 2) }.on_wire();
            assert_eq!(merge(&[row[0].clone(), short, after]), [2, 1]);
        }
    }

    #[test]
    fn what_ends_a_run_ends_it() {
        let sample = Tcp::default();
        let row = |flags: [u8; 3]| {
            let at = |(at, flags)| Tcp { flags, ..nth(&sample, at) }.on_wire();
            (0..).zip(flags).map(at).collect::<Vec<_>>()
        };
        for (flags, expected) in [
            ([ACK, ACK | PSH, ACK], &[2, 1][..]),
            ([ACK, ACK, ACK | FIN | PSH], &[3]),
            ([ACK | PSH, ACK, ACK], &[1, 2]),
            ([ACK | ECE, ACK | ECE, ACK], &[2, 1]),
            ([0x02, ACK, ACK], &[1, 2]),
            ([ACK, ACK | 0x04, ACK], &[1, 1, 1]),
            ([ACK | 0x80, ACK, ACK], &[1, 2]),
        ] {
            assert_eq!(merge(&row(flags)), expected, "{flags:x?}");
        }
    }

    #[test]
    fn wrong_checksums_are_left_to_the_kernel() {
        let sample = Tcp::default();
        let row: Vec<_> = (0..3).map(|at| nth(&sample, at).on_wire()).collect();
        for (at, byte, expected) in
            [(0, 80, &[1, 2][..]), (1, 80, &[1, 1, 1]), (2, 80, &[2, 1]), (1, 11, &[1, 1, 1])]
        {
            let mut row = row.clone();
            row[at][byte] ^= 0x10;
            assert_eq!(merge(&row), expected, "{at} {byte}");
        }
    }

    #[test]
    fn numbers_of_packets_that_may_be_cut_count_up() {
        let sample = Tcp::default();
        let cuttable = |at: u16, id: u16| {
            let mut packet = Tcp { id, ..nth(&sample, at) }.on_wire();
            packet[6] = 0;
            // What the flag was in the sum.
            let sum = u32::from(u16_at(&packet, 10)) + 0x4000;
            set_u16(&mut packet, 10, sum::fold(sum.into()));
            assert!(crate::packet::sample::header_is_right(&packet));
            packet
        };
        assert_eq!(merge(&[cuttable(0, 7), cuttable(1, 8)]), [2]);
        assert_eq!(merge(&[cuttable(0, 7), cuttable(1, 7)]), [1, 1]);
    }

    #[test]
    fn others_come_out_as_they_are_and_in_order() {
        let sample = Tcp::default();
        let udp = Udp { is_v6: false, payload: 30 }.packet();
        let empty = Tcp { payload: 0, ..Tcp::default() }.on_wire();
        let row = [udp.clone(), nth(&sample, 0).on_wire(), udp, empty, nth(&sample, 1).on_wire()];
        let mut merger = Merger::default();
        let mut out: Vec<Vec<u8>> = Vec::new();
        for packet in &row {
            out.extend(
                merger.push(packet).map(|ready| ready.parts().skip(1).flatten().copied().collect()),
            );
        }
        out.extend(merger.finish().map(|ready| ready.parts().skip(1).flatten().copied().collect()));
        assert_eq!(out, row);
    }
}
