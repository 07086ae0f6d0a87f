// SPDX-License-Identifier: Apache-2.0
//! Packets of pods, built byte by byte.

use proptest::prelude::*;

use super::*;
use crate::multicast::igmp::{self, Change};

const SUBNETS: [&str; 2] = ["10.244.1.0/24", "fd44:1::/64"];

fn subnets() -> Vec<IpNet> {
    SUBNETS.iter().map(|subnet| subnet.parse().unwrap()).collect()
}

/// Builds a UDP packet with checksums.
pub(crate) fn udp(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    let mut udp = [&[0x13, 0x88, 0x13, 0x88][..], &length.to_be_bytes(), &[0, 0], payload].concat();
    let addresses: Vec<u8> = match (source.parse().unwrap(), destination.parse().unwrap()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => [a.octets(), b.octets()].concat(),
        (IpAddr::V6(a), IpAddr::V6(b)) => [a.octets(), b.octets()].concat(),
        _ => panic!("families differ"),
    };
    let sum = sum(&udp) + sum(&addresses) + u64::from(length) + 17;
    udp[6..8].copy_from_slice(&(!fold(sum)).to_be_bytes());
    let mut packet = if addresses.len() == 8 {
        let total = (20 + length).to_be_bytes();
        vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 1, 17, 0, 0]
    } else {
        let length = length.to_be_bytes();
        vec![0x60, 0, 0, 0, length[0], length[1], 17, 1]
    };
    packet.extend(&addresses);
    if addresses.len() == 8 {
        let sum = !fold(self::sum(&packet));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    [packet, udp].concat()
}

fn sum(bytes: &[u8]) -> u64 {
    let word = |w: &[u8]| u64::from(w[0]) << 8 | u64::from(w.get(1).copied().unwrap_or(0));
    bytes.chunks(2).map(word).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Whether the checksums of an IPv4 UDP packet are right.
fn has_right_checksums(packet: &[u8]) -> bool {
    let payload = &packet[20..];
    let pseudo = sum(&packet[12..20]) + 17 + payload.len() as u64;
    fold(sum(&packet[..20])) == 0xffff && fold(sum(payload) + pseudo) == 0xffff
}

#[test]
fn packet_is_forwarded_by_source_and_group() {
    fn check(source: &str, destination: &str, is_forwarded: bool) {
        let packet = udp(source, destination, b"hello");
        let parsed = Packet::parse(&packet, Some(SUBNETS[0].parse().unwrap()));
        let forwarded = parsed.is_some_and(|packet| packet.is_forwarded(&subnets()));
        assert_eq!(forwarded, is_forwarded, "{source} to {destination}");
    }
    for group in ["239.1.2.3", "224.0.1.1", "232.1.1.1", "224.0.0.1", "224.0.0.251", "224.0.0.252"]
    {
        check("10.244.1.2", group, true);
        // A pod of another node, and a pod without an address.
        check("10.244.2.2", group, false);
        check("0.0.0.0", group, false);
    }
    check("10.244.1.2", "255.255.255.255", true);
    check("10.244.1.2", "10.244.1.255", true);
    for other in ["10.244.2.255", "10.244.1.3", "224.0.0.5", "224.0.0.18", "224.0.0.22"] {
        check("10.244.1.2", other, false);
    }
    for group in ["ff15::42", "ff05::1:3", "ff02::1", "ff02::fb", "ff02::1:3", "ff12::8384"] {
        check("fd44:1::2", group, true);
        check("fd44:2::2", group, false);
    }
    for other in ["ff01::1", "ff02::2", "ff02::5", "ff02::1:ff00:2", "ff02::1:2", "fd44:1::3"] {
        check("fd44:1::2", other, false);
    }
    // A link-local source is fine for link-local groups only.
    for (group, is_forwarded) in [("ff02::fb", true), ("ff12::1", true), ("ff15::42", false)] {
        check("fe80::2", group, is_forwarded);
    }
}

#[test]
fn reports_and_neighbour_discovery_stay_on_the_link() {
    let (to, query) = igmp::igmp_query();
    let packet = Packet::parse(&query, None).unwrap();
    assert_eq!(packet.to, Destination::All("224.0.0.1".parse().unwrap()));
    assert_eq!(packet.content, Content::Reports(vec![]));
    assert_eq!(to, Destination::Group("224.0.0.1".parse().unwrap()).mac());
    let (to, query) = igmp::mld_query(MacAddr([2, 0, 0, 0, 0, 1]));
    let packet = Packet::parse(&query, None).unwrap();
    assert_eq!(packet.content, Content::Reports(vec![]));
    assert!(!packet.is_forwarded(&subnets()));
    assert_eq!(to, packet.to.mac());
    // A neighbour advertisement to all nodes.
    let mut advertisement = udp("fe80::2", "ff02::1", &[0; 16]);
    (advertisement[6], advertisement[40]) = (58, 136);
    let packet = Packet::parse(&advertisement, None).unwrap();
    assert!(packet.content == Content::Local && !packet.is_forwarded(&subnets()));
}

/// Captured from a pod that joined the group with socat.
#[test]
fn report_after_ip_options_is_found() {
    let report = [
        0x46, 0xc0, 0, 40, 0, 0, 0x40, 0, 1, 2, 0, 0, 10, 244, 1, 2, 224, 0, 0, 22, 0x94, 4, 0,
        0, //
        0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 2, 3,
    ];
    let Content::Reports(reports) = Packet::parse(&report, None).unwrap().content else { panic!() };
    assert_eq!(reports[0].change, Change::Joins);
    assert_eq!(reports[0].group, "239.1.2.3".parse::<IpAddr>().unwrap());
}

#[test]
fn subnet_broadcast_is_translated() {
    let [from, to] = ["10.244.1.0/24", "10.244.2.0/24"].map(|net| net.parse().ok());
    let mut packet = udp("10.244.1.2", "10.244.1.255", b"hello");
    assert!(has_right_checksums(&packet));
    translate(&mut packet, from, to);
    assert_eq!(packet[16..20], [10, 244, 2, 255]);
    assert!(has_right_checksums(&packet));
    for other in ["239.1.2.3", "255.255.255.255", "224.0.0.1"] {
        let mut packet = udp("10.244.1.2", other, b"hello");
        let before = packet.clone();
        translate(&mut packet, from, to);
        assert_eq!(packet, before);
    }
}

#[test]
fn group_mac_addresses_follow_the_rfcs() {
    let mac = |to: Destination| to.mac().to_string();
    assert_eq!(mac(Destination::Group("239.129.2.3".parse().unwrap())), "01:00:5e:01:02:03");
    assert_eq!(mac(Destination::Group("ff15::1:2345".parse().unwrap())), "33:33:00:01:23:45");
    assert_eq!(mac(Destination::All("10.244.1.255".parse().unwrap())), "ff:ff:ff:ff:ff:ff");
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_without_panic(mut bytes: Vec<u8>, first in prop::sample::select(&[0x45, 0x46, 0x4f, 0x60][..])) {
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        let subnet: Option<IpNet> = SUBNETS[0].parse().ok();
        let _ = Packet::parse(&bytes, subnet);
        translate(&mut bytes, subnet, subnet);
    }
}
