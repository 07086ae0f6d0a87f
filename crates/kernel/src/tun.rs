// SPDX-License-Identifier: Apache-2.0
//! Tap and TUN interfaces: the host's end is a file, for a virtual machine or a program in user space.
//! They cannot be made by netlink, only by `/dev/net/tun`.

mod carried;
mod labelled;

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};

use ::netlink::Errno;
use rustix::fs::{CWD, Mode, OFlags, openat, statfs};

pub use self::carried::{NewTun, carry};
use crate::error::{Error, Result};
use crate::types::IfName;

const DEVICE: &CStr = c"/dev/net/tun";
const SELINUX_MAGIC: u64 = 0xf97c_ff8c; // linux/magic.h

/// A tap interface to be made. It stays when nobody has it open.
#[derive(Debug, Clone, Copy)]
pub struct NewTap<'a> {
    /// Its final name.
    pub name: IfName,
    /// It can be opened several times, a queue each.
    pub multi_queue: bool,
    /// The user that may open it; anyone with the right to make one if none.
    pub owner: Option<u32>,
    /// The group that may open it.
    pub group: Option<u32>,
    /// The SELinux label that it bears; the calling process's if none.
    pub label: Option<&'a CStr>,
}

/// Makes a tap interface in the calling thread's namespace; fails if the name is taken.
pub fn create(tap: &NewTap<'_>) -> Result<()> {
    let made = match tap.label {
        None => make(tap).map_err(Refusal::Tap),
        Some(label) => labelled::make(tap, label),
    };
    made.map_err(|refusal| {
        let (op, errno) = match refusal {
            Refusal::Label(errno) => ("take the SELinux label for tap", errno),
            // What IFF_TUN_EXCL makes of a name that any link has.
            Refusal::Tap(Errno::BUSY) => ("create tap", Errno::EXIST),
            Refusal::Tap(errno) => ("create tap", errno),
        };
        Error::from_errno(op, tap.name.as_str(), errno)
    })
}

/// Whether tap interfaces can be made.
pub fn is_supported() -> Result<bool> {
    match open() {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Ok(false),
        Err(errno) => Err(Error::from_errno("open", DEVICE.to_string_lossy(), errno)),
    }
}

/// Whether SELinux is on, so that interfaces can bear labels.
pub fn has_labels() -> bool {
    let found = statfs("/sys/fs/selinux");
    found.is_ok_and(|found| found.f_type.cast_unsigned() & 0xffff_ffff == SELINUX_MAGIC)
}

/// What was refused.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    Label(Errno),
    Tap(Errno),
}

fn open() -> std::result::Result<OwnedFd, Errno> {
    openat(CWD, DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Makes no call that is not async-signal-safe, as it also runs in a forked child. An interface that
/// is not made to stay goes when its file is closed.
fn make(tap: &NewTap<'_>) -> std::result::Result<(), Errno> {
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
    let mut wanted: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in wanted.ifr_name.iter_mut().zip(name.as_str().bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    // The kernel reads the field as unsigned: IFF_TUN_EXCL is its highest bit.
    wanted.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the kernel reads and writes one ifreq, which `wanted` is.
    told(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut wanted) })
}

fn set(file: &OwnedFd, request: libc::Ioctl, value: u32) -> std::result::Result<(), Errno> {
    // SAFETY: these requests take a number and no pointer.
    told(unsafe { libc::ioctl(file.as_raw_fd(), request, libc::c_ulong::from(value)) })
}

fn told(answer: libc::c_int) -> std::result::Result<(), Errno> {
    if answer >= 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
