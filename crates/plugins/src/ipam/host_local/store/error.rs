// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with reservations. Texts about addresses are the Go plugin's: people search
//! for them.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Why addresses could not be reserved, found or freed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another ADD may succeed once an address is freed.
    #[error("no IP addresses available in range set: {set}")]
    Exhausted { index: usize, set: String },

    /// The attachment has been added before.
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

    #[error("network name {name:?} must begin with a letter or digit and hold no slash")]
    Network { name: String },

    /// Every address was tried; the cause is the first that failed.
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
    /// Whether space, or inodes, ran out.
    pub(super) fn is_full(&self) -> bool {
        let Self::Io { cause, .. } = self else { return false };
        matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
    }

    /// The range set an error is about: the Go plugin begins these with
    /// "failed to allocate for range N: ".
    pub fn set_index(&self) -> Option<usize> {
        match self {
            Self::Exhausted { index, .. }
            | Self::Duplicate { index, .. }
            | Self::RequestedTaken { index, .. }
            | Self::RequestedGateway { index, .. } => Some(*index),
            _ => None,
        }
    }
}

/// Says what was being done to which file when an operation failed.
pub(super) fn doing(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |cause| Error::Io { action, path: path.to_owned(), cause }
}

fn list(ips: &[IpAddr]) -> String {
    let texts: Vec<_> = ips.iter().map(IpAddr::to_string).collect();
    texts.join(" ")
}
