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
    /// An element belongs to whoever came first, as long as its container lives. Otherwise it follows
    /// from an address, and whoever was given the address last has it.
    pub first_come: bool,
    /// For people.
    pub comment: &'static str,
}

impl Map {
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
