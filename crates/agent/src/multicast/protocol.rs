// SPDX-License-Identifier: Apache-2.0
//! What agents send each other, in UDP datagrams over the network itself: packets of pods, which groups a node's
//! pods are in, and the question for that.
//!
//! ```text
//!  0      4         5      6        7        8                24
//!  "PWMC" | version | kind | family | length | subnet address | body
//! ```
//!
//! The family is 4 or 6; an address of IPv4 has four bytes and twelve zeroes behind it. Numbers are in network
//! byte order.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Where agents listen.
pub const PORT: u16 = 8287;
/// Before every body.
pub const HEADER: usize = 24;

const MAGIC: [u8; 4] = *b"PWMC";
const VERSION: u8 = 1;
const PACKET: u8 = 1;
const WANTS: u8 = 2;
const QUESTION: u8 = 3;
const HAS_PODS: u8 = 1;
const WANTS_ALL: u8 = 2;

/// A datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// What a pod has sent.
    Packet(&'a [u8]),
    /// What the pods of a node want.
    Wants(Wants),
    /// Asks for that.
    Question,
}

/// What the pods of a node want.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wants {
    /// There are some, who want what is for all.
    pub has_pods: bool,
    /// There are too many groups to name.
    pub all: bool,
    /// Their groups.
    pub groups: BTreeSet<IpAddr>,
}

impl Wants {
    pub fn has(&self, group: IpAddr) -> bool {
        self.has_pods && (self.all || self.groups.contains(&group))
    }
}

/// A datagram of the node with this subnet.
pub fn write(subnet: IpNet, message: &Message<'_>) -> Vec<u8> {
    let kind = match message {
        Message::Packet(_) => PACKET,
        Message::Wants(_) => WANTS,
        Message::Question => QUESTION,
    };
    let mut bytes = MAGIC.to_vec();
    bytes.extend([VERSION, kind, family(subnet.addr()), subnet.prefix_len()]);
    put(&mut bytes, subnet.network());
    bytes.resize(HEADER, 0);
    match message {
        Message::Packet(packet) => bytes.extend_from_slice(packet),
        Message::Wants(wants) => put_wants(&mut bytes, wants),
        Message::Question => {}
    }
    bytes
}

/// Flags, then each family's number of groups and the groups.
fn put_wants(bytes: &mut Vec<u8>, wants: &Wants) {
    let flags = [(wants.has_pods, HAS_PODS), (wants.all, WANTS_ALL)];
    bytes.push(flags.into_iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum());
    for number in [4, 6] {
        let groups: Vec<&IpAddr> =
            wants.groups.iter().filter(|group| !wants.all && family(**group) == number).collect();
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

/// Whose datagram it is, and what; none for anything else.
pub fn read(bytes: &[u8]) -> Option<(IpNet, Message<'_>)> {
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
        WANTS => Message::Wants(read_wants(body)?),
        QUESTION => Message::Question,
        _ => return None,
    };
    Some((subnet, message))
}

fn read_wants(body: &[u8]) -> Option<Wants> {
    let (flags, body) = body.split_first()?;
    let mut groups = BTreeSet::new();
    let rest = read_groups::<4>(body, &mut groups)?;
    read_groups::<16>(rest, &mut groups)?;
    Some(Wants { has_pods: flags & HAS_PODS != 0, all: flags & WANTS_ALL != 0, groups })
}

fn read_groups<'a, const N: usize>(
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
    fn bytes() {
        let wants = Wants {
            has_pods: true,
            all: false,
            groups: ["239.1.2.3".parse().unwrap(), "ff15::42".parse().unwrap()].into(),
        };
        let bytes = write("10.244.1.0/24".parse().unwrap(), &Message::Wants(wants));
        let mut expected = b"PWMC\x01\x02\x04\x18\x0a\xf4\x01\x00".to_vec();
        expected.extend([0; 12]);
        expected.extend([1, 0, 1, 239, 1, 2, 3, 0, 1, 0xff, 0x15]);
        expected.extend([0; 13]);
        expected.push(0x42);
        assert_eq!(bytes, expected);
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            groups: BTreeSet<IpAddr>, has_pods: bool, packet: Vec<u8>, v6: bool,
        ) {
            let subnet = if v6 { "fd44:1::/64" } else { "10.244.1.0/24" };
            let subnet: IpNet = subnet.parse().unwrap();
            let wants = Message::Wants(Wants { has_pods, all: false, groups });
            for message in [wants, Message::Packet(&packet), Message::Question] {
                let bytes = write(subnet, &message);
                prop_assert_eq!(read(&bytes), Some((subnet, message)));
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, kind: u8) {
            let _ = read(&bytes);
            let header = [&MAGIC[..], &[VERSION, kind & 3, 4, 24], &[0; 16], &bytes].concat();
            let _ = read(&header);
        }
    }
}
