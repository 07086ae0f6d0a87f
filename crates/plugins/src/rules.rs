// SPDX-License-Identifier: Apache-2.0
//! What plugins keep in nf_tables: elements of sets and maps in one table, `podwire`, each with a tag that
//! says whose it is. A packet's way through them, an ADD and a DEL cost the same however many there are:
//! none of them jumps, see [`Spread`].
//!
//! Each [`Feature`] has maps, chains and rules of its own in the table, made when it is first needed. An
//! attachment's elements are listed in the set `owned` under a key that follows from the attachment, so
//! that DEL finds them without result or namespace, and GC without looking at other networks'.

mod entrance;
mod fault;
mod index;
mod ledger;
mod making;
mod map;
mod owner;
mod rehearsal;
mod unused;

use cni::{Attachment, Error, Request};
use kernel::Netns;
use kernel::netns::Lock;
use kernel::nft::{BaseChain, Batch, Chain, Expr, Place, Rule, Table, TableFamily};

pub use self::entrance::Entrance;
pub use self::fault::{Conflict, Fault};
pub use self::index::Located;
pub use self::ledger::Ledger;
pub use self::map::{Claim, Entry, Map, Number, Spread, key};
pub use self::owner::Owner;
pub use self::rehearsal::status;
use crate::fault::OrFault;
pub use kernel::nft::match_expr;

/// The table of everything that sees IP packets.
pub const TABLE: Table<'static> = Table { family: TableFamily::Inet, name: "podwire" };

/// A use of nf_tables, with maps and chains of its own.
#[derive(Debug)]
pub struct Feature {
    /// Tells its elements from those of others that the same attachment has; 1 to 15, and never changes.
    pub number: u8,
    /// The table that its maps and chains are in.
    pub table: Table<'static>,
    /// Its maps.
    pub maps: &'static [&'static Map],
    /// Its chains with their rules; the first one is looked for to tell whether they are there.
    pub chains: fn() -> Vec<WantedChain>,
    /// How the names of chains begin that the containers of a network share; they end with the number of
    /// their parts of maps, in eight digits.
    pub networks_chains: Option<fn(&str) -> String>,
}

/// Keeps others of ours from changing what was seen before a change that depends on it. For the calling
/// thread's namespace.
pub fn lock() -> kernel::Result<Lock> {
    Netns::current()?.lock("rules")
}

/// Removes the elements of the attachment that a request is about. Where there is nothing, this is one
/// look for each feature.
pub fn remove(request: &Request, features: &[&'static Feature]) -> Result<(), Error> {
    each(features, "remove the container's rules", |ledger| {
        ledger.remove(&request.network, &request.attachment()).map(drop)
    })
}

/// Removes the elements of a network that belong to none of these attachments, and chains that have none
/// to look at any more.
pub fn gc(
    request: &Request,
    features: &[&'static Feature],
    valid: &[Attachment],
) -> Result<(), Error> {
    each(features, "remove stale rules", |ledger| {
        ledger.gc(&request.network, valid)?;
        ledger.remove_unused_chains(&request.network)
    })
}

/// Does something for each feature by one socket; the others are not held up by one that fails.
fn each(
    features: &[&'static Feature],
    doing: &str,
    mut body: impl FnMut(&mut Ledger) -> kernel::Result<()>,
) -> Result<(), Error> {
    let Some((first, _)) = features.split_first() else { return Ok(()) };
    let mut ledger = Ledger::open(first).or_fault(doing)?;
    let mut failures = Vec::new();
    for feature in features {
        ledger.turn_to(feature);
        failures.extend(body(&mut ledger).or_fault(doing).err());
    }
    Error::join(failures)
}

/// A chain with its rules.
#[derive(Debug, Clone)]
pub struct WantedChain {
    /// Its name.
    pub name: String,
    /// Where packets enter it.
    pub base: Option<BaseChain>,
    /// For people.
    pub comment: String,
    /// Its rules.
    pub rules: Rules,
    /// Parts of maps that are its own, made and removed with it.
    pub parts: Vec<(&'static Map, Number)>,
    /// Rules of another chain that lead here, made and removed with this one.
    pub entrances: Vec<Entrance>,
}

/// The rules of a chain in order, each with a comment that may be empty.
pub type Rules = Vec<(Vec<Expr>, &'static str)>;

impl WantedChain {
    /// A chain that others lead to, or nobody yet.
    pub fn new(name: impl Into<String>, comment: &str, rules: Rules) -> Self {
        Self {
            name: name.into(),
            base: None,
            comment: comment.to_owned(),
            rules,
            parts: Vec::new(),
            entrances: Vec::new(),
        }
    }

    fn write(&self, table: Table<'_>, batch: &mut Batch) {
        let (name, comment) = (self.name.as_str(), self.comment.as_str());
        batch.create_chain(&Chain { table, name, base: self.base, comment });
        self.write_parts(batch);
    }

    /// Those that are there stay as they are.
    fn write_parts(&self, batch: &mut Batch) {
        for (map, number) in &self.parts {
            batch.add_set(&map.set(&map.part(*number), &self.comment));
        }
    }

    fn write_rules(&self, table: Table<'_>, batch: &mut Batch) {
        for (exprs, comment) in &self.rules {
            let exprs = exprs.clone();
            batch.add_rule(&Rule { table, chain: &self.name, place: Place::Last, exprs, comment });
        }
        self.write_entrances(table, batch);
    }

    fn write_entrances(&self, table: Table<'_>, batch: &mut Batch) {
        for entrance in &self.entrances {
            entrance.write(table, &self.name, batch);
        }
    }
}

impl Feature {
    /// The batch that makes all that the feature needs; refused as a whole where it is there already.
    fn create(&self) -> Batch {
        let mut batch = Batch::new();
        self.write_maps(&mut batch);
        let chains = (self.chains)();
        for chain in &chains {
            chain.write(self.table, &mut batch);
        }
        for chain in &chains {
            chain.write_rules(self.table, &mut batch);
        }
        batch
    }

    /// Its tables and maps; those that are there stay as they are.
    fn write_maps(&self, batch: &mut Batch) {
        let comment = "container network: made and emptied by CNI plugins";
        for table in [TABLE, self.table] {
            batch.add_table(table, comment);
        }
        for map in [&[&index::OWNED], self.maps].concat().iter().filter(|map| map.has_whole()) {
            batch.add_set(&map.set(map.name, map.comment));
        }
    }
}
