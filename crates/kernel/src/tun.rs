// SPDX-License-Identifier: Apache-2.0
//! Tap and TUN interfaces, whose packets a virtual machine or another program reads and writes
//! through a file. Only `/dev/net/tun` can create them, not netlink.

mod queues;
mod selinux;

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};

use ::netlink::Errno;
use rustix::fs::{CWD, Mode, OFlags, openat, statfs};

pub use self::queues::{NewTun, open_queues};
use crate::error::{Error, Result};
use crate::types::IfName;

const DEVICE: &CStr = c"/dev/net/tun";
const SELINUX_MAGIC: u64 = 0xf97c_ff8c; // linux/magic.h

/// A tap interface to create. It persists when no program has it open.
#[derive(Debug, Clone, Copy)]
pub struct NewTap<'a> {
    /// Final name.
    pub name: IfName,
    /// Allow several queues, one per open file.
    pub multi_queue: bool,
    /// User that may open the interface; `None` for any process that may create one.
    pub owner: Option<u32>,
    /// Group that may open the interface.
    pub group: Option<u32>,
    /// SELinux label; `None` for that of the calling process.
    pub label: Option<&'a CStr>,
}

/// Creates a tap interface in the calling thread's namespace; fails if the name is taken.
pub fn create(tap: &NewTap<'_>) -> Result<()> {
    let created = match tap.label {
        None => create_tap(tap).map_err(Failure::Tap),
        Some(label) => selinux::create_tap(tap, label),
    };
    created.map_err(|failure| {
        let (op, errno) = match failure {
            Failure::Label(errno) => ("set SELinux label for tap", errno),
            // With IFF_TUN_EXCL the kernel answers EBUSY if a link has the name.
            Failure::Tap(Errno::BUSY) => ("create tap", Errno::EXIST),
            Failure::Tap(errno) => ("create tap", errno),
        };
        Error::from_errno(op, tap.name.as_str(), errno)
    })
}

/// Returns whether the kernel supports tap interfaces.
pub fn is_supported() -> Result<bool> {
    match open() {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Ok(false),
        Err(errno) => Err(Error::from_errno("open", DEVICE.to_string_lossy(), errno)),
    }
}

/// Returns whether SELinux is enabled, so that interfaces have labels.
pub fn is_selinux_enabled() -> bool {
    let stat = statfs("/sys/fs/selinux");
    stat.is_ok_and(|stat| stat.f_type.cast_unsigned() & 0xffff_ffff == SELINUX_MAGIC)
}

/// The step that failed.
#[derive(Debug, Clone, Copy)]
enum Failure {
    Label(Errno),
    Tap(Errno),
}

fn open() -> std::result::Result<OwnedFd, Errno> {
    openat(CWD, DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Creates a persistent tap interface. It makes only async-signal-safe calls, because it also runs
/// in a forked child. If it fails, the interface vanishes when the file is closed.
fn create_tap(tap: &NewTap<'_>) -> std::result::Result<(), Errno> {
    let file = open()?;
    let multi_queue = if tap.multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL;
    attach(&file, tap.name, flags | multi_queue)?;
    if let Some(owner) = tap.owner {
        set(&file, libc::TUNSETOWNER, owner)?;
    }
    if let Some(group) = tap.group {
        set(&file, libc::TUNSETGROUP, group)?;
    }
    set(&file, libc::TUNSETPERSIST, 1)
}

fn attach(file: &OwnedFd, name: IfName, flags: libc::c_int) -> std::result::Result<(), Errno> {
    // SAFETY: zero is a valid value for this plain structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_str().bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    // The kernel reads the field as unsigned; IFF_TUN_EXCL is its highest bit.
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the kernel reads and writes one ifreq, which `request` is.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })
}

fn set(file: &OwnedFd, request: libc::Ioctl, value: u32) -> std::result::Result<(), Errno> {
    // SAFETY: these requests take a number and no pointer.
    check(unsafe { libc::ioctl(file.as_raw_fd(), request, libc::c_ulong::from(value)) })
}

fn check(returned: libc::c_int) -> std::result::Result<(), Errno> {
    if returned >= 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
