// SPDX-License-Identifier: Apache-2.0
//! A message in its IPv4 packet: a client without an address makes its own headers.

use std::net::Ipv4Addr;

use super::{CLIENT_PORT, SERVER_PORT};

const IP_LEN: usize = 20;
const UDP_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;
const TIME_TO_LIVE: u8 = 64;

/// A message from client to server as a packet.
pub fn wrap(from: Ipv4Addr, to: Ipv4Addr, message: &[u8]) -> Vec<u8> {
    let udp_len = (UDP_LEN + message.len()) as u16;
    let mut packet = Vec::with_capacity(IP_LEN + UDP_LEN + message.len());
    packet.extend([0x45, 0x10]);
    packet.extend((IP_LEN as u16 + udp_len).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, TIME_TO_LIVE, PROTOCOL_UDP, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum = checksum(&[&packet]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(CLIENT_PORT.to_be_bytes());
    packet.extend(SERVER_PORT.to_be_bytes());
    packet.extend(udp_len.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(message);
    let pseudo = [0, PROTOCOL_UDP, udp_len.to_be_bytes()[0], udp_len.to_be_bytes()[1]];
    // Zero would mean that there is none.
    let sum = match checksum(&[&packet[12..20], &pseudo, &packet[IP_LEN..]]) {
        0 => u16::MAX,
        sum => sum,
    };
    packet[IP_LEN + 6..IP_LEN + 8].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The message in a packet from a server to a client. Checksums are not looked at: a server on this
/// machine leaves them to network cards that its packets never see.
pub fn unwrap(packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let header = usize::from(first & 0xf) * 4;
    let is_ours = first >> 4 == 4 && header >= IP_LEN && *packet.get(9)? == PROTOCOL_UDP;
    let total = usize::from(number(packet, 2)?);
    let udp = packet.get(header..total)?;
    let is_ours = is_ours && number(udp, 0)? == SERVER_PORT && number(udp, 2)? == CLIENT_PORT;
    if !is_ours {
        return None;
    }
    udp.get(UDP_LEN..usize::from(number(udp, 4)?))
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

/// The internet checksum; every part but the last has an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded + (folded >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sums_are_right() {
        let packet = wrap(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, b"odd");
        assert_eq!(checksum(&[&packet[..20]]), 0);
        let pseudo = [0, 17, 0, 11];
        assert_eq!(checksum(&[&packet[12..20], &pseudo, &packet[20..]]), 0);
    }

    proptest! {
        #[test]
        fn any_packet_is_read_without_panic(packet: Vec<u8>) {
            let _ = unwrap(&packet);
        }

        #[test]
        fn what_a_server_wraps_is_unwrapped(message in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut packet = wrap(Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST, &message);
            packet.swap(21, 23);
            prop_assert_eq!(unwrap(&packet), Some(&message[..]));
        }
    }
}
