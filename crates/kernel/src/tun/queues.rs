// SPDX-License-Identifier: Apache-2.0
//! TUN interfaces whose IP packets this process reads and writes.

use std::fs::File;
use std::os::fd::OwnedFd;

use ::netlink::Errno;

use super::{attach, open, set};
use crate::error::{Error, Result};
use crate::types::IfName;

/// A TUN interface to create. It vanishes when its last queue is closed.
#[derive(Debug, Clone, Copy)]
pub struct NewTun {
    /// Final name.
    pub name: IfName,
    /// Number of queues; all packets of one flow use the same queue.
    pub queues: usize,
    /// A `virtio_net_hdr` of ten bytes precedes each packet, and packets can exceed the MTU and
    /// lack checksums. Without offload each packet is as on the wire.
    pub offload: bool,
}

/// Creates a TUN interface in the calling thread's namespace and returns one file per queue. Fails
/// if the name is taken. Reads and writes do not block.
pub fn open_queues(tun: &NewTun) -> Result<Vec<File>> {
    let queues = (0..tun.queues.max(1)).map(|at| open_queue(tun, at == 0).map(File::from));
    queues.collect::<std::result::Result<_, _>>().map_err(|errno| {
        // With IFF_TUN_EXCL the kernel answers EBUSY if a link has the name.
        let errno = if errno == Errno::BUSY { Errno::EXIST } else { errno };
        Error::from_errno("create tun", tun.name.as_str(), errno)
    })
}

fn open_queue(tun: &NewTun, is_first: bool) -> std::result::Result<OwnedFd, Errno> {
    let file = open()?;
    let mut flags = libc::IFF_TUN | libc::IFF_NO_PI;
    for (is_set, flag) in [
        (tun.queues > 1, libc::IFF_MULTI_QUEUE),
        (tun.offload, libc::IFF_VNET_HDR),
        (is_first, libc::IFF_TUN_EXCL),
    ] {
        flags |= if is_set { flag } else { 0 };
    }
    attach(&file, tun.name, flags)?;
    if tun.offload {
        let basic = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        // UDP segmentation offload exists since Linux 6.2.
        set(&file, libc::TUNSETOFFLOAD, basic | libc::TUN_F_USO4 | libc::TUN_F_USO6)
            .or_else(|_| set(&file, libc::TUNSETOFFLOAD, basic))?;
    }
    rustix::io::ioctl_fionbio(&file, true)?;
    Ok(file)
}
