// SPDX-License-Identifier: Apache-2.0
//! Network namespaces. A namespace is a property of a thread: every function that enters one
//! returns the thread to its previous namespace, or aborts the process.

mod lock;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use ::netlink::{Attrs, Errno, Message};
use rustix::fs::{CWD, Mode, OFlags, fstat, fstatfs, openat, unlink};
use rustix::mount::{
    MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive, mount_change, unmount,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

pub use self::lock::Lock;
use crate::error::{Error, Result};
use crate::request::Netlink;

const NSFS_MAGIC: u64 = 0x6e73_6673; // linux/magic.h
const NS_GET_NSTYPE: libc::Ioctl = 0xb703; // linux/nsfs.h

const SO_NETNS_COOKIE: libc::c_int = 71; // asm-generic/socket.h

const RTM_GETNSID: u16 = 90; // linux/rtnetlink.h
const NETNSA_NSID: u16 = 1; // linux/net_namespace.h
const NETNSA_FD: u16 = 3; // linux/net_namespace.h
/// Length of `struct rtgenmsg` with padding.
const RTGEN_LEN: usize = 4;

/// Namespace file of the calling thread; `/proc/self` is that of the main thread.
const THREAD_NETNS: &str = "/proc/thread-self/ns/net";

/// Directories of named namespaces, used by `ip netns`.
const SHARED_DIRECTORIES: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// An open network namespace. The namespace exists at least as long as this value.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
}

impl Netns {
    /// Opens a namespace file such as `/run/netns/blue` or `/proc/42/ns/net`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        const OP: &str = "open network namespace";
        let path = path.as_ref();
        let object = || path.display().to_string();
        let fail = |errno| Error::from_errno(OP, object(), errno);
        // NONBLOCK, because a path from a configuration may be a FIFO or a device.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = openat(CWD, path, flags, Mode::empty()).map_err(fail)?;
        let magic = fstatfs(&fd).map_err(fail)?.f_type.cast_unsigned();
        let problem = match magic {
            NSFS_MAGIC if is_network(&fd) => return Ok(Self { fd }),
            NSFS_MAGIC => "a namespace, but not a network namespace".to_owned(),
            _ => format!("not a namespace: file system magic {magic:#x}"),
        };
        Err(Error { ext: Some(problem), ..fail(Errno::INVAL) })
    }

    /// Opens the calling thread's namespace.
    pub fn current() -> Result<Self> {
        Self::open(THREAD_NETNS)
    }

    /// Creates a namespace without a name. It exists as long as a process or a descriptor refers to
    /// it.
    pub fn new_anonymous() -> Result<Self> {
        in_new(Self::current)?
    }

    /// Creates a namespace and mounts it at `path`, as `ip netns add` does.
    pub fn create_named(path: impl AsRef<Path>) -> Result<Self> {
        const OP: &str = "create network namespace";
        let path = path.as_ref();
        let fail = |errno| Error::from_errno(OP, path.display().to_string(), errno);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)
                .map_err(|e| Error::from_io(OP, parent.display().to_string(), &e))?;
            share_directory(parent).map_err(fail)?;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
        openat(CWD, path, flags, Mode::empty()).map_err(fail)?;
        let bound = in_new(|| {
            mount_bind(THREAD_NETNS, path).map_err(fail)?;
            Self::current()
        });
        bound.flatten().inspect_err(|_| {
            // Best effort: the first error is the one to report.
            let _ = unlink(path);
        })
    }

    /// Unmounts a namespace created by [`Netns::create_named`] and removes its file. Succeeds if it
    /// does not exist. The namespace ends when nothing refers to it any more.
    pub fn remove_named(path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        // EINVAL means "not a mount point": a creation that was interrupted.
        match unmount(path, UnmountFlags::DETACH) {
            Ok(()) | Err(Errno::INVAL) => {}
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(removal_error(path, errno)),
        }
        match unlink(path) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(removal_error(path, errno)),
        }
    }

    /// Runs `body` with the calling thread in this namespace. Threads started by `body` stay in it.
    pub fn enter<T>(&self, body: impl FnOnce() -> T) -> Result<T> {
        let home = Self::current()?;
        let _return = self.enter_from(&home)?;
        Ok(body())
    }

    /// Opens a netlink socket in this namespace.
    pub fn netlink(&self) -> Result<Netlink> {
        self.enter(Netlink::open)?
    }

    /// Returns whether both values refer to the same namespace.
    pub fn is_same(&self, other: &Self) -> Result<bool> {
        Ok(self.identity()? == other.identity()?)
    }

    /// Returns device and inode, which identify a namespace while it exists.
    pub fn identity(&self) -> Result<(u64, u64)> {
        let stat = fstat(&self.fd);
        let stat =
            stat.map_err(|errno| Error::from_errno("inspect network namespace", "", errno))?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Returns a name that is unique until the next boot, also among namespaces created later.
    pub fn unique_name(&self) -> Result<String> {
        match self.enter(cookie)?? {
            Some(cookie) => Ok(cookie.to_string()),
            None => self.identity().map(|(device, inode)| format!("{device}:{inode}")),
        }
    }

    fn enter_from<'a>(&self, home: &'a Self) -> Result<Return<'a>> {
        match self.set() {
            Ok(()) => Ok(Return { home }),
            Err(errno) => {
                let ext = (errno == Errno::INVAL).then(|| "not a network namespace".to_owned());
                Err(Error { ext, ..Error::from_errno("enter network namespace", "", errno) })
            }
        }
    }

    fn set(&self) -> std::result::Result<(), Errno> {
        move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))
    }
}

