// SPDX-License-Identifier: Apache-2.0
//! The maps, chains and rules of a feature: creating them when they are first needed, repairing
//! them after another program removed a part, checking them, and removing chains without elements.

use std::collections::BTreeMap;

use cni::{Code, Error};
use kernel::nft::{BaseChain, Batch, Chain, Expr, Nft, Place, Rule, Table, Verdict};

use super::element::{ChainId, Map};
use super::error::ElementError;
use super::index::OWNED;
use super::{ElementStore, TABLE};

/// Maximum number of attempts if other programs keep changing the objects that a change needs.
pub(super) const MAX_ATTEMPTS: usize = 10;

/// One use of nf_tables, with its own maps and chains.
#[derive(Debug)]
pub(crate) struct Feature {
    /// Distinguishes the features of one attachment in the index. From 1 to 15; must never change.
    pub number: u8,
    /// The table that holds the maps and chains.
    pub table: Table<'static>,
    pub maps: &'static [&'static Map],
    /// The chains with their rules. The feature counts as created if the first chain exists.
    pub chains: fn() -> Vec<DesiredChain>,
    /// Returns the name prefix of chains that the containers of a network share. The rest of such a
    /// name is the [`ChainId`] in eight hexadecimal digits.
    pub networks_chains: Option<fn(&str) -> String>,
}

#[derive(Debug, Clone)]
pub(crate) struct DesiredChain {
    pub name: String,
    /// The hook of a base chain.
    pub base: Option<BaseChain>,
    /// Comment shown by `nft list`.
    pub comment: String,
    pub rules: Rules,
    /// Per-chain sets that are created and removed together with the chain.
    pub parts: Vec<(&'static Map, ChainId)>,
    /// Rules of other chains that jump here. They are created and removed together with the chain.
    pub jump_rules: Vec<JumpRule>,
}

/// The rules of a chain in order, each with a comment that may be empty.
pub(crate) type Rules = Vec<(Vec<Expr>, &'static str)>;

/// A rule that jumps from another chain to the chain that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JumpRule {
    /// The chain that contains the rule.
    pub from: &'static str,
    /// The position in that chain.
    pub place: Place,
    /// The match.
    pub exprs: Vec<Expr>,
}

impl DesiredChain {
    /// Creates a regular chain without parts and jump rules.
    pub(crate) fn new(name: impl Into<String>, comment: &str, rules: Rules) -> Self {
        Self {
            name: name.into(),
            base: None,
            comment: comment.to_owned(),
            rules,
            parts: Vec::new(),
            jump_rules: Vec::new(),
        }
    }

    fn create(&self, table: Table<'_>, batch: &mut Batch) {
        let (name, comment) = (self.name.as_str(), self.comment.as_str());
        batch.create_chain(&Chain { table, name, base: self.base, comment });
        self.add_parts(batch);
    }

    /// Adds the chain's sets. Existing sets keep their elements.
    fn add_parts(&self, batch: &mut Batch) {
        for (map, chain) in &self.parts {
            batch.add_set(&map.set(&map.part(*chain), &self.comment));
        }
    }

    fn add_rules(&self, table: Table<'_>, batch: &mut Batch) {
        for (exprs, comment) in &self.rules {
            let exprs = exprs.clone();
            batch.add_rule(&Rule { table, chain: &self.name, place: Place::Last, exprs, comment });
        }
        self.add_jump_rules(table, batch);
    }

    fn add_jump_rules(&self, table: Table<'_>, batch: &mut Batch) {
        for jump in &self.jump_rules {
            let mut exprs = jump.exprs.clone();
            exprs.push(Expr::Verdict(Verdict::Jump(self.name.clone())));
            let (chain, place) = (jump.from, jump.place);
            batch.add_rule(&Rule { table, chain, place, exprs, comment: "" });
        }
    }
}

impl Feature {
    /// The batch that creates everything the feature needs. The kernel rejects it as a whole if a
    /// chain exists already.
    fn creation(&self) -> Batch {
        let mut batch = Batch::new();
        self.add_maps(&mut batch);
        let chains = (self.chains)();
        for chain in &chains {
            chain.create(self.table, &mut batch);
        }
        for chain in &chains {
            chain.add_rules(self.table, &mut batch);
        }
        batch
    }

