// SPDX-License-Identifier: Apache-2.0
//! Maps and sets, and their elements.

use kernel::nft::{Data, DataType, MapTo, Table};

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
    /// For people.
    pub comment: &'static str,
}

/// Whose an element is that two ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It follows from an address: whoever was given the address last has it.
    Last,
    /// Whoever came first has it, as long as its container lives.
    First,
    /// The same, but several may ask for an element with this value, and the first has it for all of
    /// them. No rule looks at it: it is in the way of what would overlap in other maps.
    Guard(&'static [u8]),
}

impl Map {
    /// Whether a container that lives keeps its elements.
    pub(super) fn is_kept(&self) -> bool {
        self.claim != Claim::Last
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

    /// Length of a key in bytes.
    pub fn key_len(&self) -> usize {
        match self.key {
            [one] => one.size(),
            several => several.iter().map(|part| part.size().next_multiple_of(4)).sum(),
        }
    }
}

/// An element to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where.
    pub map: &'static Map,
    /// By what it is found.
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
