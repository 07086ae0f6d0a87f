// SPDX-License-Identifier: Apache-2.0
//! DHCPv6 (RFC 8415): messages and what they mean. One address for the interface (IA_NA); routes
//! come from router advertisements, which the container's kernel takes by itself.

pub mod dialog;
pub mod message;

use std::net::Ipv6Addr;

/// The port of clients.
pub const CLIENT_PORT: u16 = 546;
/// The port of servers.
pub const SERVER_PORT: u16 = 547;
/// All servers and relays on the link.
pub const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
