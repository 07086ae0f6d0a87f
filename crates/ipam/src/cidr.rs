// SPDX-License-Identifier: Apache-2.0
//! Arithmetic with prefixes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

pub(crate) use crate::range::from_bits as address;

pub(crate) const fn v4(octets: [u8; 4], length: u8) -> IpNet {
    let [a, b, c, d] = octets;
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length))
}

pub(crate) const fn v6(words: [u16; 8], length: u8) -> IpNet {
    let [a, b, c, d, e, f, g, h] = words;
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), length))
}

/// Returns an address of a prefix by its position.
pub(crate) fn nth(prefix: IpNet, n: u16) -> IpAddr {
    let base = prefix.network();
    address(base, crate::range::bits(base) + u128::from(n))
}

pub(crate) fn overlap(a: IpNet, b: IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// Returns the prefix of this length that contains an address.
pub(crate) fn block(address: IpAddr, length: u8) -> IpNet {
    let max = if address.is_ipv4() { 32 } else { 128 };
    let length = length.min(max);
    IpNet::new(address, length).expect("the length is at most the maximum").trunc()
}
