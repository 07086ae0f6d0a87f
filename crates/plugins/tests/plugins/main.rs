// SPDX-License-Identifier: Apache-2.0
//! Runs the plugins as a container runtime does: as real processes, each test in its own
//! namespaces, next to the Go plugins. Assertions read kernel state with `ip`, `nft` and `tc`, not
//! with podwire's own reader.

#![expect(unreachable_pub, reason = "a test program has no users")]

mod attachment;
mod bad_input;
mod calico;
mod call;
mod chain;
mod clients;
mod compare;
mod conf;
mod crash;
mod delegation;
mod dhcp;
mod docs;
mod firewall;
mod lifecycle;
mod mixed;
mod mixed_rules;
mod oversized;
mod parallel;
mod portmap;
mod process;
mod rules;
mod snapshot;
mod undelivered;
mod wording;
mod world;
