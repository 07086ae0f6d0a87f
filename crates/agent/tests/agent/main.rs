// SPDX-License-Identifier: Apache-2.0
//! The agent's parts against the real kernel and real clients, each test in namespaces of its own,
//! looked at with outside tools.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

mod blackhole;
mod lab;
mod multicast;
mod path_check;
mod reconcile;
mod rules;
mod serve;
mod served;
