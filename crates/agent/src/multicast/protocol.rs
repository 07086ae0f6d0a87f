// SPDX-License-Identifier: Apache-2.0
//! The protocol between agents: UDP datagrams over the pod network with packets of pods, announcements of a node's groups,
//! and queries for such announcements.
//!
//! ```text
//!  0      4         5      6        7        8                24
//!  "PWMC" | version | kind | family | length | subnet address | body
//! ```
//!
//! The family is 4 or 6. An IPv4 address is followed by twelve zero bytes. Numbers are in network byte order.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// UDP port of the agents.
pub const PORT: u16 = 8287;
/// Length of the header.
pub(super) const HEADER: usize = 24;

const MAGIC: [u8; 4] = *b"PWMC";
const VERSION: u8 = 1;
const PACKET: u8 = 1;
const INTEREST: u8 = 2;
const QUERY: u8 = 3;
const HAS_PODS: u8 = 1;
const ALL_GROUPS: u8 = 2;

/// The content of a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// A packet of a pod.
    Packet(&'a [u8]),
    /// The sender's groups.
    Interest(Interest),
    /// Asks for the receiver's groups.
    Query,
}

/// The packets that the pods of a node are to receive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Interest {
    /// Whether there are pods. They receive all broadcasts.
    pub has_pods: bool,
    /// Whether the node receives all groups, because it has too many to list.
    pub all: bool,
    pub groups: BTreeSet<IpAddr>,
}

impl Interest {
    pub(super) fn includes(&self, group: IpAddr) -> bool {
        self.has_pods && (self.all || self.groups.contains(&group))
    }
}

/// Encodes a datagram of the node with this subnet.
pub(super) fn encode(subnet: IpNet, message: &Message<'_>) -> Vec<u8> {
    let kind = match message {
        Message::Packet(_) => PACKET,
        Message::Interest(_) => INTEREST,
        Message::Query => QUERY,
    };
    let mut bytes = MAGIC.to_vec();
    bytes.extend([VERSION, kind, family(subnet.addr()), subnet.prefix_len()]);
    put(&mut bytes, subnet.network());
    bytes.resize(HEADER, 0);
    match message {
        Message::Packet(packet) => bytes.extend_from_slice(packet),
        Message::Interest(interest) => put_interest(&mut bytes, interest),
        Message::Query => {}
    }
    bytes
}

/// Encodes the flags, then for each family the number of groups and the groups.
fn put_interest(bytes: &mut Vec<u8>, interest: &Interest) {
    let flags = [(interest.has_pods, HAS_PODS), (interest.all, ALL_GROUPS)];
    bytes.push(flags.into_iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum());
    for number in [4, 6] {
        let is_listed = |group: &&IpAddr| !interest.all && family(**group) == number;
        let groups: Vec<&IpAddr> = interest.groups.iter().filter(is_listed).collect();
        bytes.extend((groups.len() as u16).to_be_bytes());
        for group in groups {
            put(bytes, *group);
        }
    }
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { 4 } else { 6 }
}

fn put(bytes: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => bytes.extend(address.octets()),
        IpAddr::V6(address) => bytes.extend(address.octets()),
    }
}

/// Decodes a datagram into the sender's subnet and the message. Returns `None` for anything else.
pub(super) fn decode(bytes: &[u8]) -> Option<(IpNet, Message<'_>)> {
    let (header, body) = bytes.split_first_chunk::<HEADER>()?;
    if header[..4] != MAGIC || header[4] != VERSION {
        return None;
    }
    let address: IpAddr = match header[6] {
        4 => Ipv4Addr::from(*header[8..].first_chunk::<4>()?).into(),
        6 => Ipv6Addr::from(*header[8..].first_chunk::<16>()?).into(),
        _ => return None,
    };
    let subnet = IpNet::new(address, header[7]).ok()?;
    let message = match header[5] {
        PACKET => Message::Packet(body),
        INTEREST => Message::Interest(decode_interest(body)?),
        QUERY => Message::Query,
        _ => return None,
    };
    Some((subnet, message))
}

fn decode_interest(body: &[u8]) -> Option<Interest> {
    let (flags, body) = body.split_first()?;
    let mut groups = BTreeSet::new();
    let rest = decode_groups::<4>(body, &mut groups)?;
    decode_groups::<16>(rest, &mut groups)?;
    Some(Interest { has_pods: flags & HAS_PODS != 0, all: flags & ALL_GROUPS != 0, groups })
}

fn decode_groups<'a, const N: usize>(
    body: &'a [u8],
    groups: &mut BTreeSet<IpAddr>,
) -> Option<&'a [u8]>
where
    IpAddr: From<[u8; N]>,
{
    let (count, body) = body.split_first_chunk::<2>()?;
    let (these, rest) = body.split_at_checked(usize::from(u16::from_be_bytes(*count)) * N)?;
    groups.extend(these.as_chunks::<N>().0.iter().map(|group| IpAddr::from(*group)));
    Some(rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn interest_has_these_bytes() {
        let interest = Interest {
            has_pods: true,
            all: false,
            groups: ["239.1.2.3".parse().unwrap(), "ff15::42".parse().unwrap()].into(),
        };
        let bytes = encode("10.244.1.0/24".parse().unwrap(), &Message::Interest(interest));
        let mut expected = b"PWMC\x01\x02\x04\x18\x0a\xf4\x01\x00".to_vec();
        expected.extend([0; 12]);
        expected.extend([1, 0, 1, 239, 1, 2, 3, 0, 1, 0xff, 0x15]);
        expected.extend([0; 13]);
        expected.push(0x42);
        assert_eq!(bytes, expected);
    }

    proptest! {
        #[test]
        fn encoded_message_is_decoded(
            groups: BTreeSet<IpAddr>, has_pods: bool, packet: Vec<u8>, v6: bool,
        ) {
            let subnet = if v6 { "fd44:1::/64" } else { "10.244.1.0/24" };
            let subnet: IpNet = subnet.parse().unwrap();
            let interest = Message::Interest(Interest { has_pods, all: false, groups });
            for message in [interest, Message::Packet(&packet), Message::Query] {
                let bytes = encode(subnet, &message);
                prop_assert_eq!(decode(&bytes), Some((subnet, message)));
            }
        }

        #[test]
        fn any_bytes_are_decoded_without_panic(bytes: Vec<u8>, kind: u8) {
            let _ = decode(&bytes);
            let header = [&MAGIC[..], &[VERSION, kind & 3, 4, 24], &[0; 16], &bytes].concat();
            let _ = decode(&header);
        }
    }
}
