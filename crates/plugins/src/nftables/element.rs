// SPDX-License-Identifier: Apache-2.0
//! Maps and sets of a feature, and their elements.

use std::borrow::Cow;

use kernel::nft::{Data, DataType, MapTo, Set, Table};

/// A map or set of a feature.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Map {
    /// Identifies the map in the index. Unique within a feature; must never change.
    pub number: u8,
    pub table: Table<'static>,
    pub name: &'static str,
    /// The fields of a key.
    pub key: &'static [DataType],
    /// The fields of a value.
    pub data: MapTo<'static>,
    /// Which attachment wins when two claim the same element.
    pub conflict: ConflictPolicy,
    /// The sets that hold the elements.
    pub placement: Placement,
    /// Comment shown by `nft list`.
    pub comment: &'static str,
}

/// The sets that hold the elements of a map. The obvious way to select one of several chains for a
/// packet would be a map from keys to chains. But for each element that is added to such a map the
/// kernel walks all existing elements. Therefore each chain has its own set, and one rule that
/// jumps to the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// One set.
    Single,
    /// One set for each chain that uses the elements. The key of an entry starts with the
    /// [`ChainId`], and the name of the set ends with it.
    PerChain,
    /// One set for each chain, and a set that holds all elements. A key is then in one per-chain
    /// set only, and one lookup decides whether it is in any of them.
    PerChainAndSingle,
}

/// Identifies a chain that has its own sets.
pub(crate) type ChainId = u32;

const CHAIN_ID_LEN: usize = size_of::<ChainId>();

/// Which attachment wins when two claim the same element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConflictPolicy {
    /// The attachment that claims it last. For elements that follow from an IP address: the
    /// attachment that was assigned the address last owns it.
    LastWins,
    /// The attachment that has the corresponding element of another map. The key starts with the
    /// key of that element; losing the parent means losing this element too.
    FollowsParent(&'static Map),
    /// The attachment that claimed it first, as long as its container exists.
    FirstWins,
    /// As `FirstWins`, except that several attachments may claim the element with this value; the
    /// first one holds it for all. No rule uses the element: it only prevents overlapping claims in
    /// other maps.
    SharedGuard(&'static [u8]),
}

impl Map {
    /// Whether an attachment keeps its elements while its container exists.
    pub(super) fn is_first_wins(&self) -> bool {
        matches!(self.conflict, ConflictPolicy::FirstWins | ConflictPolicy::SharedGuard(_))
    }

    pub(super) fn is_guard(&self) -> bool {
        matches!(self.conflict, ConflictPolicy::SharedGuard(_))
    }

    /// Whether the existing element also covers this entry.
    pub(super) fn is_shared(&self, found: &[u8], entry: &Entry) -> bool {
        let ConflictPolicy::SharedGuard(shared) = self.conflict else { return false };
        found == shared && entry.data == Some(Data::Value(shared.to_vec()))
    }

    /// Length of an entry's key in bytes.
    pub(crate) fn key_len(&self) -> usize {
        let len = match self.key {
            [one] => one.size(),
            several => several.iter().map(|part| part.size().next_multiple_of(4)).sum(),
        };
        if self.has_chain_sets() { CHAIN_ID_LEN + len } else { len }
    }

    pub(super) fn has_chain_sets(&self) -> bool {
        self.placement != Placement::Single
    }

    pub(super) fn has_single_set(&self) -> bool {
        self.placement != Placement::PerChain
    }

    /// The name of a chain's set.
    pub(crate) fn part(&self, chain: ChainId) -> String {
        format!("{}-{chain:08x}", self.name)
    }

    /// The chain that a set of this name belongs to.
    pub(super) fn chain_of(&self, set: &str) -> Option<ChainId> {
        let digits = set.strip_prefix(self.name)?.strip_prefix('-')?;
        if self.has_chain_sets() { ChainId::from_str_radix(digits, 16).ok() } else { None }
    }

    pub(super) fn set<'a>(&self, name: &'a str, comment: &'a str) -> Set<'a> {
        Set { table: self.table, name, key: self.key, data: self.data, is_interval: false, comment }
    }

    /// The key of an element in the kernel: the key of the entry without the chain ID.
    pub(super) fn element_key<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        let without_chain = key.get(CHAIN_ID_LEN..).filter(|_| self.has_chain_sets());
        without_chain.unwrap_or(key)
    }

    /// The sets that hold an entry with this key, each with the key of the element. The set with
    /// all elements comes first.
    pub(super) fn sets_for<'k>(
        &self,
        key: &'k [u8],
    ) -> impl Iterator<Item = (Cow<'static, str>, &'k [u8])> + use<'k> {
        let element_key = self.element_key(key);
        let single = self.has_single_set().then_some((Cow::Borrowed(self.name), element_key));
        let chain = key.first_chunk::<CHAIN_ID_LEN>().filter(|_| self.has_chain_sets());
        let part = chain.map(|chain| self.part(ChainId::from_be_bytes(*chain)));
        single.into_iter().chain(part.map(|part| (Cow::Owned(part), element_key)))
    }

    pub(super) fn elements_for(&self, key: &[u8]) -> Vec<ElementRef> {
        self.sets_for(key).map(|(set, key)| ElementRef { set, key: key.to_vec() }).collect()
    }
}

/// Identifies one element in the table of its feature.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ElementRef {
    pub set: Cow<'static, str>,
    pub key: Vec<u8>,
}

/// A desired element. With per-chain sets, the key starts with the chain ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub map: &'static Map,
    pub key: Vec<u8>,
    pub data: Option<Data>,
}

/// Joins the fields of a key or value; each field is padded to whole registers of four bytes.
pub(crate) fn key(parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::new();
    for part in parts {
        key.extend_from_slice(part);
        key.resize(key.len().next_multiple_of(4), 0);
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINGLE: Map = Map {
        number: 1,
        table: super::super::TABLE,
        name: "addresses",
        key: &[DataType::Ipv4Addr],
        data: MapTo::Nothing,
        conflict: ConflictPolicy::LastWins,
        placement: Placement::Single,
        comment: "",
    };
    const PER_CHAIN: Map = Map { placement: Placement::PerChain, ..SINGLE };
    const BOTH: Map = Map { placement: Placement::PerChainAndSingle, ..SINGLE };

    #[test]
    fn elements_for_lists_every_set() {
        let check = |map: &Map, key: &[u8], sets: &[&str]| {
            assert_eq!(map.key_len(), key.len());
            let elements = map.elements_for(key);
            assert!(elements.iter().all(|element| element.key == [10, 1, 0, 2]), "{elements:?}");
            let found: Vec<&str> = elements.iter().map(|element| &*element.set).collect();
            assert_eq!(found, sets);
        };
        check(&SINGLE, &[10, 1, 0, 2], &["addresses"]);
        check(&PER_CHAIN, &[0, 0, 0xab, 1, 10, 1, 0, 2], &["addresses-0000ab01"]);
        check(&BOTH, &[0, 0, 0xab, 1, 10, 1, 0, 2], &["addresses", "addresses-0000ab01"]);
    }

    #[test]
    fn chain_of_reads_the_name_of_a_part() {
        assert_eq!(PER_CHAIN.chain_of(&PER_CHAIN.part(0xab01)), Some(0xab01));
        assert_eq!(PER_CHAIN.chain_of("addresses"), None);
        assert_eq!(PER_CHAIN.chain_of("addresses_more-0000ab01"), None);
        assert_eq!(SINGLE.chain_of("addresses-0000ab01"), None);
    }
}
