// SPDX-License-Identifier: Apache-2.0
//! Plans against what flannel made of the same leases, and routes against the real kernel.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

mod recorded;
mod routes;
