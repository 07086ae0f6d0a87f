// SPDX-License-Identifier: Apache-2.0
//! Pods of three nodes that talk to many. Senders and receivers are `socat`, and what nodes send each other is counted
//! by nf_tables.

mod carried;
mod lab;
mod life;

pub use self::lab::Listener;
