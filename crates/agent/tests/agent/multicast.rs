// SPDX-License-Identifier: Apache-2.0
//! Multicast between pods of three nodes. Senders and receivers are `socat`, and nf_tables counts the packets between
//! nodes.

mod forwarding;
mod lab;
mod restart;

pub use self::lab::Listener;
