// SPDX-License-Identifier: Apache-2.0
//! UDP sockets for tunnels. One message holds many datagrams of one size, both when sending
//! (UDP_SEGMENT) and when receiving (UDP_GRO), and one system call takes several messages.

use std::fmt;
use std::io::{self, IoSlice};
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::{check, open, set_option};
use crate::error::{Error, Result};

/// Maximum number of messages per system call.
const MESSAGES_PER_CALL: usize = 8;
/// Maximum length of a received message.
const MAX_MESSAGE_LEN: usize = 65_536;
/// Size of the receive buffer, for bursts that arrive while the receiver does not run. The kernel's
/// default of 200 KB holds three messages.
const RECEIVE_BUFFER: i32 = 8 << 20;

/// A UDP socket with segmentation offload. Sending blocks, receiving does not.
#[derive(Debug)]
pub struct GsoSocket {
    fd: OwnedFd,
}

/// Datagrams for one receiver. The kernel concatenates the parts and splits them into datagrams of
/// `size` bytes; the last one may be shorter.
#[derive(Debug, Clone, Copy)]
pub struct Datagrams<'a> {
    /// Address of the receiver.
    pub to: SocketAddr,
    /// Size of each datagram; `None` for a single datagram.
    pub size: Option<NonZeroU16>,
    /// Payload.
    pub parts: &'a [IoSlice<'a>],
}

