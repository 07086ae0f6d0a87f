// SPDX-License-Identifier: Apache-2.0
//! A socket that receives events of multicast groups; every wait has a deadline. Open it before
//! reading the state: then no change is missed in between.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::net::{RecvFlags, bind, recv};

use crate::error::Error;
use crate::fd::{open_fd, receive_whole, set_netlink_option, wait_readable};
use crate::replies::Replies;
use crate::socket::Protocol;

const NETLINK_ADD_MEMBERSHIP: libc::c_int = 1; // linux/netlink.h
const BUFFER_LEN: usize = 32 * 1024;

/// Result of one wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// At least one event arrived.
    Events,
    /// The kernel dropped events (`ENOBUFS`): read the whole state again. The remaining old events
    /// were discarded; later events arrive again.
    Overrun,
    /// No event arrived before the deadline.
    Deadline,
}

/// A netlink socket that receives events in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Monitor {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Monitor {
    /// Opens a socket and joins these multicast groups, such as `RTNLGRP_LINK`.
    pub fn open(protocol: Protocol, groups: &[u32]) -> Result<Self, Error> {
        let fd = open_fd(protocol)?;
        // The kernel does not deliver an event to its sender. Its own events have the sender 0,
        // which is also the address of an unbound socket: such a socket receives nothing.
        bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        for group in groups {
            let group = group.cast_signed();
            set_netlink_option(fd.as_fd(), NETLINK_ADD_MEMBERSHIP, group)?;
        }
        Ok(Self { fd, buffer: vec![0; BUFFER_LEN] })
    }

    /// Sets how many bytes of events the kernel queues before it drops events. Without
    /// CAP_NET_ADMIN the system's limit applies. An event counts as about one kilobyte.
    pub fn set_receive_buffer(&self, bytes: usize) -> Result<(), Error> {
        set_socket_recv_buffer_size_force(&self.fd, bytes)
            .or_else(|_| set_socket_recv_buffer_size(&self.fd, bytes))
            .map_err(Error::from)
    }

    /// Waits for events until `deadline` and passes the type and payload of each to `event`. With a
    /// past deadline it does not wait.
    pub fn receive(
        &mut self,
        deadline: Instant,
        mut event: impl FnMut(u16, &[u8]),
    ) -> Result<Received, Error> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if wait_readable(self.fd.as_fd(), left)? {
                break;
            }
            if Instant::now() >= deadline {
                return Ok(Received::Deadline);
            }
        }
        match receive_whole(self.fd.as_fd(), &mut self.buffer) {
            Ok(len) => {
                Replies::new(&self.buffer[..len]).for_each(|r| event(r.kind, r.payload));
                Ok(Received::Events)
            }
            Err(Errno::NOBUFS) => self.drain().map(|()| Received::Overrun),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Empties the queue. After an overrun the kernel drops events without a further report until
    /// the queue has been empty, so a state read before that could become stale unnoticed.
    fn drain(&self) -> Result<(), Error> {
        let mut nothing = [0_u8; 0];
        loop {
            match recv(&self.fd, &mut nothing, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok(_) | Err(Errno::INTR | Errno::NOBUFS) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
