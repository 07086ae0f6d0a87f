// SPDX-License-Identifier: Apache-2.0
//! Sockets that probe a path: echo requests and UDP datagrams that no router may fragment, whatever
//! path MTU this host has learned, and the ICMP errors that come back for them.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::{RecvFlags, SendFlags};

use super::{attach_filter, check, op, open, set_option};
use crate::error::{Error, Result};
use crate::types::Family;

const ECHO_REPLY: u32 = 0; // linux/icmp.h, ICMP_ECHOREPLY
const ECHO_REPLY_V6: u32 = 129; // linux/icmpv6.h, ICMPV6_ECHO_REPLY
const ECHO: u8 = 8; // linux/icmp.h, ICMP_ECHO
const ECHO_V6: u8 = 128; // linux/icmpv6.h, ICMPV6_ECHO_REQUEST
const ICMP_HEADER: usize = 8;

/// The component that computes the checksum of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChecksumBy {
    /// By the outgoing device, if it can. This is the default for everything that programs send.
    Device,
    /// By the kernel, before it passes the datagram to the device.
    Kernel,
}

/// An ICMP error that came back for a sent packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpError {
    /// Number of bytes of the sent payload that the error quotes; they are at the start of the
    /// buffer.
    pub len: usize,
    /// Meaning of the error.
    pub reason: Reason,
    /// Address of the host or router that reports the error.
    pub by: Option<IpAddr>,
}

/// Meaning of an ICMP error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The packet exceeds the MTU of a link on the path. Holds that MTU, or 0 if the router did not
    /// report it.
    TooBig(u32),
    /// The destination host has no listener on the port.
    Refused,
    /// The destination is unreachable or a filter rejects the packet.
    Unreachable,
}

/// Socket for echo requests or datagrams of one address family. No call blocks.
#[derive(Debug)]
pub struct ProbeSocket {
    fd: OwnedFd,
    family: Family,
    /// Identifier of echo requests; `None` for a datagram socket.
    identifier: Option<u16>,
}

impl ProbeSocket {
    /// Opens a socket for echo requests in the calling thread's namespace. It receives replies with
    /// this identifier only.
    pub fn echo(family: Family, identifier: u16) -> Result<Self> {
        let (domain, protocol) = match family {
            Family::V4 => (libc::AF_INET, libc::IPPROTO_ICMP),
            Family::V6 => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
        };
        let try_open = || {
            let fd = open(domain, libc::SOCK_RAW | libc::SOCK_NONBLOCK, protocol)?;
            attach_filter(fd.as_fd(), &accept_replies(family, identifier))?;
            set_probe_options(fd.as_fd(), family)?;
            Ok(fd)
        };
        let fd = try_open().map_err(|cause| Error::from_io("open echo socket", "", &cause))?;
        Ok(Self { fd, family, identifier: Some(identifier) })
    }

    /// Opens a socket for datagrams in the calling thread's namespace.
    pub fn datagram(family: Family) -> Result<Self> {
        let domain = if family == Family::V4 { libc::AF_INET } else { libc::AF_INET6 };
        let try_open = || {
            let fd = open(domain, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0)?;
            set_probe_options(fd.as_fd(), family)?;
            Ok(fd)
        };
        let fd = try_open().map_err(|cause| Error::from_io("open datagram socket", "", &cause))?;
        Ok(Self { fd, family, identifier: None })
    }

    /// Sends a payload with the header of the socket's protocol. Echo requests ignore the port.
    pub fn send(&self, to: SocketAddr, payload: &[u8], checksum: ChecksumBy) -> io::Result<()> {
        let mut last = Ok(());
        // The kernel reports an ICMP error for an earlier packet on the next send, which then sends
        // nothing.
        for _ in 0..3 {
            last = match self.identifier {
                Some(identifier) => {
                    let to = SocketAddr::new(to.ip(), 0);
                    self.send_once(
                        to,
                        &echo_request(self.family, identifier, payload),
                        ChecksumBy::Device,
                    )
                }
                None => self.send_once(to, payload, checksum),
            };
            if last.is_ok() {
                break;
            }
        }
        last
    }

    fn send_once(&self, to: SocketAddr, bytes: &[u8], checksum: ChecksumBy) -> io::Result<()> {
        let flags = match checksum {
            ChecksumBy::Device => SendFlags::empty(),
            // The kernel computes the checksum of a datagram sent in parts while it copies them.
            ChecksumBy::Kernel => SendFlags::MORE,
        };
        rustix::net::sendto(&self.fd, bytes, flags, &to)?;
        if checksum == ChecksumBy::Kernel {
            rustix::net::sendto(&self.fd, &[], SendFlags::empty(), &to)?;
        }
        Ok(())
    }

