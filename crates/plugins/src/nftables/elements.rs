// SPDX-License-Identifier: Apache-2.0
//! Adding, removing, checking and garbage-collecting the elements of a feature. Adding is one batch
//! that reads nothing first. Only a conflict and a removal read elements, and then the namespace's
//! lock keeps other plugin processes from changing what was read.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use cni::Attachment;
use kernel::nft::{Batch, Data, Element, Nft, ObservedElement, Table, Userdata};

use super::element::{ChainId, ConflictPolicy, ElementRef, Entry, Map};
use super::error::{Conflict, ElementError};
use super::index::{self, IndexEntry, OWNED};
use super::lock;
use super::owner::{Digest, Owner, Tag};
use super::schema::{self, DesiredChain, Feature, MAX_ATTEMPTS};

/// Maximum number of elements that GC removes in one batch.
const GC_BATCH: usize = 500;

/// The elements of one feature.
#[derive(Debug)]
pub(crate) struct ElementStore {
    nft: Nft,
    feature: &'static Feature,
}

impl ElementStore {
    /// Opens a socket in the calling thread's namespace.
    pub(crate) fn open(feature: &'static Feature) -> kernel::Result<Self> {
        Ok(Self { nft: Nft::open()?, feature })
    }

    /// Switches to another feature and keeps the socket.
    pub(crate) fn select_feature(&mut self, feature: &'static Feature) {
        self.feature = feature;
    }

