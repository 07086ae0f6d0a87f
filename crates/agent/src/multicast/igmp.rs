// SPDX-License-Identifier: Apache-2.0
//! Group membership messages: reports of IGMP versions 1 to 3 (RFC 1112, 2236, 3376) and MLD versions 1 and 2 (RFC 2710,
//! 3810), and the queries that ask for them.

use std::net::{IpAddr, Ipv6Addr};

use kernel::MacAddr;

/// A pod joins or leaves a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Report {
    pub group: IpAddr,
    pub change: Change,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Joins,
    Leaves,
    /// Leaves. Other members may have suppressed their reports because of this pod's.
    MayBeLast,
}

const IGMP_QUERY: u8 = 0x11; // linux/igmp.h
const IGMP_V1_REPORT: u8 = 0x12; // linux/igmp.h
const IGMP_V2_REPORT: u8 = 0x16; // linux/igmp.h
const IGMP_V2_LEAVE: u8 = 0x17; // linux/igmp.h
const IGMP_V3_REPORT: u8 = 0x22; // linux/igmp.h
const MLD_QUERY: u8 = 130; // linux/icmpv6.h
const MLD_V1_REPORT: u8 = 131; // linux/icmpv6.h
const MLD_V1_DONE: u8 = 132; // linux/icmpv6.h
const MLD_V2_REPORT: u8 = 143; // linux/icmpv6.h

/// Parses the reports of an IGMP message.
pub(super) fn parse_igmp(message: &[u8]) -> Vec<Report> {
    let Some(header) = message.first_chunk::<8>() else { return Vec::new() };
    let group = IpAddr::from([header[4], header[5], header[6], header[7]]);
    match header[0] {
        IGMP_V1_REPORT | IGMP_V2_REPORT => one(group, Change::Joins),
        IGMP_V2_LEAVE => one(group, Change::MayBeLast),
        IGMP_V3_REPORT => records::<4>(message),
        _ => Vec::new(),
    }
}

/// Parses the reports of an MLD message, which is an ICMPv6 message.
pub(super) fn parse_mld(message: &[u8]) -> Vec<Report> {
    let group = || message.get(8..24)?.first_chunk::<16>().copied().map(IpAddr::from);
    match message.first() {
        Some(&MLD_V1_REPORT) => group().map_or_else(Vec::new, |group| one(group, Change::Joins)),
        Some(&MLD_V1_DONE) => group().map_or_else(Vec::new, |group| one(group, Change::MayBeLast)),
        Some(&MLD_V2_REPORT) => records::<16>(message),
        _ => Vec::new(),
    }
}

fn one(group: IpAddr, change: Change) -> Vec<Report> {
    vec![Report { group, change }]
}

/// Parses the records of IGMPv3 and MLDv2, which differ in the length of addresses.
fn records<const N: usize>(message: &[u8]) -> Vec<Report>
where
    IpAddr: From<[u8; N]>,
{
    let count = message.get(6..8).map_or(0, |n| usize::from(u16::from_be_bytes([n[0], n[1]])));
    let mut rest = message.get(8..).unwrap_or_default();
    let mut reports = Vec::new();
    for _ in 0..count {
        let Some((&[kind, extra, high, low], behind)) = rest.split_first_chunk::<4>() else {
            break;
        };
        let Some((group, behind)) = behind.split_first_chunk::<N>() else { break };
        let sources = usize::from(u16::from_be_bytes([high, low]));
        reports.extend(change(kind, sources).map(|change| {
            let group = IpAddr::from(*group);
            Report { group, change }
        }));
        let Some(next) = behind.get(sources * N + usize::from(extra) * 4..) else { break };
        rest = next;
    }
    reports
}

/// Returns what a record means for the group. Sources are not distinguished: a node with a member receives the whole
/// group, and the member's kernel filters by source.
fn change(kind: u8, sources: usize) -> Option<Change> {
    match (kind, sources) {
        // The list of included sources is empty.
        (1 | 3, 0) => Some(Change::Leaves),
        // Blocks sources, but stays a member.
        (6, _) => None,
        (1..=5, _) => Some(Change::Joins),
        _ => None,
    }
}

/// Builds a query for all IPv4 groups. Returns the destination MAC address and the packet. The source address is 0.0.0.0,
/// as in queries of snooping switches, so that real queriers do not stop their own queries.
pub(super) fn igmp_query() -> (MacAddr, Vec<u8>) {
    // Maximum response time 1 s, robustness 2, query interval 125 s.
    let mut message = [IGMP_QUERY, 10, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0];
    let sum = checksum(&message, 0);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    // TTL 1, to 224.0.0.1, followed by the router alert option.
    let mut packet = vec![0x46, 0xc0, 0, 36, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 224, 0, 0, 1];
    packet.extend([0x94, 4, 0, 0]);
    let sum = checksum(&packet, 0);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(message);
    (MacAddr([0x01, 0x00, 0x5e, 0, 0, 1]), packet)
}

