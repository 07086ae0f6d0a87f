// SPDX-License-Identifier: Apache-2.0
//! The Internet checksum (RFC 1071). Every payload byte is summed once, so the sum must be fast.

use kernel::Family;

use super::{Ip, set_u16};

/// Returns the ones' complement sum of the big-endian 16-bit words, with zero padding.
///
/// The loop adds 32-bit words in host byte order, many at a time. The result is the same, because
/// 2^16 is 1 modulo 65535 and the bytes can be swapped at the end.
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

/// Adds a block to the lanes. A packet has at most 2^14 words, so that no lane overflows.
fn add(lanes: &mut [u64; 8], block: &[u8; 32]) {
    let (words, _) = block.as_chunks::<4>();
    for (lane, word) in lanes.iter_mut().zip(words) {
        *lane += u64::from(u32::from_ne_bytes(*word));
    }
}

/// Folds a sum to 16 bits. The checksum is the complement of the result.
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // The loop ensures that the value fits.
    sum as u16
}

/// Returns the sum of the pseudo header of TCP and UDP: addresses, protocol and length.
pub(crate) fn pseudo(packet: &[u8], ip: &Ip, protocol: u8, len: usize) -> u64 {
    let addresses = match ip.family {
        Family::V4 => &packet[12..20],
        Family::V6 => &packet[8..40],
    };
    sum(addresses) + u64::from(protocol) + len as u64
}

/// Returns whether a sum that includes the checksum field is valid.
pub(crate) fn is_valid(sum: u64) -> bool {
    fold(sum) == 0xffff
}

/// Fills in a checksum that the kernel left to this program. The checksum covers the bytes from
/// `start` on; its field is at `start + offset` and already holds the sum of the pseudo header.
/// Returns `false` if the field is not in the packet.
pub(crate) fn complete(packet: &mut [u8], start: usize, offset: usize) -> bool {
    let at = start + offset;
    if at + 2 > packet.len() {
        return false;
    }
    // The sum includes the pseudo header's sum, which is in the checksum field.
    let mut checksum = !fold(sum(&packet[start..]));
    // UDP uses 0 for "no checksum"; 0xffff is the same number in ones' complement.
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
    fn sum_matches_the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)), 0xddf2);
    }

    proptest! {
        #[test]
        fn fast_sum_equals_the_plain_sum(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(fold(sum(&bytes)), plain_sum(&bytes));
        }

        #[test]
        fn sums_of_two_parts_add_up(
            bytes in prop::collection::vec(any::<u8>(), 2..300),
            at: prop::sample::Index,
        ) {
            let (front, back) = bytes.split_at(at.index(bytes.len()) & !1);
            prop_assert_eq!(fold(sum(front) + sum(back)), plain_sum(&bytes));
        }
    }
}
