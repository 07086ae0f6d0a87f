// SPDX-License-Identifier: Apache-2.0
//! GC: elements of attachments that are gone, and chains that nobody needs any more.

use std::collections::HashSet;

use cni::Attachment;
use kernel::nft::Batch;

use super::index::{self, Located, OWNED};
use super::ledger::{Ledger, TRIES};
use super::lock;
use super::map::{Number, Spot};
use super::owner::{Digest, Tag};

/// Elements that one batch removes.
const AT_ONCE: usize = 500;

impl Ledger {
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
        let (spots, owned) = self.tagged(is_stale)?;
        for some in spots.chunks(AT_ONCE) {
            self.remove_spots(&[], some)?;
        }
        for some in pages.chunks(AT_ONCE) {
            self.remove_spots(some, &[])?;
        }
        Ok(owned)
    }

    /// The feature's elements whose tags are such, and the places that lists have for them. Not by the
    /// lists: one whose list is lost is found as well.
    fn tagged(
        &self,
        is_wanted: impl Fn(&Digest) -> bool,
    ) -> kernel::Result<(Vec<Spot>, Vec<Located>)> {
        let table = self.feature.table;
        let present = self.nft.sets(table)?;
        let (mut spots, mut places) = (Vec::new(), Vec::new());
        for map in self.feature.maps {
            for set in &present {
                let number = map.number_of(set);
                if set != map.name && number.is_none() {
                    continue;
                }
                for found in self.nft.elements(table, set)? {
                    if Tag::read(&found.userdata).is_none_or(|tag| !is_wanted(&tag.digest)) {
                        continue;
                    }
                    if number.is_some() || !map.is_in_parts() {
                        let number = number.map(Number::to_be_bytes).into_iter().flatten();
                        let key = number.chain(found.key.iter().copied()).collect();
                        places.push(Located { map: map.number, key });
                    }
                    spots.push(Spot { set: set.clone().into(), key: found.key });
                }
            }
        }
        Ok((spots, places))
    }

    /// Removes the chains of a network that have no element left to look at, with their sets and the rules
    /// that lead to them.
    pub fn remove_unused_chains(&self, network: &str) -> kernel::Result<()> {
        let Some(prefix) = self.feature.networks_chains else { return Ok(()) };
        let prefix = prefix(network);
        for name in self.nft.chains(self.feature.table)? {
            let digits = name.strip_prefix(&prefix);
            let number = digits.and_then(|digits| Number::from_str_radix(digits, 16).ok());
            if let Some(number) = number {
                self.remove_unused(|| self.unused_chain(&name, number))?;
            }
        }
        Ok(())
    }

    /// Removes what `look` finds unused. An ADD that needs it does not wait for our lock: where anything was
    /// changed between the look and the removal, there is another look.
    pub fn remove_unused(&self, look: impl Fn() -> kernel::Result<Batch>) -> kernel::Result<()> {
        for _ in 0..TRIES {
            let generation = self.nft.generation()?;
            match self.nft.commit_at(generation, &look()?) {
                Err(error) if error.is_stale_generation() => {}
                // Something of somebody else's needs it, or somebody was faster.
                Err(error) if error.is_busy() || error.is_not_found() => return Ok(()),
                done => return done,
            }
        }
        // The next GC finds it.
        Ok(())
    }

    /// What removes a chain; nothing where there are elements in its sets.
    fn unused_chain(&self, name: &str, number: Number) -> kernel::Result<Batch> {
        let table = self.feature.table;
        let mut batch = Batch::new();
        let present = self.nft.sets(table)?;
        let maps = self.feature.maps.iter().filter(|map| map.is_in_parts());
        let mut parts: Vec<String> = maps.map(|map| map.part(number)).collect();
        parts.retain(|part| present.contains(part));
        for part in &parts {
            if !self.nft.elements(table, part)?.is_empty() {
                return Ok(batch);
            }
        }
        for from in (self.feature.chains)() {
            for rule in self.nft.rules(table, &from.name)? {
                if rule.target.as_deref() == Some(name) {
                    batch.remove_rule(table, &from.name, rule.handle);
                }
            }
        }
        batch.flush_chain(table, name);
        batch.remove_chain(table, name);
        for part in &parts {
            batch.remove_set(table, part);
        }
        Ok(batch)
    }
}