    pub(crate) fn feature(&self) -> &'static Feature {
        self.feature
    }

    /// The socket, for operations on other objects than elements.
    pub(crate) fn nft(&self) -> &Nft {
        &self.nft
    }

    /// Adds all elements of an attachment, or none. Elements that an earlier attempt for the same
    /// attachment left are replaced. `chains` use the elements and are created if they are missing.
    pub(crate) fn add(
        &mut self,
        owner: &Owner,
        entries: &[Entry],
        chains: &[DesiredChain],
    ) -> Result<(), ElementError> {
        let addition = Addition::new(self.feature, owner, entries)?;
        let mut batch = Batch::new();
        addition.write(&mut batch);
        for attempt in 0..MAX_ATTEMPTS {
            match self.nft.commit(&batch) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_not_found() => {
                    if attempt > 0 {
                        let _lock = lock()?;
                        schema::repair(&self.nft, self.feature, chains)?;
                    }
                    schema::create_missing(&self.nft, self.feature, chains)?;
                }
                Err(error) if error.already_exists() => {
                    let _lock = lock()?;
                    let conflicts = self.find_conflicts(owner, entries)?;
                    batch = Batch::new();
                    let elements: Vec<ElementRef> = conflicts.elements.into_iter().collect();
                    self.write_removal(&mut batch, &conflicts.pages, &elements);
                    Addition::new(self.feature, owner, &conflicts.to_add)?.write(&mut batch);
                    match self.nft.commit(&batch) {
                        Err(error) if error.already_exists() => {}
                        Err(error) if error.is_not_found() => {
                            schema::create_missing(&self.nft, self.feature, chains)?;
                        }
                        other => return Ok(other?),
                    }
                    batch = Batch::new();
                    addition.write(&mut batch);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let what = "table podwire was changed by other programs during every attempt";
        Err(ElementError::Mismatch(what.to_owned()))
    }

    /// Removes the elements of an attachment and returns them. Elements that another attachment has
    /// claimed since are kept.
    pub(crate) fn remove(
        &mut self,
        network: &str,
        attachment: &Attachment,
    ) -> kernel::Result<Vec<IndexEntry>> {
        let digest = Digest::of(network, attachment);
        if self.page(digest, 0)?.is_none() {
            return Ok(Vec::new());
        }
        let _lock = lock()?;
        let (pages, mut listed) = self.read_index(digest)?;
        let (mut elements, mut removed) = (Vec::new(), Vec::new());
        for entry in listed.drain(..) {
            let all = self.elements_of(&entry);
            // The elements of one entry are added and removed together: checking the first is
            // enough.
            let is_owned = all.first().map_or(Ok(false), |first| self.is_owned(first, digest))?;
            let owned = if is_owned { all } else { self.only_owned(all, digest)? };
            if !owned.is_empty() {
                elements.extend(owned);
                removed.push(entry);
            }
        }
        match self.commit_removal(&pages, &elements) {
            Err(error) if error.is_not_found() => {
                self.commit_removal(&pages, &self.only_owned(elements, digest)?)?;
            }
            other => other?,
        }
        Ok(removed)
    }

    /// CHECK: the attachment's elements exist, and so do the chains and rules that use them.
    pub(crate) fn check(
        &self,
        owner: &Owner,
        entries: &[Entry],
        chains: &[DesiredChain],
    ) -> Result<(), ElementError> {
        schema::check_chains(&self.nft, self.feature, &(self.feature.chains)())?;
        schema::check_chains(&self.nft, self.feature, chains)?;
        let used = entries.iter().filter(|entry| !entry.map.is_guard());
        let elements = used.flat_map(|entry| {
            entry.map.sets_for(&entry.key).map(move |(set, key)| (entry, set, key))
        });
        for (entry, map, key) in elements {
            let Some(found) = self.nft.element(self.feature.table, &map, key)? else {
                return Err(ElementError::Mismatch(format!(
                    "map {map:?} has no element for {owner}"
                )));
            };
            let tag = Tag::read(&found.userdata);
            if tag.as_ref().is_none_or(|tag| tag.digest != owner.digest()) {
                return Err(ElementError::Mismatch(format!(
                    "the element of {owner} in map {map:?} belongs to {}",
                    holder(tag)
                )));
            }
            if !has_same_data(entry, &found) {
                let what = format!("map {map:?} has other data for {owner}");
                return Err(ElementError::Mismatch(what));
            }
        }
        Ok(())
    }

    /// Removes the elements of all attachments of a network except these, and returns them. Missing
    /// rules are re-created for the attachments that remain.
    pub(crate) fn gc(
        &mut self,
        network: &str,
        valid: &[Attachment],
    ) -> kernel::Result<Vec<IndexEntry>> {
        let valid: HashSet<Digest> = valid.iter().map(|one| Digest::of(network, one)).collect();
        let is_stale = |digest: &Digest| digest.is_of_network(network) && !valid.contains(digest);
        let _lock = lock()?;
        schema::repair_rules(&self.nft, self.feature)?;
        let mut pages = Vec::new();
        for found in self.nft.elements(OWNED.table, OWNED.name)? {
            let Some((digest, feature)) = index::read_page_key(&found.key) else { continue };
            if feature == self.feature.number && is_stale(&digest) {
                pages.push(found.key);
            }
        }
        let (elements, removed) = self.tagged(is_stale)?;
        for chunk in elements.chunks(GC_BATCH) {
            self.commit_removal(&[], chunk)?;
        }
        for chunk in pages.chunks(GC_BATCH) {
            self.commit_removal(chunk, &[])?;
        }
        Ok(removed)
    }

    /// The feature's elements whose tag matches, also as entries of the index. Reads the elements
    /// themselves, so that an element whose index page is lost is found too.
    fn tagged(
        &self,
        is_match: impl Fn(&Digest) -> bool,
    ) -> kernel::Result<(Vec<ElementRef>, Vec<IndexEntry>)> {
        let table = self.feature.table;
        let present = self.nft.sets(table)?;
        let (mut elements, mut entries) = (Vec::new(), Vec::new());
        for map in self.feature.maps {
            for set in &present {
                let chain = map.chain_of(set);
                if set != map.name && chain.is_none() {
                    continue;
                }
                for found in self.nft.elements(table, set)? {
                    if Tag::read(&found.userdata).is_none_or(|tag| !is_match(&tag.digest)) {
                        continue;
                    }
                    // If there are per-chain sets, the single set repeats their elements.
                    if chain.is_some() || !map.has_chain_sets() {
                        let chain = chain.map(ChainId::to_be_bytes).into_iter().flatten();
                        let key = chain.chain(found.key.iter().copied()).collect();
                        entries.push(IndexEntry { map: map.number, key });
                    }
                    elements.push(ElementRef { set: set.clone().into(), key: found.key });
                }
            }
        }
        Ok((elements, entries))
    }

    /// Finds the elements that must be removed before the entries can be added. These are the
    /// owner's elements, all elements of a container that is gone and holds a requested element,
    /// and the elements that follow from an address which the owner has now.
    fn find_conflicts(&self, owner: &Owner, entries: &[Entry]) -> Result<Conflicts, ElementError> {
        let mut conflicts = Conflicts::default();
        self.claim_all(owner.digest(), &mut conflicts)?;
        for entry in entries {
            let mut is_shared = false;
            for element in entry.map.elements_for(&entry.key) {
                let found = self.find(&element)?;
                let tag = found.as_ref().map(|found| Tag::read(&found.userdata));
                match (found, tag.flatten()) {
                    (None, _) => {}
                    (Some(_), Some(tag)) if tag.digest == owner.digest() => {
                        conflicts.elements.insert(element);
                    }
                    (Some(_), Some(tag)) if entry.map.is_first_wins() && tag.is_gone(owner) => {
                        conflicts.elements.insert(element);
                        self.claim_all(tag.digest, &mut conflicts)?;
                    }
                    (Some(found), _) if entry.map.is_shared(&found.data, entry) => is_shared = true,
                    (Some(_), tag) if entry.map.is_first_wins() => {
                        let (entry, holder) = (entry.clone(), holder(tag));
                        return Err(ElementError::Conflict(Conflict { entry, holder }));
                    }
                    (Some(_), tag) => {
                        conflicts.elements.insert(element);
                        if let Some(tag) = tag {
                            self.claim_derived(tag.digest, entry, &mut conflicts)?;
                        }
                    }
                }
            }
            if !is_shared {
                conflicts.to_add.push(entry.clone());
            }
        }
        Ok(conflicts)
    }

    /// Adds everything that an attachment has to the elements that must be removed.
    fn claim_all(&self, digest: Digest, conflicts: &mut Conflicts) -> kernel::Result<()> {
        if !conflicts.owners.insert(digest) {
            return Ok(());
        }
        let (pages, listed) = self.read_index(digest)?;
        let elements = listed.iter().flat_map(|entry| self.elements_of(entry)).collect();
        conflicts.elements.extend(self.only_owned(elements, digest)?);
        conflicts.pages.extend(pages);
        Ok(())
    }

    /// Adds the elements that an attachment loses together with an entry: the same key in another
    /// per-chain set of the map, and the elements that follow from the entry.
    fn claim_derived(
        &self,
        digest: Digest,
        entry: &Entry,
        conflicts: &mut Conflicts,
    ) -> kernel::Result<()> {
        let element_key = entry.map.element_key(&entry.key);
        let is_lost = |other: &IndexEntry| match self.map(other.map) {
            Some(map) if map == entry.map => map.element_key(&other.key) == element_key,
            Some(map) => {
                map.conflict == ConflictPolicy::FollowsParent(entry.map)
                    && other.key.starts_with(element_key)
            }
            None => false,
        };
        let (_, listed) = self.read_index(digest)?;
        let lost = listed.iter().filter(|other| is_lost(other));
        let elements = lost.flat_map(|other| self.elements_of(other)).collect();
        conflicts.elements.extend(self.only_owned(elements, digest)?);
        Ok(())
    }

    fn page(&self, digest: Digest, page: u16) -> kernel::Result<Option<ObservedElement>> {
        let key = index::page_key(digest, self.feature.number, page);
        self.nft.element(OWNED.table, OWNED.name, &key)
    }

    /// The keys of an attachment's index pages, and the entries that the pages list.
    fn read_index(&self, digest: Digest) -> kernel::Result<(Vec<Vec<u8>>, Vec<IndexEntry>)> {
        let (mut pages, mut entries) = (Vec::new(), Vec::new());
        for number in 0..index::MAX_PAGES {
            let Some(page) = self.page(digest, number)? else { break };
            entries.extend(index::read(&page.userdata.bytes, self.feature.maps));
            pages.push(page.key);
        }
        Ok((pages, entries))
    }

    fn map(&self, number: u8) -> Option<&'static Map> {
        self.feature.maps.iter().copied().find(|map| map.number == number)
    }

    fn elements_of(&self, entry: &IndexEntry) -> Vec<ElementRef> {
        self.map(entry.map).map_or(Vec::new(), |map| map.elements_for(&entry.key))
    }

    fn find(&self, element: &ElementRef) -> kernel::Result<Option<ObservedElement>> {
        self.nft.element(self.feature.table, &element.set, &element.key)
    }

    fn is_owned(&self, element: &ElementRef, digest: Digest) -> kernel::Result<bool> {
        let tag = self.find(element)?.and_then(|found| Tag::read(&found.userdata));
        Ok(tag.is_some_and(|tag| tag.digest == digest))
    }

    fn only_owned(
        &self,
        elements: Vec<ElementRef>,
        digest: Digest,
    ) -> kernel::Result<Vec<ElementRef>> {
        let mut owned = Vec::new();
        for element in elements {
            if self.is_owned(&element, digest)? {
                owned.push(element);
            }
        }
        Ok(owned)
    }

    fn commit_removal(&self, pages: &[Vec<u8>], elements: &[ElementRef]) -> kernel::Result<()> {
        let mut batch = Batch::new();
        self.write_removal(&mut batch, pages, elements);
        self.nft.commit(&batch)
    }

    fn write_removal(&self, batch: &mut Batch, pages: &[Vec<u8>], elements: &[ElementRef]) {
        let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
        remove_keys(batch, OWNED.table, OWNED.name, &pages);
        let mut sets: BTreeMap<&str, Vec<&[u8]>> = BTreeMap::new();
        for ElementRef { set, key } in elements {
            sets.entry(set).or_default().push(key);
        }
        for (set, keys) in sets {
            remove_keys(batch, self.feature.table, set, &keys);
        }
    }
}

