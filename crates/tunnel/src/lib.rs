// SPDX-License-Identifier: Apache-2.0
//! The user-space data path of flannel's `udp` backend. A packet that enters a TUN interface leaves
//! as the payload of one UDP datagram, without an additional header, to the node that owns its
//! destination.
//!
//! The wire carries one packet per datagram, but one system call carries many packets. The kernel
//! delivers large GSO packets, which are segmented into one send of many datagrams; segments
//! received in one message are merged into one large packet again. `packet`, `send_batch` and
//! `peers` are pure; `send`, `receive` and `tunnel` have the threads and sockets. The caller sets
//! the address, MTU, state and routes of the interface.

mod counts;
mod packet;
mod peers;
#[cfg(test)]
mod properties;
mod receive;
mod send;
mod send_batch;
mod tunnel;
mod wait;

pub use crate::counts::{Counts, Dropped, Flow};
pub use crate::peers::Peer;
pub use crate::tunnel::{Config, Error, Result, Tunnel};
