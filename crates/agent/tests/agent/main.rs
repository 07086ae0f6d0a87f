// SPDX-License-Identifier: Apache-2.0
//! The agent's modules with the real kernel and real clients, each test in its own namespaces,
//! checked with external tools.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]
#![expect(unreachable_pub, reason = "a test program has no users")]

mod api;
mod api_server;
mod lab;
mod multicast;
mod path_check;
mod reconcile;
mod rules;
