// SPDX-License-Identifier: Apache-2.0
//! Registration of sockets with the async runtime.

use std::os::fd::AsRawFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a socket with the runtime of the calling task, for reading and for errors.
#[expect(
    deprecated,
    reason = "its replacement is unsafe, for types that do not own their descriptor"
)]
pub(crate) fn register<T: AsRawFd>(socket: T) -> kernel::Result<AsyncFd<T>> {
    AsyncFd::with_interest(socket, Interest::READABLE | Interest::ERROR)
        .map_err(|cause| kernel::Error::from_io("register", "a socket", &cause))
}
