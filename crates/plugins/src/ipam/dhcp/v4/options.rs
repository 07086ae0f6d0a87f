// SPDX-License-Identifier: Apache-2.0
//! Values of options that are more than bytes. Nonsense is passed over: a lease with an unreadable
//! route is still a lease.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;

use super::super::lease::Via;

/// One number.
pub fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

/// A list of addresses.
pub fn addresses(value: &[u8]) -> Vec<Ipv4Addr> {
    let (chunks, _) = value.as_chunks::<4>();
    chunks.iter().map(|octets| Ipv4Addr::from(*octets)).collect()
}

/// The length of a network from its mask; `None` where ones follow zeroes.
pub fn prefix_len(mask: &[u8]) -> Option<u8> {
    let mask = number(mask)?;
    (mask.leading_ones() + mask.trailing_zeros() == 32 || mask == 0)
        .then(|| mask.leading_ones() as u8)
}

/// The length that networks had before there were masks.
pub fn classful(address: Ipv4Addr) -> u8 {
    match address.octets()[0] {
        0..=127 => 8,
        128..=191 => 16,
        _ => 24,
    }
}

/// Pairs of network and router, the network's length given by its class (RFC 2132).
pub fn static_routes(value: &[u8]) -> Vec<Via> {
    let pairs = addresses(value);
    let (pairs, _) = pairs.as_chunks::<2>();
    pairs.iter().filter_map(|[dst, router]| via(*dst, classful(*dst), *router)).collect()
}

/// Length, the network's bytes that matter, router (RFC 3442).
pub fn classless_routes(mut value: &[u8]) -> Vec<Via> {
    let mut routes = Vec::new();
    while let Some((length, rest)) = value.split_first() {
        let used = usize::from(length.div_ceil(8));
        let Some((network, rest)) = rest.split_at_checked(used) else { break };
        let Some((router, rest)) = rest.split_first_chunk::<4>() else { break };
        let mut octets = [0; 4];
        let Some(to) = octets.get_mut(..used) else { break };
        to.copy_from_slice(network);
        routes.extend(via(octets.into(), *length, (*router).into()));
        value = rest;
    }
    routes
}

fn via(dst: Ipv4Addr, length: u8, router: Ipv4Addr) -> Option<Via> {
    let dst = Ipv4Net::new(dst, length).ok()?.trunc();
    Some(Via { dst: dst.into(), gateway: IpAddr::V4(router) })
}

/// Text; servers may end it with zeroes.
pub fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(routes: &[Via]) -> Vec<String> {
        routes.iter().map(|via| format!("{} via {}", via.dst, via.gateway)).collect()
    }

    #[test]
    fn routes_of_both_kinds() {
        let classless = [
            &[0, 10, 0, 0, 1][..],
            &[8, 10, 10, 0, 0, 2],
            &[25, 192, 168, 1, 128, 0, 0, 0, 0],
            &[33, 1, 2, 3, 4, 5, 1, 1, 1, 1],
        ];
        assert_eq!(
            shown(&classless_routes(&classless.concat())),
            ["0.0.0.0/0 via 10.0.0.1", "10.0.0.0/8 via 10.0.0.2", "192.168.1.128/25 via 0.0.0.0"]
        );
        let classful = [172, 16, 0, 0, 10, 0, 0, 1, 192, 0, 2, 0, 10, 0, 0, 2, 9];
        assert_eq!(
            shown(&static_routes(&classful)),
            ["172.16.0.0/16 via 10.0.0.1", "192.0.2.0/24 via 10.0.0.2"]
        );
    }

    #[test]
    fn masks_are_ones_then_zeroes() {
        assert_eq!(prefix_len(&[255, 255, 255, 0]), Some(24));
        assert_eq!(prefix_len(&[255, 255, 255, 255]), Some(32));
        assert_eq!(prefix_len(&[0, 0, 0, 0]), Some(0));
        assert_eq!(prefix_len(&[255, 0, 255, 0]), None);
        assert_eq!(prefix_len(&[255]), None);
    }

    proptest! {
        #[test]
        fn any_value_is_read_without_panic(value: Vec<u8>) {
            let _ = (classless_routes(&value), static_routes(&value));
            let _ = (text(&value), prefix_len(&value), number(&value));
        }
    }
}
