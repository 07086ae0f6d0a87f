// SPDX-License-Identifier: Apache-2.0
//! The list of an attachment's elements, kept in elements of the set `owned`: their keys follow from the
//! attachment, and what is attached to them holds the keys of the others. Pure.

use kernel::nft::{DataType, MapTo, Userdata};

use super::map::{Claim, Entry, Map, Spread};
use super::owner::Digest;
use super::{TABLE, map};

/// One element for each attachment and feature; several where its list is long.
pub const OWNED: Map = Map {
    number: 0,
    table: TABLE,
    name: "owned",
    key: &[DataType::Ipv6Addr, DataType::InetService],
    data: MapTo::Nothing,
    claim: Claim::Last,
    spread: Spread::Whole,
    comment: "attachment . feature and page: whose elements are where",
};

/// What the kernel lets us attach to one element, less a length that nobody needs.
const PAGE: usize = 250;

/// Feature and page share two bytes, see [`page_key`].
pub const MAX_PAGES: u16 = 1 << 12;

/// The place of an element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Located {
    pub map: u8,
    pub key: Vec<u8>,
}

/// The key of a page. Four bits are the feature's and twelve the page's, the upper ones of it in front.
pub fn page_key(digest: Digest, feature: u8, page: u16) -> Vec<u8> {
    let [upper, lower] = page.to_be_bytes();
    map::key(&[&digest.0, &[upper << 4 | feature, lower]])
}

/// Attachment and feature of a page's key.
pub fn read_page_key(key: &[u8]) -> Option<(Digest, u8)> {
    let (digest, rest) = key.split_first_chunk()?;
    Some((Digest(*digest), rest.first()? & 0xf))
}

/// What to attach to the pages that list these entries.
pub fn write(entries: &[Entry], comment: &str) -> Vec<Userdata> {
    let mut pages = vec![Vec::new()];
    for entry in entries {
        let len = 1 + entry.key.len();
        if pages.last().is_some_and(|page| page.len() + len > PAGE) {
            pages.push(Vec::new());
        }
        if let Some(page) = pages.last_mut() {
            page.push(entry.map.number);
            page.extend_from_slice(&entry.key);
        }
    }
    let attach = |bytes| Userdata { comment: comment.to_owned(), bytes };
    pages.into_iter().map(attach).collect()
}

/// The places that a page lists; what cannot be read ends it.
pub fn read(mut page: &[u8], maps: &[&Map]) -> Vec<Located> {
    let mut places = Vec::new();
    while let Some((number, rest)) = page.split_first() {
        let Some(map) = maps.iter().find(|map| map.number == *number) else { break };
        let Some((key, rest)) = rest.split_at_checked(map.key_len()) else { break };
        places.push(Located { map: *number, key: key.to_vec() });
        page = rest;
    }
    places
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
        let key = map::key(&[&[6], &port.to_be_bytes()]);
        Entry { map: &PORTS, key, data: None }
    }

    proptest! {
        #[test]
        fn every_entry_is_found_again(ports in prop::collection::vec(any::<u16>(), 0..200)) {
            let entries: Vec<Entry> = ports.iter().map(|port| entry(*port)).collect();
            let pages = write(&entries, "c1/eth0 net");
            prop_assert!(pages.iter().all(|page| page.bytes.len() <= PAGE));
            let found: Vec<Located> =
                pages.iter().flat_map(|page| read(&page.bytes, &[&OWNED, &PORTS])).collect();
            let wanted: Vec<Located> =
                entries.into_iter().map(|entry| Located { map: 3, key: entry.key }).collect();
            prop_assert_eq!(found, wanted);
        }

        #[test]
        fn pages_have_keys_of_their_own(feature in 1..16_u8, page in 0..MAX_PAGES, other in 0..MAX_PAGES) {
            let digest = Digest([7; 16]);
            let key = page_key(digest, feature, page);
            prop_assert_eq!(read_page_key(&key), Some((digest, feature)));
            prop_assert_eq!(key == page_key(digest, feature, other), page == other);
        }

        #[test]
        fn any_bytes_are_read(page: Vec<u8>) {
            let _ = read(&page, &[&PORTS]);
            let _ = read_page_key(&page);
        }
    }
}
