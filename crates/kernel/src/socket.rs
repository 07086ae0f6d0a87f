// SPDX-License-Identifier: Apache-2.0
//! Sockets other than netlink. Each socket belongs to the namespace of the thread that opened it.

pub mod echo_listener;
pub mod icmp_probe;
pub mod multicast;
pub mod packet;
pub mod udp_gso;

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Opens a socket that is closed on exec.
fn open(domain: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = check(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &[u8],
) -> io::Result<()> {
    // SAFETY: the value is valid for the length given.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    check(set).map(drop)
}

/// Attaches a classic BPF program: the socket receives only packets that the program accepts.
fn attach_filter(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let length = program.len() as libc::c_ushort;
    let filter = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which lives until the call returns, and does not write
    // to it.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    check(set).map(drop)
}

/// Builds a BPF instruction: opcode, instructions to skip if a comparison is true or false,
/// operand.
fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Turns a negative return value of a system call into an error.
fn check<T: PartialOrd + Default>(returned: T) -> io::Result<T> {
    if returned < T::default() { Err(io::Error::last_os_error()) } else { Ok(returned) }
}
