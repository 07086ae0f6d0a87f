// SPDX-License-Identifier: Apache-2.0
//! Errors of reservations. The texts about addresses are those of the Go plugin, because users
//! search for them.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A later ADD may succeed after an address was released.
    #[error("no IP addresses available in range set: {set}")]
    Exhausted { index: usize, set: String },

    /// The attachment was added before.
    #[error("{ip} has been allocated to {id}, duplicate allocation is not allowed")]
    Duplicate { index: usize, ip: IpAddr, id: String },

    #[error("requested IP address {ip} is not available in range set {set}")]
    RequestedTaken { index: usize, ip: IpAddr, set: String },

    #[error("requested ip {ip} is subnet's gateway")]
    RequestedGateway { index: usize, ip: IpAddr },

    #[error("failed to allocate all requested IPs: {}", list(.ips))]
    NotInAnySet { ips: Vec<IpAddr> },

    #[error("IP address {ip} is already reserved")]
    Taken { ip: IpAddr },

    #[error("network name {name:?} must start with a letter or digit and contain no slash")]
    Network { name: String },

    /// All addresses were tried; the cause is the first failure.
    #[error("release {}", list(.ips))]
    Release {
        ips: Vec<IpAddr>,
        #[source]
        cause: io::Error,
    },

    #[error("{action} {}", .path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

impl Error {
    /// Whether the disk is out of space or inodes.
    pub(super) fn is_full(&self) -> bool {
        let Self::Io { cause, .. } = self else { return false };
        matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
    }

    /// The range set that an error is about. The Go plugin starts such errors with "failed to
    /// allocate for range N: ".
    pub(crate) fn set_index(&self) -> Option<usize> {
        match self {
            Self::Exhausted { index, .. }
            | Self::Duplicate { index, .. }
            | Self::RequestedTaken { index, .. }
            | Self::RequestedGateway { index, .. } => Some(*index),
            _ => None,
        }
    }
}

/// Adds the operation and the file to an I/O error.
pub(super) fn doing(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |cause| Error::Io { action, path: path.to_owned(), cause }
}

fn list(ips: &[IpAddr]) -> String {
    let texts: Vec<_> = ips.iter().map(IpAddr::to_string).collect();
    texts.join(" ")
}