    /// Adds the tables and maps. Existing maps keep their elements.
    fn add_maps(&self, batch: &mut Batch) {
        let comment = "container network: made and emptied by CNI plugins";
        for table in [TABLE, self.table] {
            batch.add_table(table, comment);
        }
        for map in [&[&OWNED], self.maps].concat().iter().filter(|map| map.has_single_set()) {
            batch.add_set(&map.set(map.name, map.comment));
        }
    }
}

/// Creates the feature and these chains if they do not exist. Another process may do the same at
/// the same time.
pub(super) fn create_missing(
    nft: &Nft,
    feature: &Feature,
    chains: &[DesiredChain],
) -> kernel::Result<()> {
    let table = feature.table;
    let is_created = match (feature.chains)().first() {
        Some(first) => nft.has_chain(table, &first.name)?,
        None => nft.has_table(table)?,
    };
    if !is_created {
        accept_existing(nft.commit(&feature.creation()))?;
    }
    for chain in chains {
        if !nft.has_chain(table, &chain.name)? {
            let mut batch = Batch::new();
            chain.create(table, &mut batch);
            chain.add_rules(table, &mut batch);
            accept_existing(nft.commit(&batch))?;
        }
    }
    Ok(())
}

fn accept_existing(result: kernel::Result<()>) -> kernel::Result<()> {
    match result {
        Err(error) if error.already_exists() => Ok(()),
        other => other,
    }
}

/// Re-creates the missing parts of a feature: another program removed them, or an older release did
/// not have them. Missing ones of `chains` are not created. The caller holds the lock.
pub(super) fn repair(nft: &Nft, feature: &Feature, chains: &[DesiredChain]) -> kernel::Result<()> {
    let table = feature.table;
    let mut batch = Batch::new();
    feature.add_maps(&mut batch);
    add_missing_rules(nft, feature, &mut batch)?;
    for chain in chains {
        if nft.has_chain(table, &chain.name)? {
            chain.add_parts(&mut batch);
            if check_jump_rules(nft, feature, chain).is_err() {
                chain.add_jump_rules(table, &mut batch);
            }
        }
    }
    nft.commit(&batch)
}

/// Repairs the feature if one of its chains or rules is missing. Does nothing if all of them are
/// missing: the feature is not in use then. The caller holds the lock.
pub(super) fn repair_rules(nft: &Nft, feature: &Feature) -> kernel::Result<()> {
    let present = nft.chains(feature.table)?;
    let is_used = (feature.chains)().iter().any(|chain| present.contains(&chain.name));
    let mut missing = Batch::new();
    if is_used {
        add_missing_rules(nft, feature, &mut missing)?;
    }
    if missing.is_empty() { Ok(()) } else { repair(nft, feature, &[]) }
}

/// Rules that other programs added to a chain are kept unless some of the chain's own rules are
/// missing.
fn add_missing_rules(nft: &Nft, feature: &Feature, batch: &mut Batch) -> kernel::Result<()> {
    let table = feature.table;
    let mut incomplete = Vec::new();
    for chain in (feature.chains)() {
        if !nft.has_chain(table, &chain.name)? {
            chain.create(table, batch);
            incomplete.push(chain);
        } else if nft.rules(table, &chain.name)?.len() < chain.rules.len() {
            batch.flush_chain(table, &chain.name);
            incomplete.push(chain);
        }
    }
    for chain in &incomplete {
        chain.add_rules(table, batch);
    }
    Ok(())
}

/// CHECK: each chain exists, with its rules and the rules that jump to it.
pub(super) fn check_chains(
    nft: &Nft,
    feature: &Feature,
    chains: &[DesiredChain],
) -> Result<(), ElementError> {
    let table = feature.table;
    for chain in chains {
        let (found, expected) = (nft.rules(table, &chain.name)?.len(), chain.rules.len());
        if found < expected {
            let (table_name, name) = (table.name, &chain.name);
            return Err(ElementError::Mismatch(if nft.has_table(table)? {
                format!(
                    "chain {name:?} of table {table_name:?} has {found} rules, expected {expected}"
                )
            } else {
                format!(
                    "table {table_name:?} is gone, as after `nft flush ruleset`: \
                     DEL and ADD the container again"
                )
            }));
        }
        check_jump_rules(nft, feature, chain)?;
    }
    Ok(())
}

fn check_jump_rules(
    nft: &Nft,
    feature: &Feature,
    chain: &DesiredChain,
) -> Result<(), ElementError> {
    let mut desired: BTreeMap<&str, usize> = BTreeMap::new();
    for jump in &chain.jump_rules {
        *desired.entry(jump.from).or_default() += 1;
    }
    let name = &chain.name;
    for (from, expected) in desired {
        let rules = nft.rules(feature.table, from)?;
        let found = rules.iter().filter(|rule| rule.target.as_ref() == Some(name)).count();
        if found < expected {
            return Err(ElementError::Mismatch(format!(
                "{found} rules of chain {from:?} jump to {name:?}, expected {expected}"
            )));
        }
    }
    Ok(())
}

const NO_SUCH_CHAIN: &str = "no-such-chain";

/// STATUS of a plugin that needs the feature: can the kernel do it?
pub(crate) fn status(feature: &'static Feature, doing: &str) -> Result<(), Error> {
    let probed = ElementStore::open(feature).and_then(|store| probe(store.nft(), feature));
    probed.map_err(|cause| {
        Error::because(Code::NOT_AVAILABLE, format!("nf_tables cannot {doing}"), &cause)
    })
}

/// Tries to create the feature without changing anything: the batch ends with a change that must
/// fail, so that the kernel rolls back all of it. A feature that exists needs no probe.
fn probe(nft: &Nft, feature: &Feature) -> kernel::Result<()> {
    let table = feature.table;
    let chains = (feature.chains)();
    if let Some(first) = chains.first()
        && nft.has_chain(table, &first.name)?
    {
        return Ok(());
    }
    let mut batch = feature.creation();
    batch.remove_chain(table, NO_SUCH_CHAIN);
    match nft.commit(&batch) {
        Err(error) if error.object.ends_with(NO_SUCH_CHAIN) || error.already_exists() => Ok(()),
        other => other,
    }
}

/// Removes the chains of a network whose sets are empty, with the sets and the rules that jump to
/// the chains.
pub(crate) fn remove_unused_chains(
    nft: &Nft,
    feature: &Feature,
    network: &str,
) -> kernel::Result<()> {
    let Some(prefix) = feature.networks_chains else { return Ok(()) };
    let prefix = prefix(network);
    for name in nft.chains(feature.table)? {
        let digits = name.strip_prefix(&prefix);
        let chain = digits.and_then(|digits| ChainId::from_str_radix(digits, 16).ok());
        if let Some(chain) = chain {
            remove_unused(nft, || removal_if_unused(nft, feature, &name, chain))?;
        }
    }
    Ok(())
}

/// Commits the removal that `plan` returns. An ADD that needs the object does not take the lock: if
/// the ruleset changed since `plan` read it, `plan` runs again.
pub(crate) fn remove_unused(
    nft: &Nft,
    plan: impl Fn() -> kernel::Result<Batch>,
) -> kernel::Result<()> {
    for _ in 0..MAX_ATTEMPTS {
        let generation = nft.generation()?;
        match nft.commit_at(generation, &plan()?) {
            Err(error) if error.is_stale_generation() => {}
            // Another program refers to the object, or has removed it.
            Err(error) if error.is_busy() || error.is_not_found() => return Ok(()),
            other => return other,
        }
    }
    // The next GC tries again.
    Ok(())
}

/// The batch that removes a chain; empty if one of its sets has elements.
fn removal_if_unused(
    nft: &Nft,
    feature: &Feature,
    name: &str,
    chain: ChainId,
) -> kernel::Result<Batch> {
    let table = feature.table;
    let mut batch = Batch::new();
    let present = nft.sets(table)?;
    let maps = feature.maps.iter().filter(|map| map.has_chain_sets());
    let mut parts: Vec<String> = maps.map(|map| map.part(chain)).collect();
    parts.retain(|part| present.contains(part));
    for part in &parts {
        if !nft.elements(table, part)?.is_empty() {
            return Ok(batch);
        }
    }
    for from in (feature.chains)() {
        for rule in nft.rules(table, &from.name)? {
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