    /// Receives the next reply. Returns the position of its payload in the buffer, or `None` if no
    /// reply is waiting.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<std::ops::Range<usize>>> {
        let received = rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::empty());
        let (len, _) = match received {
            Ok(received) => received,
            Err(errno) if errno == rustix::io::Errno::AGAIN => return Ok(None),
            // This only announces an ICMP error; the error itself is in the error queue.
            Err(_) => return Ok(Some(0..0)),
        };
        let headers = match (self.identifier, self.family) {
            (None, _) => 0,
            (Some(_), Family::V6) => ICMP_HEADER,
            (Some(_), Family::V4) => {
                usize::from(buffer.first().map_or(0, |first| first & 0xf)) * 4 + ICMP_HEADER
            }
        };
        Ok(Some(headers.min(len)..len))
    }

    /// Receives the next ICMP error, or `None` if none is waiting. The buffer then starts with the
    /// part of the sent payload that the error quotes.
    pub fn receive_error(&self, buffer: &mut [u8]) -> io::Result<Option<IcmpError>> {
        loop {
            let (len, error) = match self.read_error_queue(buffer) {
                Ok(received) => received,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(cause) => return Err(cause),
            };
            let skipped = if self.identifier.is_some() { ICMP_HEADER } else { 0 };
            let Some((reason, by)) = error.and_then(|error| error.parse()) else { continue };
            let len = len.saturating_sub(skipped);
            if len > 0 {
                buffer.copy_within(skipped..skipped + len, 0);
            }
            return Ok(Some(IcmpError { len, reason, by }));
        }
    }

    fn read_error_queue(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<ExtendedError>)> {
        // SAFETY: all zeroes are valid for both.
        let (mut header, mut control): (libc::msghdr, Control) = unsafe { zeroed() };
        let mut vector =
            libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = size_of::<Control>() as _;
        // SAFETY: everything that the header points to is writable and lives until the call
        // returns.
        let len = check(unsafe {
            libc::recvmsg(self.fd.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE)
        })?;
        let (level, kind) = receive_errors(self.family);
        let is_it = control.level == level && control.kind == kind;
        // With an IPv4 address the kernel writes less, and the rest stays zero.
        let least = std::mem::offset_of!(ExtendedError, v6);
        let is_whole = control.len >= std::mem::offset_of!(Control, error) + least;
        Ok((len.cast_unsigned(), (is_it && is_whole).then_some(control.error)))
    }
}

impl AsFd for ProbeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for ProbeSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Forbids fragmentation and enables the error queue.
fn set_probe_options(fd: BorrowedFd<'_>, family: Family) -> io::Result<()> {
    // This mode forbids fragmentation and ignores the path MTU that the host has learned.
    let (level, option, mode) = match family {
        Family::V4 => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
        Family::V6 => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
    };
    set_option(fd, level, option, &mode.to_ne_bytes())?;
    let (level, option) = receive_errors(family);
    set_option(fd, level, option, &1i32.to_ne_bytes())
}

fn receive_errors(family: Family) -> (libc::c_int, libc::c_int) {
    match family {
        Family::V4 => (libc::IPPROTO_IP, libc::IP_RECVERR),
        Family::V6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    }
}

/// Returns a program that accepts echo replies with this identifier. A raw IPv4 socket delivers
/// packets with their IP header, a raw IPv6 socket without.
fn accept_replies(family: Family, identifier: u16) -> Vec<libc::sock_filter> {
    let jump = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let load_header_len = op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0);
    let (mode, reply) = match family {
        Family::V4 => (libc::BPF_IND, ECHO_REPLY),
        Family::V6 => (libc::BPF_ABS, ECHO_REPLY_V6),
    };
    let rest = [
        op(libc::BPF_LD | libc::BPF_B | mode, 0, 0, 0),
        op(jump, 0, 3, reply),
        op(libc::BPF_LD | libc::BPF_H | mode, 0, 0, 4),
        op(jump, 0, 1, u32::from(identifier)),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let first = (family == Family::V4).then_some(load_header_len);
    first.into_iter().chain(rest).collect()
}

/// Builds an echo request. For IPv6 the kernel computes the checksum, because it covers the
/// addresses that the kernel chooses.
fn echo_request(family: Family, identifier: u16, payload: &[u8]) -> Vec<u8> {
    let kind = if family == Family::V4 { ECHO } else { ECHO_V6 };
    let [high, low] = identifier.to_be_bytes();
    let mut message = vec![kind, 0, 0, 0, high, low, 0, 0];
    message.extend_from_slice(payload);
    if family == Family::V4 {
        let words = message.chunks(2);
        let mut sum: u32 =
            words.map(|w| u32::from(w[0]) << 8 | u32::from(w.get(1).copied().unwrap_or(0))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
    message
}

/// `struct cmsghdr` followed by the error, in the kernel's layout, which differs from musl's.
#[repr(C)]
struct Control {
    len: usize,
    level: libc::c_int,
    kind: libc::c_int,
    error: ExtendedError,
}

/// `struct sock_extended_err` (linux/errqueue.h) followed by the address of the reporting host.
#[repr(C)]
#[derive(Clone, Copy)]
struct ExtendedError {
    errno: u32,
    origin: u8,
    kind: u8,
    code: u8,
    pad: u8,
    info: u32,
    data: u32,
    /// `struct sockaddr_in` or `sockaddr_in6`: family, port, IPv4 address, IPv6 address.
    family: u16,
    port: u16,
    v4: [u8; 4],
    v6: [u8; 16],
    scope: u32,
}

impl ExtendedError {
    /// Returns the meaning and the sender of an ICMP error; `None` for an error of another origin.
    fn parse(&self) -> Option<(Reason, Option<IpAddr>)> {
        if ![libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6].contains(&self.origin) {
            return None;
        }
        let reason = match self.errno.cast_signed() {
            libc::EMSGSIZE => Reason::TooBig(self.info),
            libc::ECONNREFUSED => Reason::Refused,
            _ => Reason::Unreachable,
        };
        let by = match libc::c_int::from(self.family) {
            libc::AF_INET => Some(Ipv4Addr::from(self.v4).into()),
            libc::AF_INET6 => Some(Ipv6Addr::from(self.v6).into()),
            _ => None,
        };
        Some((reason, by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echo_request_has_checksum_only_for_ipv4() {
        assert_eq!(echo_request(Family::V4, 0x1234, &[1]), [8, 0, 0xe4, 0xcb, 0x12, 0x34, 0, 0, 1]);
        assert_eq!(echo_request(Family::V6, 0x1234, &[1]), [128, 0, 0, 0, 0x12, 0x34, 0, 0, 1]);
    }
}
