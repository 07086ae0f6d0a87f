// SPDX-License-Identifier: Apache-2.0
//! Properties of the packet functions: segmenting and merging restores the packet, checksums are
//! valid by an independent implementation, and no input causes a panic.

use proptest::prelude::*;

use crate::packet::icmp::{self, Reason};
use crate::packet::merge::Merger;
use crate::packet::sample::{Tcp, Udp, header_is_valid, transport_is_valid};
use crate::packet::segment::{self, Malformed, WirePacket};
use crate::packet::vnet::{self, Vnet};
use crate::packet::{Ip, decrement_ttl};

/// Returns the packets on the wire.
fn split(vnet: &Vnet, mut packet: Vec<u8>) -> Result<Vec<Vec<u8>>, Malformed> {
    let ip = Ip::parse(&packet).ok_or(Malformed)?;
    let (mut headers, mut packets) = (Vec::new(), Vec::new());
    segment::split(vnet, &mut packet, &ip, &mut headers, |one| packets.push(one))?;
    let bytes = |one: WirePacket| [&headers[one.head], &packet[one.body]].concat();
    Ok(packets.into_iter().map(bytes).collect())
}

/// Returns the merged packets, each with its virtio header.
fn merge(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut merger = Merger::default();
    let mut out = Vec::new();
    for packet in packets {
        out.extend(merger.push(packet).map(|merged| merged.parts().collect::<Vec<_>>().concat()));
    }
    out.extend(merger.finish().map(|merged| merged.parts().collect::<Vec<_>>().concat()));
    out
}

prop_compose! {
    fn tcp()(
        is_v6: bool, ttl in 2..=255_u8, id: u16, seq: u32, ack: u32, seed: u8,
        ends in prop::sample::select(vec![0x10_u8, 0x18, 0x11, 0x19, 0x50]),
        payload in 1..60_000_usize,
    ) -> Tcp {
        Tcp { is_v6, ttl, id, seq, ack, flags: ends, payload, seed }
    }
}

proptest! {
    #[test]
    fn segmenting_and_merging_restores_the_packet(sample in tcp(), size in 300..9000_u16) {
        let vnet = sample.vnet(size);
        let packets = split(&vnet, sample.packet()).unwrap();
        prop_assert_eq!(packets.len(), sample.payload.div_ceil(usize::from(size)));
        for packet in &packets {
            prop_assert!(header_is_valid(packet) && transport_is_valid(packet));
        }
        let merged = merge(&packets);
        prop_assert_eq!(merged.len(), 1);
        let (header, packet) = merged[0].split_at(vnet::LEN);
        if packets.len() == 1 {
            prop_assert_eq!(header, vnet::PLAIN);
            prop_assert_eq!(packet, &packets[0][..]);
        } else {
            prop_assert_eq!(Vnet::parse(header.try_into().unwrap()), Some(vnet));
            prop_assert_eq!(packet, &sample.packet()[..]);
        }
    }

    #[test]
    fn udp_segments_are_valid(is_v6: bool, payload in 1..60_000_usize, size in 100..9000_u16) {
        let sample = Udp { is_v6, payload };
        let packets = split(&sample.vnet(size), sample.packet()).unwrap();
        let headers = if is_v6 { 48 } else { 28 };
        let whole = sample.packet();
        let rest: Vec<u8> = packets.iter().flat_map(|packet| packet[headers..].to_vec()).collect();
        prop_assert_eq!(&rest[..], &whole[headers..]);
        for packet in &packets {
            prop_assert!(header_is_valid(packet) && transport_is_valid(packet));
        }
    }

    #[test]
    fn merging_keeps_order_and_bytes(
        samples in prop::collection::vec((0..3_u8, 1..200_usize, 0..4_u8), 0..20),
    ) {
        let mut next = [5_000_u32; 3];
        let mut packets = Vec::new();
        for (flow, payload, gap) in samples {
            let seq = next[usize::from(flow)] + u32::from(gap == 0);
            next[usize::from(flow)] = seq + payload as u32;
            packets.push(Tcp { seq, payload, ack: flow.into(), ..Tcp::default() }.on_wire());
        }
        let payloads = |packet: &Vec<u8>| packet[52..].to_vec();
        let sent: Vec<u8> = packets.iter().flat_map(payloads).collect();
        let got: Vec<u8> = merge(&packets).iter()
            .flat_map(|merged| merged[vnet::LEN + 52..].to_vec()).collect();
        prop_assert_eq!(sent, got);
    }

    #[test]
    fn arbitrary_bytes_cause_no_panic(
        header: [u8; vnet::LEN],
        start in prop::sample::select(vec![0x45_u8, 0x46, 0x4f, 0x60, 0x00]),
        mut rest in prop::collection::vec(any::<u8>(), 0..200),
        protocol in prop::sample::select(vec![1_u8, 6, 17, 58]),
        is_whole: bool,
    ) {
        rest.insert(0, start);
        if is_whole && rest.len() >= 40 {
            // A random length field almost never matches the packet.
            let len = rest.len() as u16;
            let v6 = start == 0x60;
            let len_at = if v6 { 4 } else { 2 };
            let len = if v6 { len - 40 } else { len };
            rest[len_at..len_at + 2].copy_from_slice(&len.to_be_bytes());
            rest[if v6 { 6 } else { 9 }] = protocol;
            if !v6 {
                rest[6..8].copy_from_slice(&[0x40, 0]);
            }
        }
        if let Some(vnet) = Vnet::parse(&header) {
            let _ = split(&vnet, rest.clone());
        }
        if let Some(ip) = Ip::parse(&rest) {
            let _ = icmp::message(&rest, &ip, Reason::NoRoute);
            decrement_ttl(&mut rest, &ip);
        }
        let merged = merge(&[rest.clone(), rest.clone(), rest]);
        prop_assert!(!merged.is_empty());
    }
}
