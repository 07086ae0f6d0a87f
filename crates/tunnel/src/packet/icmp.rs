// SPDX-License-Identifier: Apache-2.0
//! What the sender of a packet that cannot be carried is told, and how often.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use kernel::Family;

use super::{Fragment, ICMP, ICMPV6, Ip, set_u16, sum};

/// Why a packet went no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    NoRoute,
    Expired,
}

/// As much of the packet as is told: the whole answer is no longer than any link must carry.
const QUOTED_V4: usize = 576 - 20 - 8;
const QUOTED_V6: usize = 1280 - 40 - 8;
const HEADER: usize = 8;

/// The message to the packet's sender, ICMP header first; for IPv6 the kernel fills in its checksum.
/// `None` where nobody may be told: about other such messages, later fragments, and packets to or from
/// more or less than one host.
pub(crate) fn message(packet: &[u8], ip: &Ip, reason: Reason) -> Option<Vec<u8>> {
    if !is_one_host(ip.source) || !is_one_host(ip.destination) {
        return None;
    }
    if Fragment::of(packet, ip) == Fragment::Later || is_error(packet, ip) {
        return None;
    }
    let (kind, code, most) = match (ip.family, reason) {
        (Family::V4, Reason::NoRoute) => (3, 0, QUOTED_V4),
        (Family::V4, Reason::Expired) => (11, 0, QUOTED_V4),
        (Family::V6, Reason::NoRoute) => (1, 0, QUOTED_V6),
        (Family::V6, Reason::Expired) => (3, 0, QUOTED_V6),
    };
    let quoted = &packet[..packet.len().min(most)];
    let mut message = Vec::with_capacity(HEADER + quoted.len());
    message.extend_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(quoted);
    if ip.family == Family::V4 {
        let checksum = !sum::fold(sum::sum(&message));
        set_u16(&mut message, 2, checksum);
    }
    Some(message)
}

fn is_one_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !address.is_unspecified() && !address.is_multicast() && !is_broadcast
}

/// Whether it is itself about a packet; unknown kinds are taken for it.
fn is_error(packet: &[u8], ip: &Ip) -> bool {
    let kind = packet.get(ip.header).copied();
    match (ip.family, ip.protocol) {
        // Echo, time stamp and address mask, and their answers.
        (Family::V4, ICMP) => !matches!(kind, Some(0 | 8 | 13..=18)),
        (Family::V6, ICMPV6) => kind.is_none_or(|kind| kind < 128),
        _ => false,
    }
}

/// Messages in one second; a sender who goes on needs no more.
const A_SECOND: u32 = 100;

/// Holds back what would be too much.
#[derive(Debug)]
pub(crate) struct Limit {
    since: Instant,
    count: u32,
}

impl Limit {
    pub(crate) fn new(now: Instant) -> Limit {
        Limit { since: now, count: 0 }
    }

    pub(crate) fn allows(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            *self = Limit::new(now);
        }
        self.count += 1;
        self.count <= A_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::sample::{Tcp, plain_sum};

    fn about(packet: &[u8], reason: Reason) -> Option<Vec<u8>> {
        message(packet, &Ip::of(packet).unwrap(), reason)
    }

    #[test]
    fn sender_is_told_with_the_packet_quoted() {
        let packet = Tcp { payload: 3000, ..Tcp::default() }.packet();
        let told = about(&packet, Reason::NoRoute).unwrap();
        assert_eq!(told[..2], [3, 0]);
        assert_eq!(plain_sum(&told), 0xffff);
        assert_eq!(told[8..], packet[..548]);
        assert_eq!(about(&packet, Reason::Expired).unwrap()[..2], [11, 0]);

        let packet = Tcp { payload: 30, ..Tcp::v6() }.packet();
        let told = about(&packet, Reason::NoRoute).unwrap();
        assert_eq!((&told[..2], &told[8..]), (&[1, 0][..], &packet[..]));
        assert_eq!(about(&packet, Reason::Expired).unwrap()[..2], [3, 0]);
    }

    #[test]
    fn nobody_is_told_about_what_has_no_one_sender_or_is_told_itself() {
        let change = |at: usize, to: &[u8]| {
            let mut packet = Tcp::default().packet();
            packet[at..at + to.len()].copy_from_slice(to);
            about(&packet, Reason::NoRoute).is_some()
        };
        assert!(change(0, &[0x45]));
        assert!(!change(16, &[224, 0, 0, 1]));
        assert!(!change(16, &[255, 255, 255, 255]));
        assert!(!change(12, &[0, 0, 0, 0]));
        assert!(!change(6, &[0x00, 0x10]), "a later fragment");
        assert!(change(6, &[0x20, 0x00]), "the first fragment");
        let icmp = |kind: u8| {
            let mut packet = Tcp::default().packet();
            (packet[9], packet[20]) = (ICMP, kind);
            about(&packet, Reason::NoRoute).is_some()
        };
        assert!(icmp(8) && !icmp(3) && !icmp(11));
        let icmp = |kind: u8| {
            let mut packet = Tcp::v6().packet();
            (packet[6], packet[40]) = (ICMPV6, kind);
            about(&packet, Reason::NoRoute).is_some()
        };
        assert!(icmp(128) && !icmp(1));
    }

    #[test]
    fn a_second_has_its_limit() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let allowed = (0..1000).filter(|_| limit.allows(start)).count();
        assert_eq!(allowed, A_SECOND as usize);
        assert!(limit.allows(start + Duration::from_secs(1)));
    }
}
