// SPDX-License-Identifier: Apache-2.0
//! Sets that hold ranges of keys. The kernel keeps where each begins and, as an element of its own, where
//! it has ended.

use std::net::IpAddr;

use ::netlink::{Attr, Attrs, Message};
use ipnet::IpNet;

use super::dump::{
    HEADER_LEN, NFTA_DATA_VALUE, NFTA_LIST_ELEM, NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_LIST_ELEMENTS,
};
use super::match_expr::octets;
use super::{Nft, Table};
use crate::error::Result;

const NFTA_SET_ELEM_FLAGS: u16 = 3; // linux/netfilter/nf_tables.h
const NFT_SET_ELEM_INTERVAL_END: u32 = 1; // linux/netfilter/nf_tables.h

/// Keys that follow each other, in network byte order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// The first one.
    pub first: Vec<u8>,
    /// The first one behind it; none where there is no larger key.
    pub end: Option<Vec<u8>>,
}

impl Range {
    /// The addresses of networks of one family, in order, as few ranges as there can be: the kernel
    /// refuses ranges that overlap.
    pub fn of(networks: &[IpNet]) -> Vec<Self> {
        let mut ranges: Vec<Self> = networks.iter().map(Self::of_network).collect();
        ranges.sort();
        let mut merged: Vec<Self> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if last.end.as_ref().is_none_or(|end| *end >= range.first) => {
                    // `None` is the largest end, and the smallest of its type.
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

/// The address behind this one.
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

impl Nft {
    /// The ranges of a set in order; none where it is missing.
    pub fn ranges(&self, table: Table<'_>, set: &str) -> Result<Vec<Range>> {
        let read = |payload: &[u8]| Some(bounds(payload).collect::<Vec<_>>());
        let mut bounds = self.element_messages(table, set, read)?.concat();
        // Where one ends and another begins, the end comes first.
        bounds.sort_by_key(|(key, is_end)| (key.clone(), !is_end));
        Ok(paired(bounds))
    }
}

fn paired(bounds: Vec<(Vec<u8>, bool)>) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for (key, is_end) in bounds {
        match ranges.last_mut() {
            Some(last) if is_end && last.end.is_none() => last.end = Some(key),
            // `nft` says that there is nothing before the first one.
            _ if is_end => {}
            _ => ranges.push(Range { first: key, end: None }),
        }
    }
    ranges
}

fn bounds(payload: &[u8]) -> impl Iterator<Item = (Vec<u8>, bool)> + '_ {
    let list = Attrs::after(payload, HEADER_LEN).find_kind(NFTA_SET_ELEM_LIST_ELEMENTS);
    list.map(|list| list.nested()).into_iter().flatten().filter_map(|one| bound(&one))
}

fn bound(one: &Attr<'_>) -> Option<(Vec<u8>, bool)> {
    let attrs = one.nested();
    let key = attrs.find_kind(NFTA_SET_ELEM_KEY)?.nested().find_kind(NFTA_DATA_VALUE)?;
    let flags = attrs.find_kind(NFTA_SET_ELEM_FLAGS).and_then(|flags| flags.be32()).unwrap_or(0);
    Some((key.payload.to_vec(), flags & NFT_SET_ELEM_INTERVAL_END != 0))
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
    fn ranges_do_not_overlap() {
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
    fn bounds_are_paired() {
        let bound = |key: u8, is_end| (vec![key], is_end);
        let range = |first: u8, end: Option<u8>| Range {
            first: vec![first],
            end: end.map(|end| vec![end]),
        };
        let bounds = vec![bound(0, true), bound(1, false), bound(3, true), bound(3, false)];
        assert_eq!(paired(bounds), [range(1, Some(3)), range(3, None)]);
    }
}
