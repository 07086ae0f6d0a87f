// SPDX-License-Identifier: Apache-2.0
//! TUN interfaces whose packets this process carries: IP packets without a link layer.

use std::fs::File;
use std::os::fd::OwnedFd;

use ::netlink::Errno;

use super::{attach, open, set};
use crate::error::{Error, Result};
use crate::types::IfName;

/// A TUN interface to be opened. It goes when its last queue is closed.
#[derive(Debug, Clone, Copy)]
pub struct NewTun {
    /// Its final name.
    pub name: IfName,
    /// Each flow of packets comes out of one of these.
    pub queues: usize,
    /// Packets come behind a `virtio_net_hdr` of ten bytes, may be larger than the MTU, and may lack
    /// their checksums; without it each is one packet as on a wire.
    pub offload: bool,
}

/// Opens a TUN interface in the calling thread's namespace, a file for each queue; fails if the name is
/// taken. Reading and writing do not wait.
pub fn carry(tun: &NewTun) -> Result<Vec<File>> {
    let queues = (0..tun.queues.max(1)).map(|at| queue(tun, at == 0).map(File::from));
    queues.collect::<std::result::Result<_, _>>().map_err(|errno| {
        // What IFF_TUN_EXCL makes of a name that any link has.
        let errno = if errno == Errno::BUSY { Errno::EXIST } else { errno };
        Error::from_errno("create tun", tun.name.as_str(), errno)
    })
}

fn queue(tun: &NewTun, is_first: bool) -> std::result::Result<OwnedFd, Errno> {
    let file = open()?;
    let mut flags = libc::IFF_TUN | libc::IFF_NO_PI;
    for (is_wanted, flag) in [
        (tun.queues > 1, libc::IFF_MULTI_QUEUE),
        (tun.offload, libc::IFF_VNET_HDR),
        (is_first, libc::IFF_TUN_EXCL),
    ] {
        flags |= if is_wanted { flag } else { 0 };
    }
    attach(&file, tun.name, flags)?;
    if tun.offload {
        let basic = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        // Large UDP packets came with Linux 6.2.
        set(&file, libc::TUNSETOFFLOAD, basic | libc::TUN_F_USO4 | libc::TUN_F_USO6)
            .or_else(|_| set(&file, libc::TUNSETOFFLOAD, basic))?;
    }
    rustix::io::ioctl_fionbio(&file, true)?;
    Ok(file)
}
