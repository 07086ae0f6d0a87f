// SPDX-License-Identifier: Apache-2.0
//! Adding, removing and checking the elements of a feature. Adding is one batch that reads nothing
//! before; only where an element is in the way, and in removals, is there a look first, and then the
//! namespace's lock keeps others from changing what was seen.

use std::collections::HashSet;

use cni::Attachment;
use kernel::Netns;
use kernel::netns::Lock;
use kernel::nft::{Batch, Element, FoundElement, Nft, Table, Userdata};

use super::fault::{Conflict, Fault};
use super::index::{self, Located, OWNED};
use super::map::{Entry, Map};
use super::owner::{Digest, Owner, Tag};
use super::{Feature, WantedChain};

/// How often an ADD is tried again when others make and remove what it needs meanwhile.
const TRIES: usize = 10;
/// Elements that one batch of GC removes.
const AT_ONCE: usize = 500;

/// The elements of one feature.
#[derive(Debug)]
pub struct Ledger {
    pub(super) nft: Nft,
    pub(super) feature: &'static Feature,
}

impl Ledger {
    /// Opens it in the calling thread's namespace.
    pub fn open(feature: &'static Feature) -> kernel::Result<Self> {
        Ok(Self { nft: Nft::open()?, feature })
    }

    /// Goes on with another feature by the same socket.
    pub fn turn_to(&mut self, feature: &'static Feature) {
        self.feature = feature;
    }

    /// The socket, for what is not an element.
    pub fn nft(&self) -> &Nft {
        &self.nft
    }

