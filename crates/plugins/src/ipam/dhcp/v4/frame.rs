// SPDX-License-Identifier: Apache-2.0
//! IPv4 and UDP headers of messages. A client without an address must create them itself.

use std::net::Ipv4Addr;

use super::{CLIENT_PORT, SERVER_PORT};

const IP_LEN: usize = 20;
const UDP_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;
const TIME_TO_LIVE: u8 = 64;

/// Creates the packet for a message from client to server.
pub(crate) fn wrap(from: Ipv4Addr, to: Ipv4Addr, message: &[u8]) -> Vec<u8> {
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
    // Zero means that there is no checksum.
    let sum = match checksum(&[&packet[12..20], &pseudo, &packet[IP_LEN..]]) {
        0 => u16::MAX,
        sum => sum,
    };
    packet[IP_LEN + 6..IP_LEN + 8].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Returns the message in a packet from server to client. Checksums are ignored: a server on this machine leaves them to
/// the network card, and local packets never pass one.
pub(crate) fn unwrap(packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let header = usize::from(first & 0xf) * 4;
    let is_udp = first >> 4 == 4 && header >= IP_LEN && *packet.get(9)? == PROTOCOL_UDP;
    let total = usize::from(number(packet, 2)?);
    let udp = packet.get(header..total)?;
    let is_reply = is_udp && number(udp, 0)? == SERVER_PORT && number(udp, 2)? == CLIENT_PORT;
    if !is_reply {
        return None;
    }
    udp.get(UDP_LEN..usize::from(number(udp, 4)?))
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

/// Computes the internet checksum. Every part except the last must have an even length.
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
    fn checksums_are_correct() {
        let packet = wrap(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, b"odd");
        assert_eq!(checksum(&[&packet[..20]]), 0);
        let pseudo = [0, 17, 0, 11];
        assert_eq!(checksum(&[&packet[12..20], &pseudo, &packet[20..]]), 0);
    }

    proptest! {
        #[test]
        fn unwrapping_never_panics(packet: Vec<u8>) {
            let _ = unwrap(&packet);
        }

        #[test]
        fn server_packet_is_unwrapped(message in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut packet = wrap(Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST, &message);
            packet.swap(21, 23);
            prop_assert_eq!(unwrap(&packet), Some(&message[..]));
        }
    }
}
