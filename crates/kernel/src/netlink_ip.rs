// SPDX-License-Identifier: Apache-2.0
//! IP addresses and prefixes in netlink attributes.

use std::net::IpAddr;

use ::netlink::Message;
use ipnet::IpNet;

pub(crate) const AF_UNSPEC: u8 = 0; // linux/socket.h
pub(crate) const AF_INET: u8 = 2; // linux/socket.h
pub(crate) const AF_BRIDGE: u8 = 7; // linux/socket.h
pub(crate) const AF_INET6: u8 = 10; // linux/socket.h

/// Appends an attribute with an address in network byte order.
pub(crate) fn put_ip(message: &mut Message, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => message.bytes(kind, &ip.octets()),
        IpAddr::V6(ip) => message.bytes(kind, &ip.octets()),
    };
}

/// Parses an address of 4 or 16 bytes.
pub(crate) fn ip(payload: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(payload) {
        return Some(IpAddr::from(octets));
    }
    <[u8; 16]>::try_from(payload).ok().map(IpAddr::from)
}

/// Builds a prefix with its host bits; `None` if the length does not fit the address.
pub(crate) fn prefix(address: IpAddr, len: u8) -> Option<IpNet> {
    IpNet::new(address, len).ok()
}
