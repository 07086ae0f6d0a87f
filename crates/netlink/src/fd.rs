// SPDX-License-Identifier: Apache-2.0
//! The file descriptor of a netlink socket: opening, waiting, and receiving whole datagrams.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socket_with};

use crate::error::Error;
use crate::socket::Protocol;

const NETLINK_CAP_ACK: libc::c_int = 10; // linux/netlink.h
const NETLINK_EXT_ACK: libc::c_int = 11; // linux/netlink.h
const NETLINK_GET_STRICT_CHK: libc::c_int = 12; // linux/netlink.h

pub(crate) fn open_fd(protocol: Protocol) -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol.number())?;
    for option in [NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK] {
        set_netlink_option(fd.as_fd(), option, 1)?;
    }
    Ok(fd)
}

pub(crate) fn set_netlink_option(
    fd: BorrowedFd<'_>,
    option: libc::c_int,
    value: libc::c_int,
) -> Result<(), Errno> {
    const LEN: libc::socklen_t = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open during the borrow, and the pointer is to an int of that
    // length.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            std::ptr::from_ref(&value).cast(),
            LEN,
        )
    };
    if status == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

/// Receives one datagram and first grows the buffer if the datagram would not fit. Reading the
/// length costs one system call of 0.1 µs; a truncated reply would be lost.
pub(crate) fn receive_whole(fd: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
    let mut nothing = [0_u8; 0];
    let peek = RecvFlags::PEEK | RecvFlags::TRUNC;
    let (_, len) = retry_on_intr(|| recv(fd, &mut nothing, peek))?;
    if len > buffer.len() {
        buffer.resize(len, 0);
    }
    let (len, _) = retry_on_intr(|| recv(fd, buffer.as_mut_slice(), RecvFlags::empty()))?;
    Ok(len)
}

/// Waits until the socket is readable. Returns `false` after the timeout or an interruption by a
/// signal.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> Result<bool, Errno> {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}
