// SPDX-License-Identifier: Apache-2.0
//! Sockets that find out what a path carries: echo requests and UDP datagrams that no router may cut
//! into pieces, whatever this host believes of the path, and the ICMP errors that come back for them.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::{RecvFlags, SendFlags};

use crate::error::{Error, Result};
use crate::packet::{attach_program, check, op, set_option, socket};
use crate::types::Family;

const ECHO_REPLY: u32 = 0; // linux/icmp.h, ICMP_ECHOREPLY
const ECHO_REPLY_V6: u32 = 129; // linux/icmpv6.h, ICMPV6_ECHO_REPLY
const ECHO: u8 = 8; // linux/icmp.h, ICMP_ECHO
const ECHO_V6: u8 = 128; // linux/icmpv6.h, ICMPV6_ECHO_REQUEST
const ICMP_HEADER: usize = 8;

/// Who fills in the checksum of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sum {
    /// The device that it leaves by, if that can; as with all that programs send.
    Device,
    /// The kernel, before the device sees it.
    Kernel,
}

/// An ICMP error for something that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// How many bytes of what was sent are in the buffer, behind the header of ICMP or UDP.
    pub len: usize,
    /// What it says.
    pub reason: Reason,
    /// Who says so.
    pub by: Option<IpAddr>,
}

/// What an ICMP error says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// More than this does not pass a link on the way; 0 if it was not told.
    TooBig(u32),
    /// Nobody listens at this port, says the host itself.
    Refused,
    /// Nobody is there, or it may not be sent.
    Unreachable,
}

/// A socket for echo requests or datagrams of one family. Nothing waits.
#[derive(Debug)]
pub struct ProbeSocket {
    fd: OwnedFd,
    family: Family,
    /// Of echo requests; none for datagrams.
    identifier: Option<u16>,
}

impl ProbeSocket {
    /// Opens a socket for echo requests in the calling thread's namespace. It hears replies with this
    /// identifier only.
    pub fn echo(family: Family, identifier: u16) -> Result<Self> {
        let (domain, protocol) = match family {
            Family::V4 => (libc::AF_INET, libc::IPPROTO_ICMP),
            Family::V6 => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
        };
        let open = || {
            let fd = socket(domain, libc::SOCK_RAW | libc::SOCK_NONBLOCK, protocol)?;
            attach_program(fd.as_fd(), &replies(family, identifier))?;
            prepare(fd.as_fd(), family)?;
            Ok(fd)
        };
        let fd = open().map_err(|cause| Error::from_io("open echo socket", "", &cause))?;
        Ok(Self { fd, family, identifier: Some(identifier) })
    }

    /// Opens a socket for datagrams in the calling thread's namespace.
    pub fn datagram(family: Family) -> Result<Self> {
        let domain = if family == Family::V4 { libc::AF_INET } else { libc::AF_INET6 };
        let open = || {
            let fd = socket(domain, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0)?;
            prepare(fd.as_fd(), family)?;
            Ok(fd)
        };
        let fd = open().map_err(|cause| Error::from_io("open datagram socket", "", &cause))?;
        Ok(Self { fd, family, identifier: None })
    }

    /// Sends this, behind the header of its protocol. The port counts for datagrams only.
    pub fn send(&self, to: SocketAddr, payload: &[u8], sum: Sum) -> io::Result<()> {
        let mut last = Ok(());
        // An error that came for an earlier one is told to the next that is sent, which is not sent then.
        for _ in 0..3 {
            last = match self.identifier {
                Some(identifier) => {
                    let to = SocketAddr::new(to.ip(), 0);
                    self.send_once(to, &echo(self.family, identifier, payload), Sum::Device)
                }
                None => self.send_once(to, payload, sum),
            };
            if last.is_ok() {
                break;
            }
        }
        last
    }