/// Lists the IDs that the socket's namespace has assigned to others, such as those with the other
/// end of a veth or with links that were moved there. The kernel removes the ID of a namespace that
/// is gone.
pub fn ids(nl: &Netlink) -> Result<Vec<i32>> {
    let mut message = Message::new(RTM_GETNSID, 0);
    message.header(&[0; RTGEN_LEN]);
    nl.dump("list namespaces", &message, |payload| {
        Attrs::after(payload, RTGEN_LEN).find_kind(NETNSA_NSID)?.i32()
    })
}

/// Returns the ID that the socket's namespace has assigned to another, if any.
pub fn id_of(nl: &Netlink, other: &Netns) -> Result<Option<i32>> {
    let mut message = Message::new(RTM_GETNSID, 0);
    message.header(&[0; RTGEN_LEN]).i32(NETNSA_FD, other.fd.as_raw_fd());
    let (_, payload) = nl
        .socket()
        .get(&message)
        .map_err(|cause| Error::new("look up ID of namespace", "", cause))?;
    let id = Attrs::after(&payload, RTGEN_LEN).find_kind(NETNSA_NSID).and_then(|attr| attr.i32());
    Ok(id.filter(|id| *id >= 0))
}

/// Makes the directory of named namespaces a shared mount, as `ip netns add` does. Otherwise a
/// later `ip netns add` would do so, hide the existing namespaces, and make them impossible to
/// remove.
fn share_directory(directory: &Path) -> std::result::Result<(), Errno> {
    if !SHARED_DIRECTORIES.iter().any(|shared| directory == Path::new(shared)) {
        return Ok(());
    }
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match mount_change(directory, shared) {
        // The directory is not a mount point yet.
        Err(Errno::INVAL) => {}
        other => return other,
    }
    mount_bind_recursive(directory, directory)?;
    mount_change(directory, shared)
}

fn is_network(namespace: &OwnedFd) -> bool {
    // SAFETY: this request takes no argument and only returns a number.
    let kind = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_NSTYPE) };
    // On a kernel without this request, setns reports the error later.
    kind == libc::CLONE_NEWNET || kind == -1
}

/// Returns the cookie of the calling thread's namespace, which the kernel never reuses; `None`
/// before Linux 5.14.
fn cookie() -> Result<Option<u64>> {
    let fail = |errno| Error::from_errno("inspect network namespace", "", errno);
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(fail)?;
    let mut cookie = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `cookie`, and the number of bytes to `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if result == 0 {
        return Ok(Some(cookie));
    }
    match std::io::Error::last_os_error().raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOPROTOOPT) | None => Ok(None),
        Some(errno) => Err(fail(errno)),
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the thread to its previous namespace when dropped.
struct Return<'a> {
    home: &'a Netns,
}

impl Drop for Return<'_> {
    fn drop(&mut self) {
        if self.home.set().is_err() {
            // To continue would change the network of the wrong namespace.
            std::process::abort();
        }
    }
}

/// Runs `body` with the calling thread in a new namespace.
fn in_new<T>(body: impl FnOnce() -> T) -> Result<T> {
    let home = Netns::current()?;
    // SAFETY: only the network namespace is unshared, not the descriptor table.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|errno| Error::from_errno("create network namespace", "", errno))?;
    let _return = Return { home: &home };
    Ok(body())
}

fn removal_error(path: &Path, errno: Errno) -> Error {
    Error::from_errno("remove network namespace", path.display().to_string(), errno)
}
