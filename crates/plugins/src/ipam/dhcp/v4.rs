// SPDX-License-Identifier: Apache-2.0
//! DHCPv4 (RFC 2131): messages, the packets that carry them, and what they mean.

pub mod dialog;
pub mod frame;
pub mod message;
mod options;

/// The port of clients.
pub const CLIENT_PORT: u16 = 68;
/// The port of servers.
pub const SERVER_PORT: u16 = 67;
