// SPDX-License-Identifier: Apache-2.0
//! The data path of flannel's `udp` backend: a packet that enters a TUN interface leaves as the payload of
//! one UDP datagram to the node that has its destination, bare and without any header of ours.
//!
//! One packet on the wire, many in a system call: the kernel hands over large packets, which are cut
//! into one send of many datagrams; what arrives in one message is merged into one large packet again.
//! Everything about packets is pure (`packet`, `outbox`, `peers`); threads and sockets are in
//! `outward`, `inward` and `tunnel`. Address, MTU, state and routes of the interface are its user's.

mod counts;
mod inward;
mod outbox;
mod outward;
mod packet;
mod peers;
#[cfg(test)]
mod properties;
mod tunnel;
mod wait;

pub use crate::counts::{Counts, Dropped, Flow};
pub use crate::peers::Peer;
pub use crate::tunnel::{Config, Error, Result, Tunnel};

/// What a datagram adds to the packet in it: IPv4 and UDP headers.
pub const OVERHEAD_V4: u32 = 28;
/// The same with IPv6.
pub const OVERHEAD_V6: u32 = 48;
