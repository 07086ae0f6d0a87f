// SPDX-License-Identifier: Apache-2.0
//! The index of elements by attachment, stored in the set `owned`. The key of an index element (a
//! page) is derived from the attachment; its user data lists the keys of the attachment's elements.
//! Pure functions.

use kernel::nft::{DataType, MapTo, Userdata};

use super::element::{ConflictPolicy, Entry, Map, Placement};
use super::owner::Digest;
use super::{TABLE, element};

/// One page for each attachment and feature, or several if the list is long.
pub(super) const OWNED: Map = Map {
    number: 0,
    table: TABLE,
    name: "owned",
    key: &[DataType::Ipv6Addr, DataType::InetService],
    data: MapTo::Nothing,
    conflict: ConflictPolicy::LastWins,
    placement: Placement::Single,
    comment: "attachment . feature and page: index of elements by owner",
};

/// Maximum size of a page: the kernel's limit for user data, minus a reserve for its headers.
const PAGE_LEN: usize = 250;

/// Feature and page number share two bytes, see [`page_key`].
pub(super) const MAX_PAGES: u16 = 1 << 12;

/// One entry of the index: a map of the feature and the key of an [`Entry`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct IndexEntry {
    pub map: u8,
    pub key: Vec<u8>,
}

/// The key of a page: the digest, then 16 bits. These are the upper four bits of the page number,
/// four bits of the feature, and the lower eight bits of the page number.
pub(super) fn page_key(digest: Digest, feature: u8, page: u16) -> Vec<u8> {
    let [upper, lower] = page.to_be_bytes();
    element::key(&[&digest.0, &[upper << 4 | feature, lower]])
}

/// Returns the attachment and the feature of a page's key.
pub(super) fn read_page_key(key: &[u8]) -> Option<(Digest, u8)> {
    let (digest, rest) = key.split_first_chunk()?;
    Some((Digest(*digest), rest.first()? & 0xf))
}

/// Returns the user data of the pages that list these entries.
pub(super) fn write(entries: &[Entry], comment: &str) -> Vec<Userdata> {
    let mut pages = vec![Vec::new()];
    for entry in entries {
        let len = 1 + entry.key.len();
        if pages.last().is_some_and(|page| page.len() + len > PAGE_LEN) {
            pages.push(Vec::new());
        }
        if let Some(page) = pages.last_mut() {
            page.push(entry.map.number);
            page.extend_from_slice(&entry.key);
        }
    }
    let userdata = |bytes| Userdata { comment: comment.to_owned(), bytes };
    pages.into_iter().map(userdata).collect()
}

/// Returns the entries of a page, up to the first one that cannot be read.
pub(super) fn read(mut page: &[u8], maps: &[&Map]) -> Vec<IndexEntry> {
    let mut entries = Vec::new();
    while let Some((number, rest)) = page.split_first() {
        let Some(map) = maps.iter().find(|map| map.number == *number) else { break };
        let Some((key, rest)) = rest.split_at_checked(map.key_len()) else { break };
        entries.push(IndexEntry { map: *number, key: key.to_vec() });
        page = rest;
    }
    entries
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PORTS: Map = Map {
        number: 3,
        key: &[DataType::InetProto, DataType::InetService],
        name: "ports",
        ..OWNED
    };

    fn entry(port: u16) -> Entry {
        let key = element::key(&[&[6], &port.to_be_bytes()]);
        Entry { map: &PORTS, key, data: None }
    }

    proptest! {
        #[test]
        fn written_entries_are_read_back(ports in prop::collection::vec(any::<u16>(), 0..200)) {
            let entries: Vec<Entry> = ports.iter().map(|port| entry(*port)).collect();
            let pages = write(&entries, "c1/eth0 net");
            prop_assert!(pages.iter().all(|page| page.bytes.len() <= PAGE_LEN));
            let found: Vec<IndexEntry> =
                pages.iter().flat_map(|page| read(&page.bytes, &[&OWNED, &PORTS])).collect();
            let expected: Vec<IndexEntry> =
                entries.into_iter().map(|entry| IndexEntry { map: 3, key: entry.key }).collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn page_keys_are_unique(feature in 1..16_u8, page in 0..MAX_PAGES, other in 0..MAX_PAGES) {
            let digest = Digest([7; 16]);
            let key = page_key(digest, feature, page);
            prop_assert_eq!(read_page_key(&key), Some((digest, feature)));
            prop_assert_eq!(key == page_key(digest, feature, other), page == other);
        }

        #[test]
        fn reading_never_panics(page: Vec<u8>) {
            let _ = read(&page, &[&PORTS]);
            let _ = read_page_key(&page);
        }
    }
}
