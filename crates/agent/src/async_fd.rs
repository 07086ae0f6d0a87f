// SPDX-License-Identifier: Apache-2.0
//! Sockets of the kernel's that the runtime waits for.

use std::os::fd::AsRawFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Hands it to the runtime of the calling task, which wakes who waits for something to read or for an error.
#[expect(deprecated, reason = "its successor is unsafe, for types that do not own what they name")]
pub(crate) fn register<T: AsRawFd>(socket: T) -> kernel::Result<AsyncFd<T>> {
    AsyncFd::with_interest(socket, Interest::READABLE | Interest::ERROR)
        .map_err(|cause| kernel::Error::from_io("wait for", "a socket", &cause))
}