    fn send_once(&self, to: SocketAddr, bytes: &[u8], sum: Sum) -> io::Result<()> {
        let flags = match sum {
            Sum::Device => SendFlags::empty(),
            // What is sent in parts is summed while it is copied.
            Sum::Kernel => SendFlags::MORE,
        };
        rustix::net::sendto(&self.fd, bytes, flags, &to)?;
        if sum == Sum::Kernel {
            rustix::net::sendto(&self.fd, &[], SendFlags::empty(), &to)?;
        }
        Ok(())
    }

    /// The payload of the next reply that is there: where it lies in the buffer.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<std::ops::Range<usize>>> {
        let received = rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::empty());
        let (len, _) = match received {
            Ok(received) => received,
            Err(errno) if errno == rustix::io::Errno::AGAIN => return Ok(None),
            // An error's notice; the error itself is in its own queue.
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

    /// The next ICMP error that is there. What was sent, as far as the error has it, is in the buffer
    /// from its start.
    pub fn receive_refusal(&self, buffer: &mut [u8]) -> io::Result<Option<Refusal>> {
        loop {
            let (len, error) = match self.receive_error(buffer) {
                Ok(received) => received,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(cause) => return Err(cause),
            };
            let skipped = if self.identifier.is_some() { ICMP_HEADER } else { 0 };
            let Some((reason, by)) = error.and_then(|error| error.understand()) else { continue };
            let len = len.saturating_sub(skipped);
            if len > 0 {
                buffer.copy_within(skipped..skipped + len, 0);
            }
            return Ok(Some(Refusal { len, reason, by }));
        }
    }

    fn receive_error(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<Extended>)> {
        // SAFETY: all zeroes are valid for both.
        let (mut header, mut control): (libc::msghdr, Control) = unsafe { zeroed() };
        let mut vector =
            libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = size_of::<Control>() as _;
        // SAFETY: all that the header points to lives until the call returns, and is ours to be written.
        let len = check(unsafe {
            libc::recvmsg(self.fd.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE)
        })?;
        let (level, kind) = receive_errors(self.family);
        let is_it = control.level == level && control.kind == kind;
        // With an address of IPv4 it is shorter, and the rest zero.
        let least = std::mem::offset_of!(Extended, v6);
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

/// Not to be cut, and errors are told.
fn prepare(fd: BorrowedFd<'_>, family: Family) -> io::Result<()> {
    // Of the modes that forbid pieces, the one that does not obey what was learned of the path.
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

/// Echo replies with an identifier. Packets of IPv4 begin with their header here, those of IPv6 behind it.
fn replies(family: Family, identifier: u16) -> Vec<libc::sock_filter> {
    let jump = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let start = op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0);
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
    let first = (family == Family::V4).then_some(start);
    first.into_iter().chain(rest).collect()
}

/// An echo request; for IPv6 the kernel sums, as it chooses the addresses.
fn echo(family: Family, identifier: u16, payload: &[u8]) -> Vec<u8> {
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

/// `struct cmsghdr` and the error behind it, in the kernel's form, which is not musl's.
#[repr(C)]
struct Control {
    len: usize,
    level: libc::c_int,
    kind: libc::c_int,
    error: Extended,
}

/// `struct sock_extended_err` (linux/errqueue.h), and the address of whoever reports it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Extended {
    errno: u32,
    origin: u8,
    kind: u8,
    code: u8,
    pad: u8,
    info: u32,
    data: u32,
    /// `struct sockaddr_in` or `sockaddr_in6`: family, port, address of IPv4, address of IPv6.
    family: u16,
    port: u16,
    v4: [u8; 4],
    v6: [u8; 16],
    scope: u32,
}

impl Extended {
    /// What an error that came from elsewhere says, and who it came from.
    fn understand(&self) -> Option<(Reason, Option<IpAddr>)> {
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
    fn echo_requests_are_summed_for_ipv4_only() {
        assert_eq!(echo(Family::V4, 0x1234, &[1]), [8, 0, 0xe4, 0xcb, 0x12, 0x34, 0, 0, 1]);
        assert_eq!(echo(Family::V6, 0x1234, &[1]), [128, 0, 0, 0, 0x12, 0x34, 0, 0, 1]);
    }
}
