// SPDX-License-Identifier: Apache-2.0
//! Tunnels between nodes, which are namespaces with pods behind them. `ping` and the kernel's own
//! TCP and UDP verify what arrives.

#![expect(clippy::unwrap_used, reason = "a test panics when it fails")]
#![expect(unreachable_pub, reason = "a test program has no users")]

mod flannel;
mod interop;
mod lab;
mod lifecycle;
mod packets;
mod streams;
