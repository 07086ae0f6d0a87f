// SPDX-License-Identifier: Apache-2.0
//! Which node has an address: the longest prefix that holds it.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// Addresses behind another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The addresses.
    pub prefix: IpNet,
    /// Where the node takes their packets.
    pub via: SocketAddr,
}

/// All peers. It does not change: it is replaced.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    v4: Family,
    v6: Family,
}

/// A table for each length of prefixes, the longest first, sorted. Nodes of a network mostly have prefixes of
/// one length.
#[derive(Debug, Default)]
struct Family(Vec<Length>);

#[derive(Debug)]
struct Length {
    mask: u128,
    entries: Vec<(u128, SocketAddr)>,
}

impl Peers {
    /// Of two with the same prefix the later counts.
    pub(crate) fn new(peers: &[Peer]) -> Peers {
        let mut table = Peers::default();
        for peer in peers {
            let (family, bits) = match peer.prefix {
                IpNet::V4(_) => (&mut table.v4, 32),
                IpNet::V6(_) => (&mut table.v6, 128),
            };
            family.add(mask(peer.prefix.prefix_len(), bits), peer);
        }
        table.v4.sort();
        table.v6.sort();
        table
    }

    /// The node that takes packets for this address.
    pub(crate) fn via(&self, address: IpAddr) -> Option<SocketAddr> {
        match address {
            IpAddr::V4(_) => self.v4.via(number(address)),
            IpAddr::V6(_) => self.v6.via(number(address)),
        }
    }
}

impl Family {
    fn add(&mut self, mask: u128, peer: &Peer) {
        let entry = (number(peer.prefix.addr()) & mask, peer.via);
        match self.0.iter_mut().find(|length| length.mask == mask) {
            Some(length) => length.entries.push(entry),
            None => self.0.push(Length { mask, entries: vec![entry] }),
        }
    }

    fn sort(&mut self) {
        self.0.sort_by_key(|length| Reverse(length.mask));
        for Length { entries, .. } in &mut self.0 {
            // Later ones first, and of each number only the first stays.
            entries.reverse();
            entries.sort_by_key(|(number, _)| *number);
            entries.dedup_by_key(|(number, _)| *number);
        }
    }

    fn via(&self, address: u128) -> Option<SocketAddr> {
        self.0.iter().find_map(|Length { mask, entries }| {
            let at = entries.binary_search_by_key(&(address & mask), |(number, _)| *number).ok()?;
            Some(entries[at].1)
        })
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// Of a family with so many bits in an address.
fn mask(len: u8, bits: u32) -> u128 {
    let all = u128::MAX >> (128 - bits);
    let free = bits - u32::from(len).min(bits);
    all & u128::MAX.checked_shl(free).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer(prefix: &str, port: u16) -> Peer {
        let via = SocketAddr::from(([192, 0, 2, 1], port));
        Peer { prefix: prefix.parse().unwrap(), via }
    }

    #[test]
    fn longest_prefix_wins() {
        let peers = Peers::new(&[
            peer("10.244.0.0/16", 1),
            peer("10.244.2.0/24", 2),
            peer("10.244.2.7/32", 3),
            peer("fd44::/16", 4),
            peer("fd44:2::/64", 5),
            peer("10.244.3.9/24", 7),
            peer("10.244.3.0/24", 6),
        ]);
        let check = |address: &str, expected: Option<u16>| {
            let found = peers.via(address.parse().unwrap()).map(|via| via.port());
            assert_eq!(found, expected, "{address}");
        };
        check("10.244.9.1", Some(1));
        check("10.244.2.1", Some(2));
        check("10.244.2.7", Some(3));
        check("10.244.3.1", Some(6));
        check("fd44:9::1", Some(4));
        check("fd44:2::1", Some(5));
        check("10.245.0.1", None);
        check("fd45::1", None);
        check("::10.244.2.1", None);
        assert_eq!(Peers::new(&[peer("::/0", 8)]).via([10, 0, 0, 1].into()), None);
        let all = Peers::new(&[peer("0.0.0.0/0", 9)]);
        assert_eq!(all.via([10, 0, 0, 1].into()).map(|via| via.port()), Some(9));
    }

    proptest! {
        #[test]
        fn table_is_the_plain_search(
            prefixes in prop::collection::vec((any::<u16>(), 16..=32_u8), 0..60),
            address: u16,
        ) {
            let peers: Vec<Peer> = prefixes.iter().zip(1..).map(|(&(low, len), port)| {
                let [c, d] = low.to_be_bytes();
                peer(&format!("10.1.{c}.{d}/{len}"), port)
            }).collect();
            let [c, d] = address.to_be_bytes();
            let address = IpAddr::from([10, 1, c, d]);
            let holding = peers.iter().filter(|peer| peer.prefix.contains(&address));
            let expected = holding.max_by_key(|peer| peer.prefix.prefix_len()).map(|peer| peer.via);
            prop_assert_eq!(Peers::new(&peers).via(address), expected);
        }
    }
}
