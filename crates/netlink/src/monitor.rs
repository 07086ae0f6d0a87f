// SPDX-License-Identifier: Apache-2.0
//! A socket that only listens: multicast groups, each wait with a deadline.
//! Open it before looking at the state to wait for, and no change can be missed between.

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

/// What became of one wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// At least one event was handed over.
    Events,
    /// The kernel dropped events (`ENOBUFS`): look at the whole state again. What was still there has
    /// been thrown away, and what happens from now on will be told.
    Overrun,
    /// Nothing came before the deadline.
    Deadline,
}

/// A listening netlink socket in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Monitor {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Monitor {
    /// Opens a socket that has joined these multicast groups (`RTNLGRP_*` and the like).
    pub fn open(protocol: Protocol, groups: &[u32]) -> Result<Self, Error> {
        let fd = open_fd(protocol)?;
        // The kernel leaves out the sender itself, and takes a socket without an address (0)
        // for the sender of its own events (0 as well): unbound, nothing ever arrives.
        bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        for group in groups {
            let group = group.cast_signed();
            set_netlink_option(fd.as_fd(), NETLINK_ADD_MEMBERSHIP, group)?;
        }
        Ok(Self { fd, buffer: vec![0; BUFFER_LEN] })
    }

    /// Lets the kernel keep this many bytes of events before it drops any; without the right to more,
    /// as many as it grants everybody. It counts about a kilobyte for an event.
    pub fn set_receive_buffer(&self, bytes: usize) -> Result<(), Error> {
        set_socket_recv_buffer_size_force(&self.fd, bytes)
            .or_else(|_| set_socket_recv_buffer_size(&self.fd, bytes))
            .map_err(Error::from)
    }

    /// Waits for events until `deadline` (a past one: takes only what is there) and hands
    /// kind and payload of each to `event`.
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

    /// The kernel drops events, and says so only once, until the queue has been empty: a state read
    /// before that would grow old unnoticed.
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
