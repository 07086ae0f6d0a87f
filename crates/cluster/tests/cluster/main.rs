// SPDX-License-Identifier: Apache-2.0
//! Tests against a real API server of Kubernetes. `kubectl` is the oracle for writes, and other programs' changes are
//! made with it.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]
#![expect(unreachable_pub, reason = "a test program has no users")]

mod access;
mod certificates;
mod faults;
mod nodes;
mod server;
mod watch;
mod write;