    /// Adds an attachment's elements, all or none. What the same attachment left of an earlier try is
    /// replaced. `chains` are those that the elements jump to, made where they are missing.
    pub fn add(
        &mut self,
        owner: &Owner,
        entries: &[Entry],
        chains: &[WantedChain],
    ) -> Result<(), Fault> {
        let wanted = Wanted::new(self.feature, owner, entries)?;
        let mut batch = Batch::new();
        wanted.write(&mut batch);
        for attempt in 0..TRIES {
            match self.nft.commit(&batch) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_not_found() => {
                    if attempt > 0 {
                        let _lock = lock()?;
                        self.mend()?;
                    }
                    self.make(chains)?;
                }
                Err(error) if error.is_exists() => {
                    let _lock = lock()?;
                    let going = self.in_the_way(owner, entries)?;
                    batch = Batch::new();
                    let places: Vec<Located> = going.places.into_iter().collect();
                    self.write_removal(&mut batch, &going.pages, &places);
                    Wanted::new(self.feature, owner, &going.wanted)?.write(&mut batch);
                    match self.nft.commit(&batch) {
                        Err(error) if error.is_exists() || error.is_not_found() => {}
                        done => return Ok(done?),
                    }
                    batch = Batch::new();
                    wanted.write(&mut batch);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let what = "others changed the table podwire during every try";
        Err(Fault::Wrong(what.to_owned()))
    }

    /// Removes an attachment's elements, and tells which they were. Those that somebody else has
    /// taken over since are left alone.
    pub fn remove(
        &mut self,
        network: &str,
        attachment: &Attachment,
    ) -> kernel::Result<Vec<Located>> {
        let digest = Digest::of(network, attachment);
        if self.page(digest, 0)?.is_none() {
            return Ok(Vec::new());
        }
        let _lock = lock()?;
        let (pages, mut places) = self.listed(digest)?;
        let mut owned = Vec::new();
        for place in places.drain(..) {
            if self.tag(&place)?.is_some_and(|tag| tag.digest == digest) {
                owned.push(place);
            }
        }
        self.remove_places(&pages, &owned)?;
        Ok(owned)
    }

    /// Removes the elements of all attachments of a network but these, and tells which they were. Rules
    /// that somebody has removed are made again: they are for those that stay.
    pub fn gc(&mut self, network: &str, valid: &[Attachment]) -> kernel::Result<Vec<Located>> {
        let valid: HashSet<Digest> = valid.iter().map(|one| Digest::of(network, one)).collect();
        let is_stale = |digest: &Digest| digest.is_of_network(network) && !valid.contains(digest);
        let _lock = lock()?;
        self.mend_rules()?;
        let mut pages = Vec::new();
        for found in self.nft.elements(OWNED.table, OWNED.name)? {
            let Some((digest, feature)) = index::read_page_key(&found.key) else { continue };
            if feature == self.feature.number && is_stale(&digest) {
                pages.push(found.key);
            }
        }
        // Not by the lists: one whose list is lost goes as well.
        let mut owned = Vec::new();
        for map in self.feature.maps {
            for found in self.nft.elements(map.table, map.name)? {
                if Tag::read(&found.userdata).is_some_and(|tag| is_stale(&tag.digest)) {
                    owned.push(Located { map: map.number, key: found.key });
                }
            }
        }
        for some in owned.chunks(AT_ONCE) {
            self.remove_places(&[], some)?;
        }
        for some in pages.chunks(AT_ONCE) {
            self.remove_places(some, &[])?;
        }
        Ok(owned)
    }

    /// Whether an attachment's elements are there, with the rules that look at them and those of the
    /// chains that they jump to.
    pub fn check(
        &self,
        owner: &Owner,
        entries: &[Entry],
        chains: &[WantedChain],
    ) -> Result<(), Fault> {
        self.check_rules(&(self.feature.chains)())?;
        self.check_rules(chains)?;
        for entry in entries.iter().filter(|entry| !entry.map.is_guard()) {
            let (map, shown) = (entry.map.name, owner.to_string());
            let found = self.nft.element(entry.map.table, map, &entry.key)?;
            let Some(found) = found else {
                return Err(Fault::Wrong(format!("map {map:?} has no element for {shown}")));
            };
            let tag = Tag::read(&found.userdata);
            if tag.as_ref().is_none_or(|tag| tag.digest != owner.digest()) {
                let holder = tag.map_or("somebody else".to_owned(), |tag| tag.shown);
                let what = format!("map {map:?} has the element of {shown} for {holder}");
                return Err(Fault::Wrong(what));
            }
            if !is_same_data(entry, &found) {
                return Err(Fault::Wrong(format!("map {map:?} has other data for {shown}")));
            }
        }
        Ok(())
    }

    /// Removes the chains that containers of a network shared and that nothing jumps to any more.
    pub fn remove_unused_chains(&mut self, network: &str) -> kernel::Result<()> {
        let Some(prefix) = self.feature.networks_chains else { return Ok(()) };
        let (table, prefix) = (self.feature.table, prefix(network));
        for name in self.nft.chains(table)?.iter().filter(|name| name.starts_with(&prefix)) {
            let mut batch = Batch::new();
            batch.flush_chain(table, name);
            batch.remove_chain(table, name);
            self.nft.commit_unless_in_use(&batch)?;
        }
        Ok(())
    }

    fn check_rules(&self, chains: &[WantedChain]) -> Result<(), Fault> {
        let table = self.feature.table;
        for chain in chains {
            let found = self.nft.rules(table, &chain.name)?.len();
            if found < chain.rules.len() {
                let what = format!(
                    "chain {:?} of table {:?} has {found} rules, expected {}",
                    chain.name,
                    table.name,
                    chain.rules.len()
                );
                return Err(Fault::Wrong(what));
            }
        }
        Ok(())
    }

    /// What must go before the entries can be added: what is ours, all that containers have which are
    /// gone and are in the way, and what follows from an address that is ours now.
    fn in_the_way(&self, owner: &Owner, entries: &[Entry]) -> Result<InTheWay, Fault> {
        let mut going = InTheWay::default();
        self.take_all(owner.digest(), &mut going)?;
        for entry in entries {
            let found = self.nft.element(entry.map.table, entry.map.name, &entry.key)?;
            let tag = found.as_ref().map(|found| Tag::read(&found.userdata));
            match (found, tag.flatten()) {
                (None, _) => {}
                (Some(_), Some(tag)) if tag.digest == owner.digest() => going.place(entry),
                (Some(_), Some(tag)) if entry.map.is_kept() && tag.is_dead(owner) => {
                    going.place(entry);
                    self.take_all(tag.digest, &mut going)?;
                }
                (Some(found), _) if entry.map.is_shared(&found.data, entry) => continue,
                (Some(_), tag) if entry.map.is_kept() => {
                    let holder = tag.map_or("somebody else".to_owned(), |tag| tag.shown);
                    return Err(Fault::Taken(Conflict { entry: entry.clone(), holder }));
                }
                (Some(_), _) => going.place(entry),
            }
            going.wanted.push(entry.clone());
        }
        Ok(going)
    }

    /// Adds all that an attachment has to what must go.
    fn take_all(&self, digest: Digest, going: &mut InTheWay) -> kernel::Result<()> {
        if !going.owners.insert(digest) {
            return Ok(());
        }
        let (pages, listed) = self.listed(digest)?;
        for place in listed {
            if self.tag(&place)?.is_some_and(|tag| tag.digest == digest) {
                going.places.insert(place);
            }
        }
        going.pages.extend(pages);
        Ok(())
    }

    fn page(&self, digest: Digest, page: u16) -> kernel::Result<Option<FoundElement>> {
        let key = index::page_key(digest, self.feature.number, page);
        self.nft.element(OWNED.table, OWNED.name, &key)
    }

    /// The keys of an attachment's pages, and the places that they list.
    fn listed(&self, digest: Digest) -> kernel::Result<(Vec<Vec<u8>>, Vec<Located>)> {
        let (mut pages, mut places) = (Vec::new(), Vec::new());
        for number in 0..index::MAX_PAGES {
            let Some(page) = self.page(digest, number)? else { break };
            places.extend(index::read(&page.userdata.bytes, self.feature.maps));
            pages.push(page.key);
        }
        Ok((pages, places))
    }

    fn map(&self, number: u8) -> Option<&'static Map> {
        self.feature.maps.iter().copied().find(|map| map.number == number)
    }

    fn tag(&self, place: &Located) -> kernel::Result<Option<Tag>> {
        let Some(map) = self.map(place.map) else { return Ok(None) };
        let found = self.nft.element(map.table, map.name, &place.key)?;
        Ok(found.and_then(|found| Tag::read(&found.userdata)))
    }

    fn remove_places(&mut self, pages: &[Vec<u8>], places: &[Located]) -> kernel::Result<()> {
        let mut batch = Batch::new();
        self.write_removal(&mut batch, pages, places);
        self.nft.commit(&batch)
    }

    fn write_removal(&self, batch: &mut Batch, pages: &[Vec<u8>], places: &[Located]) {
        let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
        remove_keys(batch, OWNED.table, OWNED.name, &pages);
        for map in self.feature.maps {
            let here = places.iter().filter(|place| place.map == map.number);
            let keys: Vec<&[u8]> = here.map(|place| place.key.as_slice()).collect();
            remove_keys(batch, map.table, map.name, &keys);
        }
    }
}

/// Elements that must go, and what is left to be added.
#[derive(Default)]
struct InTheWay {
    owners: HashSet<Digest>,
    pages: Vec<Vec<u8>>,
    places: HashSet<Located>,
    wanted: Vec<Entry>,
}

impl InTheWay {
    fn place(&mut self, entry: &Entry) {
        self.places.insert(Located { map: entry.map.number, key: entry.key.clone() });
    }
}

/// An attachment's elements with the pages that list them.
struct Wanted<'a> {
    feature: &'static Feature,
    entries: &'a [Entry],
    tag: Userdata,
    pages: Vec<(Vec<u8>, Userdata)>,
}

