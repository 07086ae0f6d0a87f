// SPDX-License-Identifier: Apache-2.0
//! The addresses that are assigned on this node, as the journal has them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::node::messages::JournalEntry;

#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: BTreeMap<IpAddr, JournalEntry>,
    by_handle: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl Table {
    pub(crate) fn insert(&mut self, entry: JournalEntry) {
        let addresses = self.by_handle.entry(entry.attachment.handle.clone()).or_default();
        addresses.insert(entry.address);
        self.entries.insert(entry.address, entry);
    }

    pub(crate) fn remove(&mut self, address: IpAddr) -> Option<JournalEntry> {
        let entry = self.entries.remove(&address)?;
        let handle = &entry.attachment.handle;
        if let Some(addresses) = self.by_handle.get_mut(handle) {
            addresses.remove(&address);
            if addresses.is_empty() {
                self.by_handle.remove(handle);
            }
        }
        Some(entry)
    }

    pub(crate) fn get(&self, address: IpAddr) -> Option<&JournalEntry> {
        self.entries.get(&address)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &JournalEntry> {
        self.entries.values()
    }

    /// Returns the entries of a handle, or only those of one interface.
    pub(crate) fn of<'a>(
        &'a self,
        handle: &str,
        interface: Option<&'a str>,
    ) -> impl Iterator<Item = &'a JournalEntry> {
        let addresses = self.by_handle.get(handle).into_iter().flatten();
        let entries = addresses.filter_map(|address| self.entries.get(address));
        entries.filter(move |entry| {
            interface.is_none_or(|interface| entry.attachment.interface == interface)
        })
    }

    /// Returns the number of addresses of a handle in each block.
    pub(crate) fn counts(&self, handle: &str) -> BTreeMap<IpNet, u32> {
        let mut counts = BTreeMap::new();
        for entry in self.of(handle, None) {
            *counts.entry(entry.block).or_default() += 1;
        }
        counts
    }
}
