// SPDX-License-Identifier: Apache-2.0
//! Maps and sets, and their elements.

use std::borrow::Cow;

use kernel::nft::{Data, DataType, MapTo, Set, Table};

/// A map or set of a feature.
#[derive(Debug, PartialEq, Eq)]
pub struct Map {
    /// Its number in an attachment's list of elements; different within a feature, and never changes.
    pub number: u8,
    /// The table that it is in.
    pub table: Table<'static>,
    /// Its name.
    pub name: &'static str,
    /// The parts of a key.
    pub key: &'static [DataType],
    /// The parts of a value.
    pub data: MapTo<'static>,
    /// Whose an element is that two ask for.
    pub claim: Claim,
    /// Where its elements are.
    pub spread: Spread,
    /// For people.
    pub comment: &'static str,
}

/// Where the elements of a map are. A map whose elements name chains would be the plain way to tell which
/// of several chains a packet is for, but for each element that is added to one the kernel goes through
/// all that are there. So every chain has a set of its own, and a rule that leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// In one set.
    Whole,
    /// In parts, a set for each chain that looks at them. The key of an entry begins with the chain's number
    /// ([`Number`]), with which the name of the set ends.
    Parts,
    /// In parts, and all of them in one set more: there is no key in two parts then, and one look tells
    /// whether it is in any.
    PartsAndWhole,
}

/// The number of a chain that has parts of maps.
pub type Number = u32;

const NUMBER_LEN: usize = size_of::<Number>();

/// Whose an element is that two ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It follows from an address: whoever was given the address last has it.
    Last,
    /// It follows from an element of another map, with whose key its own begins: who loses that one loses
    /// this one as well.
    With(&'static Map),
    /// Whoever came first has it, as long as its container lives.
    First,
    /// The same, but several may ask for an element with this value, and the first has it for all of
    /// them. No rule looks at it: it is in the way of what would overlap in other maps.
    Guard(&'static [u8]),
}

impl Map {
    /// Whether a container that lives keeps its elements.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self.claim, Claim::First | Claim::Guard(_))
    }

    /// Whether its elements are there for others to run into only.
    pub(super) fn is_guard(&self) -> bool {
        matches!(self.claim, Claim::Guard(_))
    }

    /// Whether the one that has the element has it for this one as well.
    pub(super) fn is_shared(&self, found: &[u8], wanted: &Entry) -> bool {
        let Claim::Guard(shared) = self.claim else { return false };
        found == shared && wanted.data == Some(Data::Value(shared.to_vec()))
    }

    /// Length of an entry's key in bytes.
    pub fn key_len(&self) -> usize {
        let len = match self.key {
            [one] => one.size(),
            several => several.iter().map(|part| part.size().next_multiple_of(4)).sum(),
        };
        if self.is_in_parts() { NUMBER_LEN + len } else { len }
    }

    /// Whether chains have parts of it.
    pub(super) fn is_in_parts(&self) -> bool {
        self.spread != Spread::Whole
    }

    /// Whether there is a set with all elements.
    pub(super) fn has_whole(&self) -> bool {
        self.spread != Spread::Parts
    }

    /// The name of a chain's part.
    pub fn part(&self, number: Number) -> String {
        format!("{}-{number:08x}", self.name)
    }

    /// The number in the name of a part.
    pub(super) fn number_of(&self, set: &str) -> Option<Number> {
        let digits = set.strip_prefix(self.name)?.strip_prefix('-')?;
        if self.is_in_parts() { Number::from_str_radix(digits, 16).ok() } else { None }
    }

    /// One of its sets, as it is made.
    pub(super) fn set<'a>(&self, name: &'a str, comment: &'a str) -> Set<'a> {
        Set { table: self.table, name, key: self.key, data: self.data, is_interval: false, comment }
    }

    /// The key of the elements that an entry with this key is.
    pub(super) fn own_key<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        let without_number = key.get(NUMBER_LEN..).filter(|_| self.is_in_parts());
        without_number.unwrap_or(key)
    }

    /// The sets that an entry with this key is in, each with the key of the element; the one with all
    /// elements comes first.
    pub(super) fn homes<'k>(
        &self,
        key: &'k [u8],
    ) -> impl Iterator<Item = (Cow<'static, str>, &'k [u8])> + use<'k> {
        let own = self.own_key(key);
        let whole = self.has_whole().then_some((Cow::Borrowed(self.name), own));
        let number = key.first_chunk::<NUMBER_LEN>().filter(|_| self.is_in_parts());
        let part = number.map(|number| self.part(Number::from_be_bytes(*number)));
        whole.into_iter().chain(part.map(|part| (Cow::Owned(part), own)))
    }

    /// The same as places of their own.
    pub(super) fn spots(&self, key: &[u8]) -> Vec<Spot> {
        self.homes(key).map(|(set, key)| Spot { set, key: key.to_vec() }).collect()
    }
}

/// The place of one element in the table of its feature.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spot {
    /// The set.
    pub set: Cow<'static, str>,
    /// The element's key.
    pub key: Vec<u8>,
}

/// An element to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where.
    pub map: &'static Map,
    /// By what it is found; in a map that is in parts, behind the part's number.
    pub key: Vec<u8>,
    /// What is found.
    pub data: Option<Data>,
}

/// A key or value of several parts: each fills whole registers of four bytes.
pub fn key(parts: &[&[u8]]) -> Vec<u8> {
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

    const WHOLE: Map = Map {
        number: 1,
        table: super::super::TABLE,
        name: "addresses",
        key: &[DataType::Ipv4Addr],
        data: MapTo::Nothing,
        claim: Claim::Last,
        spread: Spread::Whole,
        comment: "",
    };
    const PARTS: Map = Map { spread: Spread::Parts, ..WHOLE };
    const BOTH: Map = Map { spread: Spread::PartsAndWhole, ..WHOLE };

    #[test]
    fn an_entry_is_an_element_of_each_of_its_sets() {
        let check = |map: &Map, key: &[u8], sets: &[&str]| {
            assert_eq!(map.key_len(), key.len());
            let spots = map.spots(key);
            assert!(spots.iter().all(|spot| spot.key == [10, 1, 0, 2]), "{spots:?}");
            let found: Vec<&str> = spots.iter().map(|spot| &*spot.set).collect();
            assert_eq!(found, sets);
        };
        check(&WHOLE, &[10, 1, 0, 2], &["addresses"]);
        check(&PARTS, &[0, 0, 0xab, 1, 10, 1, 0, 2], &["addresses-0000ab01"]);
        check(&BOTH, &[0, 0, 0xab, 1, 10, 1, 0, 2], &["addresses", "addresses-0000ab01"]);
    }

    #[test]
    fn parts_are_known_by_their_names() {
        assert_eq!(PARTS.number_of(&PARTS.part(0xab01)), Some(0xab01));
        assert_eq!(PARTS.number_of("addresses"), None);
        assert_eq!(PARTS.number_of("addresses_more-0000ab01"), None);
        assert_eq!(WHOLE.number_of("addresses-0000ab01"), None);
    }
}