impl GsoSocket {
    /// Opens a socket that can share its address with other sockets of this program. The kernel
    /// delivers all datagrams of one sender to the same socket.
    pub fn open(local: SocketAddr) -> Result<GsoSocket> {
        let fail = |cause: io::Error| Error::from_io("open UDP socket", local.to_string(), &cause);
        let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let fd = open(family, libc::SOCK_DGRAM, 0).map_err(fail)?;
        let set = |level, option, value: i32| {
            set_option(fd.as_fd(), level, option, &value.to_ne_bytes()).map_err(fail)
        };
        set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        if local.is_ipv6() {
            set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        }
        // Exceeding the system's limit needs CAP_NET_ADMIN; a smaller buffer only drops more in
        // bursts.
        if set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER).is_err() {
            set(libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER)?;
        }
        set(libc::SOL_UDP, libc::UDP_GRO, 1)?;
        rustix::net::bind(&fd, &local).map_err(|errno| fail(errno.into()))?;
        Ok(GsoSocket { fd })
    }

    /// Sends messages in order and returns how many were sent. An error means that the first
    /// message failed and none was sent.
    pub fn send(&self, messages: &[Datagrams<'_>]) -> io::Result<usize> {
        let mut sent = 0;
        for some in messages.chunks(MESSAGES_PER_CALL) {
            match self.send_some(some) {
                Ok(count) => sent += count,
                Err(cause) if sent == 0 => return Err(cause),
                // The caller's next call starts with the failed message and gets its error.
                Err(_) => break,
            }
            if !sent.is_multiple_of(MESSAGES_PER_CALL) {
                break;
            }
        }
        Ok(sent)
    }

    fn send_some(&self, messages: &[Datagrams<'_>]) -> io::Result<usize> {
        // SAFETY: zeroed addresses, control messages and headers are valid values.
        let (mut addresses, mut controls, mut headers): (
            [Address; MESSAGES_PER_CALL],
            [Control<u16>; MESSAGES_PER_CALL],
            [libc::mmsghdr; MESSAGES_PER_CALL],
        ) = unsafe { zeroed() };
        let slots = addresses.iter_mut().zip(&mut controls).zip(&mut headers);
        for (message, ((address, control), header)) in messages.iter().zip(slots) {
            *address = Address::from(message.to);
            let header = &mut header.msg_hdr;
            header.msg_name = std::ptr::from_mut(address).cast();
            header.msg_namelen = Address::len(message.to);
            // `IoSlice` has the layout of `iovec`, and the kernel does not write to sent data.
            header.msg_iov = message.parts.as_ptr().cast_mut().cast();
            header.msg_iovlen = message.parts.len() as _;
            if let Some(size) = message.size {
                *control = Control::new(libc::UDP_SEGMENT, size.get());
                header.msg_control = std::ptr::from_mut(control).cast();
                header.msg_controllen = size_of::<Control<u16>>() as _;
            }
        }
        let count = messages.len().min(MESSAGES_PER_CALL);
        // A direct system call, because musl's sendmmsg() makes one system call per message.
        // SAFETY: everything that the headers point to lives until the call returns.
        let sent = check(unsafe {
            libc::syscall(
                libc::SYS_sendmmsg,
                self.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                count as libc::c_uint,
                0,
            )
        })?;
        Ok(usize::try_from(sent).unwrap_or(0))
    }

    /// Receives waiting messages and returns their number. Fails with `WouldBlock` if none is
    /// waiting.
    pub fn receive(&self, buffer: &mut ReceiveBuffer) -> io::Result<usize> {
        buffer.received = [(0, 0); MESSAGES_PER_CALL];
        // SAFETY: zeroed vectors, control messages and headers are valid values.
        let (mut vectors, mut controls, mut headers): (
            [libc::iovec; MESSAGES_PER_CALL],
            [Control<libc::c_int>; MESSAGES_PER_CALL],
            [libc::mmsghdr; MESSAGES_PER_CALL],
        ) = unsafe { zeroed() };
        let slots = vectors.iter_mut().zip(&mut controls).zip(&mut headers);
        for (bytes, ((vector, control), header)) in buffer.messages.iter_mut().zip(slots) {
            vector.iov_base = bytes.as_mut_ptr().cast();
            vector.iov_len = bytes.len();
            let header = &mut header.msg_hdr;
            header.msg_iov = std::ptr::from_mut(vector);
            header.msg_iovlen = 1;
            header.msg_control = std::ptr::from_mut(control).cast();
            header.msg_controllen = size_of::<Control<libc::c_int>>() as _;
        }
        // SAFETY: everything that the headers point to is writable and lives until the call
        // returns.
        let count = check(unsafe {
            libc::syscall(
                libc::SYS_recvmmsg,
                self.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                MESSAGES_PER_CALL as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut::<libc::timespec>(),
            )
        })?;
        let count = usize::try_from(count).unwrap_or(0).min(MESSAGES_PER_CALL);
        for ((received, header), control) in
            buffer.received.iter_mut().zip(&headers).zip(&controls).take(count)
        {
            let len = (header.msg_len as usize).min(MAX_MESSAGE_LEN);
            let size = control.value_of(libc::UDP_GRO).and_then(|size| usize::try_from(size).ok());
            *received = (len, size.filter(|size| *size > 0).unwrap_or(len));
        }
        Ok(count)
    }
}

impl AsFd for GsoSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Buffer for the messages of one call of [`GsoSocket::receive`].
pub struct ReceiveBuffer {
    messages: Vec<Vec<u8>>,
    /// Length of each message and size of the datagrams in it.
    received: [(usize, usize); MESSAGES_PER_CALL],
}

impl ReceiveBuffer {
    /// Reserves half a megabyte of address space; the kernel allocates pages on first use.
    pub fn new() -> ReceiveBuffer {
        let messages = (0..MESSAGES_PER_CALL).map(|_| vec![0; MAX_MESSAGE_LEN]).collect();
        ReceiveBuffer { messages, received: [(0, 0); MESSAGES_PER_CALL] }
    }

    /// Returns the datagrams of the last call in order.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let messages = self.messages.iter().zip(self.received);
        messages.flat_map(|(bytes, (len, size))| bytes[..len].chunks(size.max(1)))
    }
}

impl Default for ReceiveBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ReceiveBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveBuffer").field("received", &self.received).finish_non_exhaustive()
    }
}

/// A socket address in the kernel's layout.
#[repr(C)]
#[derive(Clone, Copy)]
union Address {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Address {
    fn from(address: SocketAddr) -> Address {
        match address {
            SocketAddr::V4(address) => Address {
                v4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                },
            },
            SocketAddr::V6(address) => Address {
                v6: libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                },
            },
        }
    }

    fn len(address: SocketAddr) -> libc::socklen_t {
        let len = match address {
            SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
            SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
        };
        len as libc::socklen_t
    }
}

/// `struct cmsghdr` followed by its value, in the kernel's layout, which differs from musl's.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control<T> {
    len: usize,
    level: libc::c_int,
    kind: libc::c_int,
    value: T,
}

impl<T: Copy> Control<T> {
    const LEN: usize = std::mem::offset_of!(Control<T>, value) + size_of::<T>();

    fn new(kind: libc::c_int, value: T) -> Control<T> {
        Control { len: Self::LEN, level: libc::SOL_UDP, kind, value }
    }

    fn value_of(&self, kind: libc::c_int) -> Option<T> {
        let is_present = self.len >= Self::LEN && self.level == libc::SOL_UDP && self.kind == kind;
        is_present.then_some(self.value)
    }
}
