// SPDX-License-Identifier: Apache-2.0
//! Lookup of the node that owns an address, by longest prefix match.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// Addresses behind another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Prefix of the addresses.
    pub prefix: IpNet,
    /// UDP address of the node.
    pub via: SocketAddr,
}

/// Table of all peers.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    v4: FamilyTable,
    v6: FamilyTable,
}

/// One table per prefix length, longest first. The nodes of a network mostly have prefixes of one
/// length.
#[derive(Debug, Default)]
struct FamilyTable(Vec<LengthTable>);

#[derive(Debug)]
struct LengthTable {
    mask: u128,
    entries: HashMap<u128, SocketAddr>,
}

impl Peers {
    /// Adds a peer, or replaces the one with the same prefix.
    pub(crate) fn set(&mut self, peer: &Peer) {
        let (table, mask) = self.table_for(peer.prefix);
        table.set(mask, number(peer.prefix.addr()) & mask, peer.via);
    }

    /// Removes the peer with this prefix, if it exists.
    pub(crate) fn remove(&mut self, prefix: IpNet) {
        let (table, mask) = self.table_for(prefix);
        table.remove(mask, number(prefix.addr()) & mask);
    }

    /// Returns the node that owns this address.
    pub(crate) fn lookup(&self, address: IpAddr) -> Option<SocketAddr> {
        match address {
            IpAddr::V4(_) => self.v4.lookup(number(address)),
            IpAddr::V6(_) => self.v6.lookup(number(address)),
        }
    }

    fn table_for(&mut self, prefix: IpNet) -> (&mut FamilyTable, u128) {
        let (table, bits) = match prefix {
            IpNet::V4(_) => (&mut self.v4, 32),
            IpNet::V6(_) => (&mut self.v6, 128),
        };
        (table, mask(prefix.prefix_len(), bits))
    }
}

impl<'a> FromIterator<&'a Peer> for Peers {
    /// The later of two peers with the same prefix wins.
    fn from_iter<I: IntoIterator<Item = &'a Peer>>(peers: I) -> Peers {
        let mut table = Peers::default();
        for peer in peers {
            table.set(peer);
        }
        table
    }
}

impl FamilyTable {
    fn set(&mut self, mask: u128, prefix: u128, via: SocketAddr) {
        let at = self.find(mask).unwrap_or_else(|at| {
            self.0.insert(at, LengthTable { mask, entries: HashMap::new() });
            at
        });
        self.0[at].entries.insert(prefix, via);
    }

    fn remove(&mut self, mask: u128, prefix: u128) {
        let Ok(at) = self.find(mask) else { return };
        self.0[at].entries.remove(&prefix);
        if self.0[at].entries.is_empty() {
            self.0.remove(at);
        }
    }

    fn lookup(&self, address: u128) -> Option<SocketAddr> {
        self.0.iter().find_map(|length| length.entries.get(&(address & length.mask)).copied())
    }

    fn find(&self, mask: u128) -> Result<usize, usize> {
        self.0.binary_search_by_key(&Reverse(mask), |length| Reverse(length.mask))
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// Returns the mask of a prefix length for addresses with this number of bits.
fn mask(len: u8, bits: u32) -> u128 {
    let all = u128::MAX >> (128 - bits);
    let free = bits - u32::from(len).min(bits);
    all & u128::MAX.checked_shl(free).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn table(peers: &[Peer]) -> Peers {
        peers.iter().collect()
    }

    fn peer(prefix: &str, port: u16) -> Peer {
        let via = SocketAddr::from(([192, 0, 2, 1], port));
        Peer { prefix: prefix.parse().unwrap(), via }
    }

    #[test]
    fn longest_prefix_wins() {
        let peers = table(&[
            peer("10.244.0.0/16", 1),
            peer("10.244.2.0/24", 2),
            peer("10.244.2.7/32", 3),
            peer("fd44::/16", 4),
            peer("fd44:2::/64", 5),
            peer("10.244.3.9/24", 7),
            peer("10.244.3.0/24", 6),
        ]);
        let check = |address: &str, expected: Option<u16>| {
            let port = peers.lookup(address.parse().unwrap()).map(|via| via.port());
            assert_eq!(port, expected, "{address}");
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
        assert_eq!(table(&[peer("::/0", 8)]).lookup([10, 0, 0, 1].into()), None);
        let all = table(&[peer("0.0.0.0/0", 9)]);
        assert_eq!(all.lookup([10, 0, 0, 1].into()).map(|via| via.port()), Some(9));
    }

    proptest! {
        /// The steps add, replace and remove peers.
        #[test]
        fn lookup_equals_a_linear_search(
            steps in prop::collection::vec((0..16_u16, 24..=32_u8, any::<bool>()), 0..60),
            address in 0..16_u16,
        ) {
            let mut table = Peers::default();
            let mut plain: Vec<Peer> = Vec::new();
            for (&(low, len, is_set), port) in steps.iter().zip(1..) {
                let one = peer(&format!("10.1.{}.{}/{len}", low >> 2, low & 3), port);
                plain.retain(|other| other.prefix.trunc() != one.prefix.trunc());
                if is_set {
                    plain.push(one);
                    table.set(&one);
                } else {
                    table.remove(one.prefix);
                }
            }
            let address = IpAddr::from([10, 1, (address >> 2) as u8, (address & 3) as u8]);
            let holding = plain.iter().filter(|peer| peer.prefix.contains(&address));
            let expected = holding.max_by_key(|peer| peer.prefix.prefix_len()).map(|peer| peer.via);
            prop_assert_eq!(table.lookup(address), expected);
            let lengths: BTreeSet<u8> = plain.iter().map(|peer| peer.prefix.prefix_len()).collect();
            prop_assert_eq!(table.v4.0.len(), lengths.len());
        }
    }
}