impl<'a> Wanted<'a> {
    fn new(feature: &'static Feature, owner: &Owner, entries: &'a [Entry]) -> Result<Self, Fault> {
        let pages = index::write(entries, &owner.to_string());
        if pages.len() > usize::from(index::MAX_PAGES) {
            return Err(Fault::TooMany(entries.len()));
        }
        let numbered = (0..index::MAX_PAGES).zip(pages);
        let key = |page| index::page_key(owner.digest(), feature.number, page);
        let pages = numbered.map(|(page, attached)| (key(page), attached)).collect();
        Ok(Self { feature, entries, tag: owner.tag(), pages })
    }

    fn write(&self, batch: &mut Batch) {
        let pages = self.pages.iter();
        let pages: Vec<Element<'_>> = pages
            .map(|(key, attached)| Element { key, data: None, userdata: Some(attached) })
            .collect();
        batch.create_elements(OWNED.table, OWNED.name, &pages);
        for map in self.feature.maps {
            let here = self.entries.iter().filter(|entry| entry.map.number == map.number);
            let elements: Vec<Element<'_>> = here
                .map(|entry| Element {
                    key: &entry.key,
                    data: entry.data.as_ref(),
                    userdata: Some(&self.tag),
                })
                .collect();
            batch.create_elements(map.table, map.name, &elements);
        }
    }
}

fn remove_keys(batch: &mut Batch, table: Table<'_>, set: &str, keys: &[&[u8]]) {
    let element = |key| Element { key, data: None, userdata: None };
    let elements: Vec<Element<'_>> = keys.iter().copied().map(element).collect();
    batch.remove_elements(table, set, &elements);
}

fn is_same_data(entry: &Entry, found: &FoundElement) -> bool {
    use kernel::nft::Data;
    match &entry.data {
        None => true,
        Some(Data::Value(bytes)) => *bytes == found.data,
        Some(Data::Verdict(verdict)) => verdict.chain() == found.target.as_deref(),
    }
}

fn lock() -> kernel::Result<Lock> {
    Netns::current()?.lock("rules")
}
