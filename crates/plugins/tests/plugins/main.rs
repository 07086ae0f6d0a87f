// SPDX-License-Identifier: Apache-2.0
//! The plugins as a runtime meets them: real processes, each test in namespaces of its own, next
//! to the Go plugins. What they made is looked at with `ip`, never with our own reader.

mod attachment;
mod bad_input;
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