/// Elements to remove before an addition, and the entries that are then left to add.
#[derive(Default)]
struct Conflicts {
    /// Attachments that lose everything.
    owners: HashSet<Digest>,
    /// Keys of their index pages.
    pages: Vec<Vec<u8>>,
    elements: HashSet<ElementRef>,
    to_add: Vec<Entry>,
}

/// The elements of an attachment together with the index pages that list them.
struct Addition<'a> {
    feature: &'static Feature,
    entries: &'a [Entry],
    tag: Userdata,
    pages: Vec<(Vec<u8>, Userdata)>,
}

impl<'a> Addition<'a> {
    fn new(
        feature: &'static Feature,
        owner: &Owner,
        entries: &'a [Entry],
    ) -> Result<Self, ElementError> {
        let pages = index::write(entries, &owner.to_string());
        if pages.len() > usize::from(index::MAX_PAGES) {
            return Err(ElementError::TooMany(entries.len()));
        }
        let numbered = (0..index::MAX_PAGES).zip(pages);
        let key = |page| index::page_key(owner.digest(), feature.number, page);
        let pages = numbered.map(|(page, userdata)| (key(page), userdata)).collect();
        Ok(Self { feature, entries, tag: owner.tag(), pages })
    }

    fn write(&self, batch: &mut Batch) {
        let pages = self.pages.iter();
        let pages: Vec<Element<'_>> = pages
            .map(|(key, userdata)| Element { key, data: None, userdata: Some(userdata) })
            .collect();
        batch.create_elements(OWNED.table, OWNED.name, &pages);
        let mut sets: BTreeMap<Cow<'static, str>, Vec<Element<'_>>> = BTreeMap::new();
        for entry in self.entries {
            for (set, key) in entry.map.sets_for(&entry.key) {
                let (data, userdata) = (entry.data.as_ref(), Some(&self.tag));
                sets.entry(set).or_default().push(Element { key, data, userdata });
            }
        }
        for (set, elements) in sets {
            batch.create_elements(self.feature.table, &set, &elements);
        }
    }
}

fn remove_keys(batch: &mut Batch, table: Table<'_>, set: &str, keys: &[&[u8]]) {
    let element = |key| Element { key, data: None, userdata: None };
    let elements: Vec<Element<'_>> = keys.iter().copied().map(element).collect();
    batch.remove_elements(table, set, &elements);
}

fn has_same_data(entry: &Entry, found: &ObservedElement) -> bool {
    entry.data.as_ref().is_none_or(|data| *data == Data::Value(found.data.clone()))
}

fn holder(tag: Option<Tag>) -> String {
    tag.map_or("another program".to_owned(), |tag| tag.shown)
}
