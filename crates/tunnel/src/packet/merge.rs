// SPDX-License-Identifier: Apache-2.0
//! Merges received TCP segments: consecutive segments of one connection become one GSO packet for
//! the kernel. The kernel does not verify the checksums of such a packet, so only segments with
//! valid checksums are merged. The rules are those of the kernel's own GRO. Payload is summed,
//! never copied.

use kernel::Family;

use super::segment::{FIN, PSH};
use super::vnet::{self, Checksum, Gso, Kind, Vnet};
use super::{Fragment, IPV4_HEADER, Ip, TCP, checksum, set_u16, short, u16_at, u32_at};

const ACK: u8 = 0x10;
const ECE: u8 = 0x40;
/// Maximum number of segments in one packet: more parts in one write bring no gain.
const MAX_SEGMENTS: usize = 256;
/// Maximum total length of an IP packet.
const MAX_LEN: usize = 65_535;
/// Maximum length of the virtio, IPv6 and TCP headers.
const MAX_HEAD: usize = vnet::LEN + 40 + 60;

/// A packet for the kernel: the headers and the parts that follow.
#[derive(Debug)]
pub(crate) struct MergedPacket<'a> {
    head: [u8; MAX_HEAD],
    head_len: usize,
    first: &'a [u8],
    rest: Vec<&'a [u8]>,
}

impl<'a> MergedPacket<'a> {
    fn unmerged(packet: &'a [u8]) -> MergedPacket<'a> {
        MergedPacket { head: [0; MAX_HEAD], head_len: vnet::LEN, first: packet, rest: Vec::new() }
    }

    /// Returns the parts in order, to be written with one call.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        [&self.head[..self.head_len], self.first].into_iter().chain(self.rest.iter().copied())
    }

    /// Returns the number of received packets in it.
    pub(crate) fn packets(&self) -> usize {
        1 + self.rest.len()
    }
}

/// Merges packets in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Merger<'a> {
    run: Option<Run<'a>>,
}

impl<'a> Merger<'a> {
    /// Adds a packet. Returns the previous run if this packet does not continue it.
    pub(crate) fn push(&mut self, packet: &'a [u8]) -> Option<MergedPacket<'a>> {
        let segment = Segment::parse(packet);
        if let (Some(run), Some(segment)) = (&mut self.run, &segment)
            && run.append(segment)
        {
            return None;
        }
        let before = self.finish();
        match segment.filter(Segment::can_start_run) {
            Some(segment) => {
                self.run = Some(Run::new(segment));
                before
            }
            // No packet is waiting, so this one can be written at once without changing the order.
            None if before.is_none() => Some(MergedPacket::unmerged(packet)),
            None => {
                self.run = Some(Run::single(packet));
                before
            }
        }
    }

    /// Returns the last run.
    pub(crate) fn finish(&mut self) -> Option<MergedPacket<'a>> {
        self.run.take().map(Run::ready)
    }
}

/// An unfragmented TCP segment with payload and without IP options.
#[derive(Debug, Clone, Copy)]
struct Segment<'a> {
    packet: &'a [u8],
    ip: Ip,
    /// Offset of the payload.
    at: usize,
}

