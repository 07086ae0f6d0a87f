// SPDX-License-Identifier: Apache-2.0
//! UDP sockets for tunnels: many datagrams of one size are one send (UDP_SEGMENT) and come as one
//! received message (UDP_GRO), and several messages are one system call.

use std::fmt;
use std::io::{self, IoSlice};
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::error::{Error, Result};
use crate::packet::{check, new_blocking_socket, set_option};

/// Messages in one system call.
const AT_ONCE: usize = 8;
/// The longest message that the kernel gives.
const LONGEST: usize = 65_536;
/// What bursts may pile up while the receiver does not run; the kernel's own 200 KB are three messages.
const RECEIVE_BUFFER: i32 = 8 << 20;

/// A UDP socket. Sending waits, receiving does not.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

/// Datagrams for one receiver: the parts in a row, cut into pieces of one size, the last of which may be
/// shorter; or one datagram.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// The receiver.
    pub to: SocketAddr,
    /// The size of each datagram; if none, it is one.
    pub size: Option<NonZeroU16>,
    /// What is sent.
    pub parts: &'a [IoSlice<'a>],
}

impl Socket {
    /// Opens a socket that may share its address with others of ours: each sender's datagrams go to
    /// one of them.
    pub fn open(local: SocketAddr) -> Result<Socket> {
        let fail = |cause: io::Error| Error::from_io("open UDP socket", local.to_string(), &cause);
        let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let fd = new_blocking_socket(family, libc::SOCK_DGRAM).map_err(fail)?;
        let set = |level, option, value: i32| {
            set_option(fd.as_fd(), level, option, &value.to_ne_bytes()).map_err(fail)
        };
        set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        if local.is_ipv6() {
            set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        }
        // Beyond the limit for everybody only with rights; less is slower, not wrong.
        if set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER).is_err() {
            set(libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER)?;
        }
        set(libc::SOL_UDP, libc::UDP_GRO, 1)?;
        rustix::net::bind(&fd, &local).map_err(|errno| fail(errno.into()))?;
        Ok(Socket { fd })
    }

    /// Sends messages in order: how many have gone. An error is the first one's, and none has gone then.
    pub fn send(&self, messages: &[Message<'_>]) -> io::Result<usize> {
        let mut sent = 0;
        for some in messages.chunks(AT_ONCE) {
            match self.send_some(some) {
                Ok(count) => sent += count,
                Err(cause) if sent == 0 => return Err(cause),
                // The next call begins with it, and says why.
                Err(_) => break,
            }
            if !sent.is_multiple_of(AT_ONCE) {
                break;
            }
        }
        Ok(sent)
    }

    fn send_some(&self, messages: &[Message<'_>]) -> io::Result<usize> {
        // SAFETY: all zeroes are valid addresses, control messages and headers.
        let (mut names, mut controls, mut headers): (
            [Name; AT_ONCE],
            [Control<u16>; AT_ONCE],
            [libc::mmsghdr; AT_ONCE],
        ) = unsafe { zeroed() };
        let places = names.iter_mut().zip(&mut controls).zip(&mut headers);
        for (message, ((name, control), header)) in messages.iter().zip(places) {
            *name = Name::of(message.to);
            let header = &mut header.msg_hdr;
            header.msg_name = std::ptr::from_mut(name).cast();
            header.msg_namelen = Name::len(message.to);
            // `IoSlice` is an `iovec`; the kernel does not write to what it sends.
            header.msg_iov = message.parts.as_ptr().cast_mut().cast();
            header.msg_iovlen = message.parts.len() as _;
            if let Some(size) = message.size {
                *control = Control::new(libc::UDP_SEGMENT, size.get());
                header.msg_control = std::ptr::from_mut(control).cast();
                header.msg_controllen = size_of::<Control<u16>>() as _;
            }
        }
        let count = messages.len().min(AT_ONCE);
        // The C library's own function would send one by one with musl.
        // SAFETY: all that the headers point to lives until the call returns.
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

    /// Takes in what is there, without waiting: how many messages.
    pub fn receive(&self, inbox: &mut Inbox) -> io::Result<usize> {
        inbox.received = [(0, 0); AT_ONCE];
        // SAFETY: all zeroes are valid vectors, control messages and headers.
        let (mut vectors, mut controls, mut headers): (
            [libc::iovec; AT_ONCE],
            [Control<libc::c_int>; AT_ONCE],
            [libc::mmsghdr; AT_ONCE],
        ) = unsafe { zeroed() };
        let places = vectors.iter_mut().zip(&mut controls).zip(&mut headers);
        for (buffer, ((vector, control), header)) in inbox.buffers.iter_mut().zip(places) {
            vector.iov_base = buffer.as_mut_ptr().cast();
            vector.iov_len = buffer.len();
            let header = &mut header.msg_hdr;
            header.msg_iov = std::ptr::from_mut(vector);
            header.msg_iovlen = 1;
            header.msg_control = std::ptr::from_mut(control).cast();
            header.msg_controllen = size_of::<Control<libc::c_int>>() as _;
        }
        // SAFETY: all that the headers point to lives until the call returns, and is ours to be written.
        let count = check(unsafe {
            libc::syscall(
                libc::SYS_recvmmsg,
                self.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                AT_ONCE as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut::<libc::timespec>(),
            )
        })?;
        let count = usize::try_from(count).unwrap_or(0).min(AT_ONCE);
        for ((received, header), control) in
            inbox.received.iter_mut().zip(&headers).zip(&controls).take(count)
        {
            let len = (header.msg_len as usize).min(LONGEST);
            let size = control.value_of(libc::UDP_GRO).and_then(|size| usize::try_from(size).ok());
            *received = (len, size.filter(|size| *size > 0).unwrap_or(len));
        }
        Ok(count)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Room for the messages of one call.
pub struct Inbox {
    buffers: Vec<Vec<u8>>,
    /// Length, and size of each datagram in it.
    received: [(usize, usize); AT_ONCE],
}

impl Inbox {
    /// Half a megabyte, of which the kernel gives only what is used.
    pub fn new() -> Inbox {
        let buffers = (0..AT_ONCE).map(|_| vec![0; LONGEST]).collect();
        Inbox { buffers, received: [(0, 0); AT_ONCE] }
    }

    /// The datagrams that the last call received, in order.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let messages = self.buffers.iter().zip(self.received);
        messages.flat_map(|(buffer, (len, size))| buffer[..len].chunks(size.max(1)))
    }
}

impl Default for Inbox {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("received", &self.received).finish_non_exhaustive()
    }
}

/// A socket address as the kernel writes it.
#[repr(C)]
#[derive(Clone, Copy)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    fn of(address: SocketAddr) -> Name {
        match address {
            SocketAddr::V4(address) => Name {
                v4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                },
            },
            SocketAddr::V6(address) => Name {
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

/// `struct cmsghdr` and its one value, in the kernel's form, which is not musl's.
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
        let is_it = self.len >= Self::LEN && self.level == libc::SOL_UDP && self.kind == kind;
        is_it.then_some(self.value)
    }
}
