// SPDX-License-Identifier: Apache-2.0
//! Receives echo requests that carry a mark in their payload. The kernel still answers them like
//! all other echo requests.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::{attach_filter, op, open};
use crate::error::{Error, Result};
use crate::types::Family;

const ECHO: u32 = 8; // linux/icmp.h, ICMP_ECHO
const ECHO_V6: u32 = 128; // linux/icmpv6.h, ICMPV6_ECHO_REQUEST
const ICMP_HEADER: u32 = 8;

/// Socket that receives marked echo requests of one address family. No call blocks.
#[derive(Debug)]
pub struct EchoListener(OwnedFd);

impl EchoListener {
    /// Opens a socket in the calling thread's namespace. It receives echo requests with `mark` at
    /// this offset of their payload.
    pub fn open(family: Family, mark: [u8; 8], offset: u32) -> Result<Self> {
        let (domain, protocol) = match family {
            Family::V4 => (libc::AF_INET, libc::IPPROTO_ICMP),
            Family::V6 => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
        };
        let try_open = || {
            let fd = open(domain, libc::SOCK_RAW | libc::SOCK_NONBLOCK, protocol)?;
            attach_filter(fd.as_fd(), &accept_marked(family, mark, offset))?;
            let socket = Self(fd);
            // Drop requests that arrived before the filter was attached.
            while socket.receive()?.is_some() {}
            Ok(socket)
        };
        try_open().map_err(|cause: io::Error| Error::from_io("open echo listener", "", &cause))
    }

    /// Returns the source address of the next marked request, or `None` if none is waiting.
    pub fn receive(&self) -> io::Result<Option<IpAddr>> {
        let received = rustix::net::recvfrom(&self.0, &mut [0_u8; 0][..], RecvFlags::TRUNC);
        match received {
            Ok((_, _, Some(from))) => {
                Ok(SocketAddr::try_from(from).ok().map(|from| from.ip().to_canonical()))
            }
            Ok((_, _, None)) | Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for EchoListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EchoListener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Returns a program that accepts marked echo requests. A raw IPv4 socket delivers packets with
/// their IP header, a raw IPv6 socket without.
fn accept_marked(family: Family, mark: [u8; 8], offset: u32) -> Vec<libc::sock_filter> {
    let jump = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let load_header_len = op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0);
    let (mode, request) = match family {
        Family::V4 => (libc::BPF_IND, ECHO),
        Family::V6 => (libc::BPF_ABS, ECHO_V6),
    };
    let [high, low] =
        [0, 4].map(|at| u32::from_be_bytes([mark[at], mark[at + 1], mark[at + 2], mark[at + 3]]));
    let at = ICMP_HEADER + offset;
    let rest = [
        op(libc::BPF_LD | libc::BPF_B | mode, 0, 0, 0),
        op(jump, 0, 5, request),
        op(libc::BPF_LD | libc::BPF_W | mode, 0, 0, at),
        op(jump, 0, 3, high),
        op(libc::BPF_LD | libc::BPF_W | mode, 0, 0, at + 4),
        op(jump, 0, 1, low),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let first = (family == Family::V4).then_some(load_header_len);
    first.into_iter().chain(rest).collect()
}
