// SPDX-License-Identifier: Apache-2.0
//! Whether packets pass a link, without waiting for RTNL.

use std::os::fd::{AsFd, AsRawFd};

use ::netlink::Errno;

use crate::error::{Error, Result};
use crate::request::Netlink;
use crate::types::IfName;

/// Whether a link is up and its operational state too, by an ioctl under RCU. `false` may only mean
/// that the kernel has not got round to it; asking by netlink makes it do so.
pub fn is_running(nl: &Netlink, name: IfName) -> Result<bool> {
    // SAFETY: all zeroes is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_str().bytes()) {
        *to = from.cast_signed();
    }
    let fd = nl.as_fd().as_raw_fd();
    // SAFETY: the request is an `ifreq` with a name that ends in a zero; the kernel writes into it.
    let answer = unsafe { libc::ioctl(fd, libc::SIOCGIFFLAGS as libc::Ioctl, &raw mut request) };
    if answer < 0 {
        let cause = std::io::Error::last_os_error();
        let errno = Errno::from_io_error(&cause).unwrap_or(Errno::IO);
        return Err(Error::from_errno("look at link", name.as_str(), errno));
    }
    // SAFETY: the kernel has filled in the flags.
    let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    Ok(flags & libc::IFF_RUNNING != 0)
}
