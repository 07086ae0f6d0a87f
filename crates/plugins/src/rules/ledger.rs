// SPDX-License-Identifier: Apache-2.0
//! Adding, removing and checking the elements of a feature. Adding is one batch that reads nothing
//! before; only where an element is in the way, and in removals, is there a look first, and then the
//! namespace's lock keeps others from changing what was seen.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use cni::Attachment;
use kernel::nft::{Batch, Data, Element, Nft, ObservedElement, Table, Userdata};

use super::fault::{Conflict, Fault};
use super::index::{self, Located, OWNED};
use super::map::{Claim, Entry, Map, Spot};
use super::owner::{Digest, Owner, Tag};
use super::{Feature, WantedChain, lock};

/// How often something is tried again when others make and remove what it needs meanwhile.
pub(super) const TRIES: usize = 10;

const FLUSHED: &str = "as after `nft flush ruleset`: DEL and ADD the container anew";

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
    /// replaced. `chains` are those that look at the elements, made where they are missing.
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
                        self.mend(chains)?;
                    }
                    self.make(chains)?;
                }
                Err(error) if error.already_exists() => {
                    let _lock = lock()?;
                    let going = self.in_the_way(owner, entries)?;
                    batch = Batch::new();
                    let spots: Vec<Spot> = going.spots.into_iter().collect();
                    self.write_removal(&mut batch, &going.pages, &spots);
                    Wanted::new(self.feature, owner, &going.wanted)?.write(&mut batch);
                    match self.nft.commit(&batch) {
                        Err(error) if error.already_exists() => {}
                        Err(error) if error.is_not_found() => self.make(chains)?,
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
        let (mut spots, mut owned) = (Vec::new(), Vec::new());
        for place in places.drain(..) {
            let all = self.spots(&place);
            // They come and go together: the first speaks for the others.
            let is_whole = all.first().map_or(Ok(false), |first| self.is_of(first, digest))?;
            let own = if is_whole { all } else { self.only_of(all, digest)? };
            if !own.is_empty() {
                spots.extend(own);
                owned.push(place);
            }
        }
        match self.remove_spots(&pages, &spots) {
            Err(error) if error.is_not_found() => {
                self.remove_spots(&pages, &self.only_of(spots, digest)?)?;
            }
            done => done?,
        }
        Ok(owned)
    }

    /// Whether an attachment's elements are there, with the feature's rules, the chains that look at the
    /// elements and the rules that lead there.
    pub fn check(
        &self,
        owner: &Owner,
        entries: &[Entry],
        chains: &[WantedChain],
    ) -> Result<(), Fault> {
        self.check_rules(&(self.feature.chains)())?;
        self.check_rules(chains)?;
        let looked_at = entries.iter().filter(|entry| !entry.map.is_guard());
        let homes = looked_at
            .flat_map(|entry| entry.map.homes(&entry.key).map(move |(set, key)| (entry, set, key)));
        for (entry, map, key) in homes {
            let shown = owner.to_string();
            let Some(found) = self.nft.element(self.feature.table, &map, key)? else {
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

    fn check_rules(&self, chains: &[WantedChain]) -> Result<(), Fault> {
        let table = self.feature.table;
        for chain in chains {
            let found = self.nft.rules(table, &chain.name)?.len();
            if found < chain.rules.len() {
                if !self.nft.has_table(table)? {
                    return Err(Fault::Wrong(format!("table {:?} is gone, {FLUSHED}", table.name)));
                }
                let what = format!(
                    "chain {:?} of table {:?} has {found} rules, expected {}",
                    chain.name,
                    table.name,
                    chain.rules.len()
                );
                return Err(Fault::Wrong(what));
            }
            self.check_entrances(chain)?;
        }
        Ok(())
    }

    /// What must go before the entries can be added: what is ours, all that containers have which are
    /// gone and are in the way, and what follows from an address that is ours now.
    fn in_the_way(&self, owner: &Owner, entries: &[Entry]) -> Result<InTheWay, Fault> {
        let mut going = InTheWay::default();
        self.take_all(owner.digest(), &mut going)?;
        for entry in entries {
            let mut is_shared = false;
            for spot in entry.map.spots(&entry.key) {
                let found = self.find(&spot)?;
                let tag = found.as_ref().map(|found| Tag::read(&found.userdata));
                match (found, tag.flatten()) {
                    (None, _) => {}
                    (Some(_), Some(tag)) if tag.digest == owner.digest() => {
                        going.spots.insert(spot);
                    }
                    (Some(_), Some(tag)) if entry.map.is_kept() && tag.is_dead(owner) => {
                        going.spots.insert(spot);
                        self.take_all(tag.digest, &mut going)?;
                    }
                    (Some(found), _) if entry.map.is_shared(&found.data, entry) => is_shared = true,
                    (Some(_), tag) if entry.map.is_kept() => {
                        let holder = tag.map_or("somebody else".to_owned(), |tag| tag.shown);
                        return Err(Fault::Taken(Conflict { entry: entry.clone(), holder }));
                    }
                    (Some(_), tag) => {
                        going.spots.insert(spot);
                        tag.map_or(Ok(()), |tag| self.take(tag.digest, entry, &mut going))?;
                    }
                }
            }
            if !is_shared {
                going.wanted.push(entry.clone());
            }
        }
        Ok(going)
    }

    /// Adds all that an attachment has to what must go.
    fn take_all(&self, digest: Digest, going: &mut InTheWay) -> kernel::Result<()> {
        if !going.owners.insert(digest) {
            return Ok(());
        }
        let (pages, listed) = self.listed(digest)?;
        let spots = listed.iter().flat_map(|place| self.spots(place)).collect();
        going.spots.extend(self.only_of(spots, digest)?);
        going.pages.extend(pages);
        Ok(())
    }

    /// Adds what an attachment loses with an entry that another has now: the same key in another part of the
    /// map, and what follows from it.
    fn take(&self, digest: Digest, entry: &Entry, going: &mut InTheWay) -> kernel::Result<()> {
        let own = entry.map.own_key(&entry.key);
        let is_lost = |place: &Located| match self.map(place.map) {
            Some(map) if map == entry.map => map.own_key(&place.key) == own,
            Some(map) => map.claim == Claim::With(entry.map) && place.key.starts_with(own),
            None => false,
        };
        let (_, listed) = self.listed(digest)?;
        let lost = listed.iter().filter(|place| is_lost(place));
        let spots = lost.flat_map(|place| self.spots(place)).collect();
        going.spots.extend(self.only_of(spots, digest)?);
        Ok(())
    }

    fn page(&self, digest: Digest, page: u16) -> kernel::Result<Option<ObservedElement>> {
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

    fn spots(&self, place: &Located) -> Vec<Spot> {
        self.map(place.map).map_or(Vec::new(), |map| map.spots(&place.key))
    }

    fn find(&self, spot: &Spot) -> kernel::Result<Option<ObservedElement>> {
        self.nft.element(self.feature.table, &spot.set, &spot.key)
    }

    fn is_of(&self, spot: &Spot, digest: Digest) -> kernel::Result<bool> {
        let tag = self.find(spot)?.and_then(|found| Tag::read(&found.userdata));
        Ok(tag.is_some_and(|tag| tag.digest == digest))
    }

    fn only_of(&self, spots: Vec<Spot>, digest: Digest) -> kernel::Result<Vec<Spot>> {
        let mut own = Vec::new();
        for spot in spots {
            if self.is_of(&spot, digest)? {
                own.push(spot);
            }
        }
        Ok(own)
    }

    pub(super) fn remove_spots(&self, pages: &[Vec<u8>], spots: &[Spot]) -> kernel::Result<()> {
        let mut batch = Batch::new();
        self.write_removal(&mut batch, pages, spots);
        self.nft.commit(&batch)
    }

    pub(super) fn write_removal(&self, batch: &mut Batch, pages: &[Vec<u8>], spots: &[Spot]) {
        let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
        remove_keys(batch, OWNED.table, OWNED.name, &pages);
        let mut sets: BTreeMap<&str, Vec<&[u8]>> = BTreeMap::new();
        for Spot { set, key } in spots {
            sets.entry(set).or_default().push(key);
        }
        for (set, keys) in sets {
            remove_keys(batch, self.feature.table, set, &keys);
        }
    }
}

/// Elements that must go, and what is left to be added.
#[derive(Default)]
struct InTheWay {
    owners: HashSet<Digest>,
    pages: Vec<Vec<u8>>,
    spots: HashSet<Spot>,
    wanted: Vec<Entry>,
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
        let mut sets: BTreeMap<Cow<'static, str>, Vec<Element<'_>>> = BTreeMap::new();
        for entry in self.entries {
            for (set, key) in entry.map.homes(&entry.key) {
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

fn is_same_data(entry: &Entry, found: &ObservedElement) -> bool {
    entry.data.as_ref().is_none_or(|data| *data == Data::Value(found.data.clone()))
}