impl<'a> Segment<'a> {
    fn parse(packet: &'a [u8]) -> Option<Segment<'a>> {
        let ip = Ip::parse(packet)?;
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

    fn can_start_run(&self) -> bool {
        let flags = self.flags();
        flags & ACK != 0 && flags & !(ACK | ECE | PSH | FIN) == 0
    }

    /// Returns whether the headers equal those of the run's first segment, except for lengths, ID,
    /// sequence number, the flags PSH and FIN, and checksums.
    fn has_same_headers(&self, first: &Segment<'_>, nth: usize) -> bool {
        let (one, other) = (self.packet, first.packet);
        let same = |parts: &[(usize, usize)]| parts.iter().all(|&(a, b)| one[a..b] == other[a..b]);
        let ip = match first.ip.family {
            Family::V4 => {
                let dont_fragment = one[6] & 0x40 != 0;
                let expected_id = u16_at(other, 4).wrapping_add(short(nth));
                same(&[(0, 2), (6, 10), (12, 20)])
                    && (dont_fragment || u16_at(one, 4) == expected_id)
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

    fn has_valid_checksums(&self) -> bool {
        let header = &self.packet[..self.ip.header];
        let is_v4 = self.ip.family == Family::V4;
        if is_v4 && !checksum::is_valid(checksum::sum(header)) {
            return false;
        }
        let tcp = &self.packet[self.ip.header..];
        let pseudo = checksum::pseudo(self.packet, &self.ip, TCP, tcp.len());
        checksum::is_valid(pseudo + checksum::sum(tcp))
    }
}

/// Consecutive segments of one connection.
#[derive(Debug)]
struct Run<'a> {
    packet: &'a [u8],
    first: Option<Segment<'a>>,
    rest: Vec<&'a [u8]>,
    /// Length of all payload.
    len: usize,
    /// PSH and FIN of the last segment.
    last_flags: u8,
    /// No segment can be appended.
    is_closed: bool,
}

impl<'a> Run<'a> {
    fn new(first: Segment<'a>) -> Run<'a> {
        let len = first.payload().len();
        let last_flags = first.flags() & (PSH | FIN);
        let (packet, is_closed) = (first.packet, last_flags != 0);
        Run { packet, first: Some(first), rest: Vec::new(), len, last_flags, is_closed }
    }

    /// Creates a run of one packet that cannot be merged.
    fn single(packet: &'a [u8]) -> Run<'a> {
        let rest = Vec::new();
        Run { packet, first: None, rest, len: 0, last_flags: 0, is_closed: true }
    }

    /// Appends the segment if it continues the run, and returns whether it did.
    fn append(&mut self, next: &Segment<'a>) -> bool {
        let Some(first) = self.first else { return false };
        let (size, payload) = (first.payload().len(), next.payload());
        let len = self.len + payload.len();
        let is_next = !self.is_closed
            && payload.len() <= size
            && self.rest.len() + 1 < MAX_SEGMENTS
            && first.at + len <= MAX_LEN
            && u32_at(next.tcp(), 4) == self.next_seq(&first)
            && next.has_same_headers(&first, self.rest.len() + 1);
        if !is_next
            || (self.rest.is_empty() && !self.verify_first(&first))
            || !next.has_valid_checksums()
        {
            return false;
        }
        self.rest.push(payload);
        self.len = len;
        self.last_flags = next.flags() & (PSH | FIN);
        self.is_closed = payload.len() < size || self.last_flags != 0;
        true
    }

    /// Verifies the first segment, only when a second one arrives: the kernel verifies single
    /// packets itself.
    fn verify_first(&mut self, first: &Segment<'_>) -> bool {
        let is_valid = first.has_valid_checksums();
        self.is_closed = !is_valid;
        is_valid
    }

    fn next_seq(&self, first: &Segment<'_>) -> u32 {
        // The length is at most 2^16.
        u32_at(first.tcp(), 4).wrapping_add(self.len as u32)
    }

    fn ready(self) -> MergedPacket<'a> {
        let Some(first) = self.first.filter(|_| !self.rest.is_empty()) else {
            return MergedPacket::unmerged(self.packet);
        };
        let Segment { ip, at, .. } = first;
        let mut head = [0; MAX_HEAD];
        let header = &mut head[vnet::LEN..vnet::LEN + at];
        header.copy_from_slice(&self.packet[..at]);
        let kind = match ip.family {
            Family::V4 => {
                set_u16(header, 2, short(at + self.len));
                set_u16(header, 10, 0);
                let checksum = !checksum::fold(checksum::sum(&header[..ip.header]));
                set_u16(header, 10, checksum);
                Kind::TcpV4
            }
            Family::V6 => {
                set_u16(header, 4, short(at + self.len - ip.header));
                Kind::TcpV6
            }
        };
        header[ip.header + 13] |= self.last_flags;
        // The kernel completes the checksum if the packet leaves the host.
        let pseudo = checksum::pseudo(header, &ip, TCP, at - ip.header + self.len);
        set_u16(header, ip.header + 16, checksum::fold(pseudo));
        let size = short(first.payload().len());
        let vnet = Vnet {
            gso: Some(Gso { kind, size }),
            checksum: Some(Checksum { start: ip.header, offset: 16 }),
        };
        head[..vnet::LEN].copy_from_slice(&vnet.bytes(short(at)));
        MergedPacket { head, head_len: vnet::LEN + at, first: first.payload(), rest: self.rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::sample::{Tcp, Udp};

    /// Merges packets and returns the number of received packets in each result.
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
    fn consecutive_segments_are_merged() {
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
    fn flags_end_a_run() {
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
    fn segments_with_invalid_checksum_are_not_merged() {
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
    fn fragmentable_segments_need_consecutive_ids() {
        let sample = Tcp::default();
        let fragmentable = |at: u16, id: u16| {
            let mut packet = Tcp { id, ..nth(&sample, at) }.on_wire();
            packet[6] = 0;
            // Clearing DF changes the sum by 0x4000.
            let sum = u32::from(u16_at(&packet, 10)) + 0x4000;
            set_u16(&mut packet, 10, checksum::fold(sum.into()));
            assert!(crate::packet::sample::header_is_valid(&packet));
            packet
        };
        assert_eq!(merge(&[fragmentable(0, 7), fragmentable(1, 8)]), [2]);
        assert_eq!(merge(&[fragmentable(0, 7), fragmentable(1, 7)]), [1, 1]);
    }

    #[test]
    fn other_packets_keep_content_and_order() {
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
