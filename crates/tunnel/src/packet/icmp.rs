// SPDX-License-Identifier: Apache-2.0
//! ICMP errors for the senders of packets that the tunnel cannot forward, and their rate limit.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use kernel::Family;

use super::{Fragment, ICMP, ICMPV6, Ip, checksum, set_u16};

/// Reason why a packet cannot be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    NoRoute,
    Expired,
}

/// Maximum number of quoted bytes: the whole message fits into the minimum MTU.
const QUOTED_V4: usize = 576 - 20 - 8;
const QUOTED_V6: usize = 1280 - 40 - 8;
const HEADER: usize = 8;

/// Builds the message to the packet's sender, starting with the ICMP header. For IPv6 the kernel
/// fills in the checksum. Returns `None` for packets that must not cause an error: ICMP errors,
/// fragments other than the first, and packets whose source or destination is not a single host.
pub(crate) fn message(packet: &[u8], ip: &Ip, reason: Reason) -> Option<Vec<u8>> {
    if !is_one_host(ip.source) || !is_one_host(ip.destination) {
        return None;
    }
    if Fragment::of(packet, ip) == Fragment::Later || is_error(packet, ip) {
        return None;
    }
    let (kind, code, max_quoted) = match (ip.family, reason) {
        (Family::V4, Reason::NoRoute) => (3, 0, QUOTED_V4),
        (Family::V4, Reason::Expired) => (11, 0, QUOTED_V4),
        (Family::V6, Reason::NoRoute) => (1, 0, QUOTED_V6),
        (Family::V6, Reason::Expired) => (3, 0, QUOTED_V6),
    };
    let quoted = &packet[..packet.len().min(max_quoted)];
    let mut message = Vec::with_capacity(HEADER + quoted.len());
    message.extend_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(quoted);
    if ip.family == Family::V4 {
        let checksum = !checksum::fold(checksum::sum(&message));
        set_u16(&mut message, 2, checksum);
    }
    Some(message)
}

fn is_one_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !address.is_unspecified() && !address.is_multicast() && !is_broadcast
}

/// Returns whether the packet is an ICMP error. Unknown IPv4 types count as errors.
fn is_error(packet: &[u8], ip: &Ip) -> bool {
    let kind = packet.get(ip.header).copied();
    match (ip.family, ip.protocol) {
        // Echo, timestamp and address mask, requests and replies.
        (Family::V4, ICMP) => !matches!(kind, Some(0 | 8 | 13..=18)),
        (Family::V6, ICMPV6) => kind.is_none_or(|kind| kind < 128),
        _ => false,
    }
}

/// Maximum number of messages per second.
const MAX_PER_SECOND: u32 = 100;

/// Limits the rate of messages.
#[derive(Debug)]
pub(crate) struct RateLimit {
    since: Instant,
    count: u32,
}

impl RateLimit {
    pub(crate) fn new(now: Instant) -> RateLimit {
        RateLimit { since: now, count: 0 }
    }

    pub(crate) fn allows(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            *self = RateLimit::new(now);
        }
        self.count += 1;
        self.count <= MAX_PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::sample::{Tcp, plain_sum};

    fn message_for(packet: &[u8], reason: Reason) -> Option<Vec<u8>> {
        message(packet, &Ip::parse(packet).unwrap(), reason)
    }

    #[test]
    fn message_quotes_the_packet() {
        let packet = Tcp { payload: 3000, ..Tcp::default() }.packet();
        let sent = message_for(&packet, Reason::NoRoute).unwrap();
        assert_eq!(sent[..2], [3, 0]);
        assert_eq!(plain_sum(&sent), 0xffff);
        assert_eq!(sent[8..], packet[..548]);
        assert_eq!(message_for(&packet, Reason::Expired).unwrap()[..2], [11, 0]);

        let packet = Tcp { payload: 30, ..Tcp::v6() }.packet();
        let sent = message_for(&packet, Reason::NoRoute).unwrap();
        assert_eq!((&sent[..2], &sent[8..]), (&[1, 0][..], &packet[..]));
        assert_eq!(message_for(&packet, Reason::Expired).unwrap()[..2], [3, 0]);
    }

    #[test]
    fn no_error_for_errors_groups_and_later_fragments() {
        let change = |at: usize, to: &[u8]| {
            let mut packet = Tcp::default().packet();
            packet[at..at + to.len()].copy_from_slice(to);
            message_for(&packet, Reason::NoRoute).is_some()
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
            message_for(&packet, Reason::NoRoute).is_some()
        };
        assert!(icmp(8) && !icmp(3) && !icmp(11));
        let icmp = |kind: u8| {
            let mut packet = Tcp::v6().packet();
            (packet[6], packet[40]) = (ICMPV6, kind);
            message_for(&packet, Reason::NoRoute).is_some()
        };
        assert!(icmp(128) && !icmp(1));
    }

    #[test]
    fn rate_limit_resets_after_a_second() {
        let start = Instant::now();
        let mut limit = RateLimit::new(start);
        let allowed = (0..1000).filter(|_| limit.allows(start)).count();
        assert_eq!(allowed, MAX_PER_SECOND as usize);
        assert!(limit.allows(start + Duration::from_secs(1)));
    }
}
