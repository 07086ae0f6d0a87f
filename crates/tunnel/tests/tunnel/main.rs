// SPDX-License-Identifier: Apache-2.0
//! Tunnels between nodes that are namespaces, with pods behind them. What passes is judged by `ping` and
//! by the kernel's own TCP and UDP.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

mod flannel;
mod interop;
mod lab;
mod life;
mod packets;
mod streams;
