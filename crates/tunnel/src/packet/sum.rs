// SPDX-License-Identifier: Apache-2.0
//! The Internet checksum (RFC 1071). All payload that comes or goes is summed once, so it must be quick.

use kernel::Family;

use super::{Ip, set_u16};

/// The ones' complement sum of the big-endian 16-bit words of these bytes, padded by zero.
///
/// Words of 32 bits in the machine's order, many at once, give the same: 2^16 is 1 to the modulus 65535, and
/// the order of bytes can be put right at the end.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut lanes = [0_u64; 8];
    for block in blocks {
        add(&mut lanes, block);
    }
    let mut last = [0; 32];
    last[..rest.len()].copy_from_slice(rest);
    add(&mut lanes, &last);
    u64::from(u16::from_be(fold(lanes.iter().sum())))
}

/// A packet has at most 2^14 words, so that nothing overflows.
fn add(lanes: &mut [u64; 8], block: &[u8; 32]) {
    let (words, _) = block.as_chunks::<4>();
    for (lane, word) in lanes.iter_mut().zip(words) {
        *lane += u64::from(u32::from_ne_bytes(*word));
    }
}

/// The sum in 16 bits; the checksum is its complement.
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // The loop's condition.
    sum as u16
}

/// What TCP and UDP sum besides their own bytes: addresses, protocol and length.
pub(crate) fn pseudo(packet: &[u8], ip: &Ip, protocol: u8, len: usize) -> u64 {
    let addresses = match ip.family {
        Family::V4 => &packet[12..20],
        Family::V6 => &packet[8..40],
    };
    sum(addresses) + u64::from(protocol) + len as u64
}

/// Whether the sum of these bytes, checksum included, is what it must be.
pub(crate) fn is_right(sum: u64) -> bool {
    fold(sum) == 0xffff
}

/// Fills in a checksum that was left to us: of all from `start`, at `start + offset`, where the sum of what
/// is not in these bytes stands. `false` if that is not in the packet.
pub(crate) fn complete(packet: &mut [u8], start: usize, offset: usize) -> bool {
    let at = start + offset;
    if at + 2 > packet.len() {
        return false;
    }
    // The sum that stands there is summed with the rest.
    let mut checksum = !fold(sum(&packet[start..]));
    // No checksum, for UDP; for the others the same as the other zero.
    if checksum == 0 {
        checksum = 0xffff;
    }
    set_u16(packet, at, checksum);
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::sample::plain_sum;

    #[test]
    fn example_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)), 0xddf2);
    }

    proptest! {
        #[test]
        fn quick_sum_is_the_plain_one(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(fold(sum(&bytes)), plain_sum(&bytes));
        }

        #[test]
        fn sums_of_parts_add_up(
            bytes in prop::collection::vec(any::<u8>(), 2..300),
            at: prop::sample::Index,
        ) {
            let (front, back) = bytes.split_at(at.index(bytes.len()) & !1);
            prop_assert_eq!(fold(sum(front) + sum(back)), plain_sum(&bytes));
        }
    }
}