/// Builds a query for all IPv6 groups. Hosts answer only queries from a link-local address, which is derived from the
/// bridge's MAC address.
pub(super) fn mld_query(bridge: MacAddr) -> (MacAddr, Vec<u8>) {
    let source = link_local(bridge).octets();
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets();
    let mut message = vec![MLD_QUERY, 0, 0, 0, 0x03, 0xe8, 0, 0];
    message.extend([0; 16]);
    message.extend([2, 125, 0, 0]);
    let length = message.len() as u64;
    let pseudo = words(&source) + words(&all) + length + 58;
    let sum = checksum(&message, pseudo);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    // Hop limit 1, and a hop-by-hop header with the router alert option.
    let payload = (message.len() + 8) as u16;
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(payload.to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(source);
    packet.extend(all);
    packet.extend([58, 0, 5, 2, 0, 0, 1, 0]);
    packet.extend(message);
    (MacAddr([0x33, 0x33, 0, 0, 0, 1]), packet)
}

/// Link-local address with the modified EUI-64 of a MAC address (RFC 4291, appendix A).
fn link_local(MacAddr([a, b, c, d, e, f]): MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = [a ^ 2, b, c, d, e, f].map(u16::from);
    Ipv6Addr::new(0xfe80, 0, 0, 0, a << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f)
}

fn words(bytes: &[u8]) -> u64 {
    let word = |w: &[u8]| u64::from(w[0]) << 8 | u64::from(w.get(1).copied().unwrap_or(0));
    bytes.chunks(2).map(word).sum()
}

fn checksum(bytes: &[u8], pseudo_header: u64) -> u16 {
    let mut sum = words(bytes) + pseudo_header;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn report(group: &str, change: Change) -> Report {
        Report { group: group.parse().unwrap(), change }
    }

    #[test]
    fn igmp_v2_and_mld_v1_report_one_group() {
        let message = |kind| [kind, 0, 0, 0, 239, 1, 2, 3];
        assert_eq!(parse_igmp(&message(0x12)), [report("239.1.2.3", Change::Joins)]);
        assert_eq!(parse_igmp(&message(0x16)), [report("239.1.2.3", Change::Joins)]);
        assert_eq!(parse_igmp(&message(0x17)), [report("239.1.2.3", Change::MayBeLast)]);
        assert_eq!(parse_igmp(&message(0x11)), []);
        let group: Ipv6Addr = "ff15::42".parse().unwrap();
        let message = |kind| [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &group.octets()].concat();
        assert_eq!(parse_mld(&message(131)), [report("ff15::42", Change::Joins)]);
        assert_eq!(parse_mld(&message(132)), [report("ff15::42", Change::MayBeLast)]);
    }

    #[test]
    fn igmp_v3_and_mld_v2_report_records() {
        let mut message = vec![0x22, 0, 0, 0, 0, 0, 0, 4];
        message.extend([4, 0, 0, 0, 239, 0, 0, 1]); // changes to exclude nothing: joins
        message.extend([3, 0, 0, 0, 239, 0, 0, 2]); // changes to include nothing: leaves
        message.extend([1, 1, 0, 1, 239, 0, 0, 3, 10, 0, 0, 1, 9, 9, 9, 9]); // includes a source, with auxiliary data
        message.extend([6, 0, 0, 1, 239, 0, 0, 4, 10, 0, 0, 1]); // blocks a source
        let expected = [
            report("239.0.0.1", Change::Joins),
            report("239.0.0.2", Change::Leaves),
            report("239.0.0.3", Change::Joins),
        ];
        assert_eq!(parse_igmp(&message), expected);
        // Truncated: complete records count.
        assert_eq!(parse_igmp(&message[..18]), expected[..1]);
        let group: Ipv6Addr = "ff15::42".parse().unwrap();
        let message = [&[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &group.octets()].concat();
        assert_eq!(parse_mld(&message), [report("ff15::42", Change::Joins)]);
    }

    #[test]
    fn link_local_address_is_derived_from_the_mac() {
        let address = link_local(MacAddr([0x0a, 0x58, 0x0a, 0xf4, 0x01, 0x01]));
        assert_eq!(address, "fe80::858:aff:fef4:101".parse::<Ipv6Addr>().unwrap());
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse_igmp(&bytes);
            let _ = parse_mld(&bytes);
            for kind in [0x22, 143] {
                let mut bytes = bytes.clone();
                if let Some(first) = bytes.first_mut() {
                    *first = kind;
                }
                let _ = (parse_igmp(&bytes), parse_mld(&bytes));
            }
        }
    }
}
