// SPDX-License-Identifier: Apache-2.0
//! Interval sets, whose elements are ranges of keys. The kernel stores the start of a range and the
//! first key after it as two elements.

use std::net::IpAddr;

use ::netlink::{Attr, Attrs, Message};
use ipnet::IpNet;

use super::match_expr::octets;
use super::uapi::{
    HEADER_LEN, NFT_SET_ELEM_INTERVAL_END, NFTA_DATA_VALUE, NFTA_LIST_ELEM, NFTA_SET_ELEM_FLAGS,
    NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_LIST_ELEMENTS,
};

/// A range of keys in network byte order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// First key.
    pub first: Vec<u8>,
    /// First key after the range; `None` if the range includes the largest key.
    pub end: Option<Vec<u8>>,
}

impl Range {
    /// Returns the addresses of networks of one family as sorted ranges. Overlapping and adjacent
    /// networks are merged, because the kernel rejects ranges that overlap.
    pub fn of(networks: &[IpNet]) -> Vec<Self> {
        let mut ranges: Vec<Self> = networks.iter().map(Self::of_network).collect();
        ranges.sort();
        let mut merged: Vec<Self> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if last.end.as_ref().is_none_or(|end| *end >= range.first) => {
                    // An end of `None` is the largest, but `Option` orders `None` first.
                    let is_open = last.end.is_none() || range.end.is_none();
                    last.end = if is_open { None } else { last.end.take().max(range.end) };
                }
                _ => merged.push(range),
            }
        }
        merged
    }

    fn of_network(network: &IpNet) -> Self {
        Self { first: octets(network.network()), end: next(network.broadcast()) }
    }
}

/// Returns the next address.
fn next(address: IpAddr) -> Option<Vec<u8>> {
    match address {
        IpAddr::V4(v4) => Some(v4.to_bits().checked_add(1)?.to_be_bytes().to_vec()),
        IpAddr::V6(v6) => Some(v6.to_bits().checked_add(1)?.to_be_bytes().to_vec()),
    }
}

pub(super) fn write(ranges: &[Range], list: &mut Message) {
    let mut element = |key: &[u8], flags: u32| {
        list.nest(NFTA_LIST_ELEM, |one| {
            one.nest(NFTA_SET_ELEM_KEY, |nest| {
                nest.bytes(NFTA_DATA_VALUE, key);
            });
            if flags != 0 {
                one.be32(NFTA_SET_ELEM_FLAGS, flags);
            }
        });
    };
    for range in ranges {
        element(&range.first, 0);
        if let Some(end) = &range.end {
            element(end, NFT_SET_ELEM_INTERVAL_END);
        }
    }
}

/// Parses the elements of an interval set as bounds: a key, and whether it is an end.
pub(super) fn parse_bounds(payload: &[u8]) -> impl Iterator<Item = (Vec<u8>, bool)> + '_ {
    let list = Attrs::after(payload, HEADER_LEN).find_kind(NFTA_SET_ELEM_LIST_ELEMENTS);
    list.map(|list| list.nested()).into_iter().flatten().filter_map(|element| parse_bound(&element))
}

fn parse_bound(element: &Attr<'_>) -> Option<(Vec<u8>, bool)> {
    let attrs = element.nested();
    let key = attrs.find_kind(NFTA_SET_ELEM_KEY)?.nested().find_kind(NFTA_DATA_VALUE)?;
    let flags = attrs.find_kind(NFTA_SET_ELEM_FLAGS).and_then(|flags| flags.be32()).unwrap_or(0);
    Some((key.payload.to_vec(), flags & NFT_SET_ELEM_INTERVAL_END != 0))
}

/// Joins bounds to ranges, in order.
pub(super) fn join_bounds(mut bounds: Vec<(Vec<u8>, bool)>) -> Vec<Range> {
    // At the same key, the end of one range sorts before the start of the next.
    bounds.sort_by_key(|(key, is_end)| (key.clone(), !is_end));
    let mut ranges: Vec<Range> = Vec::new();
    for (key, is_end) in bounds {
        match ranges.last_mut() {
            Some(last) if is_end && last.end.is_none() => last.end = Some(key),
            // `nft` adds an end element before the first range.
            _ if is_end => {}
            _ => ranges.push(Range { first: key, end: None }),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(networks: &[&str], expected: &[([u8; 4], Option<[u8; 4]>)]) {
        let networks: Vec<IpNet> = networks.iter().map(|one| one.parse().unwrap()).collect();
        let of = |(first, end): &([u8; 4], Option<[u8; 4]>)| Range {
            first: first.to_vec(),
            end: end.map(|end| end.to_vec()),
        };
        assert_eq!(Range::of(&networks), expected.iter().map(of).collect::<Vec<_>>());
    }

    #[test]
    fn overlapping_networks_become_one_range() {
        check(&[], &[]);
        check(&["10.1.2.3/16"], &[([10, 1, 0, 0], Some([10, 2, 0, 0]))]);
        check(
            &["10.2.0.0/16", "10.1.0.0/16", "10.1.7.0/24", "10.4.0.0/16"],
            &[([10, 1, 0, 0], Some([10, 3, 0, 0])), ([10, 4, 0, 0], Some([10, 5, 0, 0]))],
        );
        check(
            &["255.255.255.255/32", "224.0.0.0/3", "1.2.3.4/32"],
            &[([1, 2, 3, 4], Some([1, 2, 3, 5])), ([224, 0, 0, 0], None)],
        );
        check(&["0.0.0.0/0", "10.0.0.0/8"], &[([0, 0, 0, 0], None)]);
    }

    #[test]
    fn bounds_in_any_order_become_ranges() {
        let bound = |key: u8, is_end| (vec![key], is_end);
        let range = |first: u8, end: Option<u8>| Range {
            first: vec![first],
            end: end.map(|end| vec![end]),
        };
        let bounds = vec![bound(3, false), bound(0, true), bound(1, false), bound(3, true)];
        assert_eq!(join_bounds(bounds), [range(1, Some(3)), range(3, None)]);
    }
}
