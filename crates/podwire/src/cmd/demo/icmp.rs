// SPDX-License-Identifier: Apache-2.0
//! One ICMP echo over a raw socket, for both address families. Unprivileged echo sockets are disabled in
//! a new namespace (`net.ipv4.ping_group_range`), and the demo runs as root.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};
use rustix::net::{connect, recv, send, socket_with};

const ECHO_REPLY: u8 = 0; // linux/icmp.h
const ECHO_REQUEST: u8 = 8; // linux/icmp.h
const ECHO_REQUEST_V6: u8 = 128; // linux/icmpv6.h
const ECHO_REPLY_V6: u8 = 129; // linux/icmpv6.h

/// Sends echo requests from this thread's namespace to one address.
#[derive(Debug)]
pub(crate) struct Pinger {
    socket: OwnedFd,
    to: IpAddr,
}

impl Pinger {
    pub(crate) fn open(to: IpAddr) -> Result<Pinger> {
        let (family, protocol) = match to {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let open = || -> rustix::io::Result<OwnedFd> {
            let socket =
                socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))?;
            // A connected socket receives packets of this address only.
            connect(&socket, &SocketAddr::new(to, 0))?;
            Ok(socket)
        };
        let socket = open().with_context(|| format!("open an ICMP socket to {to}"))?;
        Ok(Pinger { socket, to })
    }

    /// Sends one request and returns the time until the reply.
    pub(crate) fn ping(&self, sequence: u16, timeout: Duration) -> Result<Duration> {
        let started = Instant::now();
        let expected = Echo { id: std::process::id() as u16, sequence };
        send(&self.socket, &expected.request(self.to), SendFlags::empty())
            .with_context(|| format!("send an echo request to {}", self.to))?;
        let mut buffer = [0; 1024];
        let mut unreachable = None;
        loop {
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                let why: String = unreachable.map(|why| format!(": {why}")).unwrap_or_default();
                bail!("no answer from {} within {} ms{why}", self.to, timeout.as_millis());
            }
            set_socket_timeout(&self.socket, Timeout::Recv, Some(left))
                .context("set a socket's timeout")?;
            let length = match recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((_, length)) => length,
                Err(Errno::AGAIN | Errno::INTR) => continue,
                // A router's report about this or an earlier request.
                Err(errno @ (Errno::HOSTUNREACH | Errno::NETUNREACH)) => {
                    unreachable = Some(errno);
                    continue;
                }
                Err(errno) => {
                    return Err(io::Error::from(errno))
                        .with_context(|| format!("wait for the reply of {}", self.to));
                }
            };
            if Echo::read_reply(self.to, &buffer[..length.min(buffer.len())]) == Some(expected) {
                return Ok(started.elapsed());
            }
        }
    }
}

/// Identifies a request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Echo {
    id: u16,
    sequence: u16,
}

impl Echo {
    fn request(self, to: IpAddr) -> [u8; 16] {
        let mut packet = [0; 16];
        packet[0] = if to.is_ipv4() { ECHO_REQUEST } else { ECHO_REQUEST_V6 };
        packet[4..6].copy_from_slice(&self.id.to_be_bytes());
        packet[6..8].copy_from_slice(&self.sequence.to_be_bytes());
        packet[8..].copy_from_slice(b"podwire!");
        // For IPv6 the kernel fills in the checksum, which also covers the addresses.
        if to.is_ipv4() {
            let sum = checksum(&packet);
            packet[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        packet
    }

    /// Parses a reply. A raw IPv4 socket also delivers the IP header, an IPv6 socket does not.
    fn read_reply(from: IpAddr, packet: &[u8]) -> Option<Echo> {
        let (kind, header) = match from {
            IpAddr::V4(_) => (ECHO_REPLY, usize::from(packet.first()? & 0x0f) * 4),
            IpAddr::V6(_) => (ECHO_REPLY_V6, 0),
        };
        let [received, _, _, _, id_high, id_low, sequence_high, sequence_low] =
            *packet.get(header..)?.first_chunk::<8>()?;
        let id = u16::from_be_bytes([id_high, id_low]);
        let sequence = u16::from_be_bytes([sequence_high, sequence_low]);
        (received == kind).then_some(Echo { id, sequence })
    }
}

/// Internet checksum (RFC 1071).
fn checksum(packet: &[u8]) -> u16 {
    let words = packet
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

    #[test]
    fn request_has_type_and_checksum() {
        let echo = Echo { id: 0x1234, sequence: 7 };
        let packet = echo.request(V4);
        assert_eq!((packet[0], checksum(&packet)), (ECHO_REQUEST, 0));
        let packet = echo.request(V6);
        assert_eq!((packet[0], &packet[2..4]), (ECHO_REQUEST_V6, &[0, 0][..]));
    }

    #[test]
    fn only_a_reply_is_accepted() {
        let echo = Echo { id: 0x1234, sequence: 7 };
        let mut reply = vec![0x46; 24];
        reply.extend([ECHO_REPLY, 0, 0, 0, 0x12, 0x34, 0, 7]);
        assert_eq!(Echo::read_reply(V4, &reply), Some(echo));
        reply[24] = ECHO_REQUEST;
        assert_eq!(Echo::read_reply(V4, &reply), None);
        assert_eq!(Echo::read_reply(V6, &[ECHO_REPLY_V6, 0, 0, 0, 0x12, 0x34, 0, 7]), Some(echo));
        for short in [&[][..], &[0x45], &[0x4f; 20]] {
            assert_eq!(Echo::read_reply(V4, short), None);
        }
    }

    #[test]
    fn checksum_matches_the_rfc_example() {
        // The example of RFC 1071, section 3: the sum is ddf2.
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&[0xff]), !0xff00);
    }
}
