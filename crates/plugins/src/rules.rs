// SPDX-License-Identifier: Apache-2.0
//! What plugins keep in nf_tables: elements of maps in one table, `podwire`, each with a tag that says
//! whose it is. A packet's way through them, an ADD and a DEL cost the same however many there are.
//!
//! Each [`Feature`] has maps, chains and rules of its own in the table, made when it is first needed. An
//! attachment's elements are listed in the set `owned` under a key that follows from the attachment, so
//! that DEL finds them without result or namespace, and GC without looking at other networks'.

mod index;
mod ledger;
mod map;
mod owner;
pub mod phrase;

use kernel::nft::{BaseChain, Batch, Chain, Expr, Family, Place, Rule, Set, Table};

pub use self::ledger::{Conflict, Fault, Ledger};
pub use self::map::{Entry, Map, key};
pub use self::owner::Owner;

/// The table of everything that sees IP packets.
pub const TABLE: Table<'static> = Table { family: Family::Inet, name: "podwire" };

/// A use of nf_tables, with maps and chains of its own.
#[derive(Debug)]
pub struct Feature {
    /// Tells its elements from those of others that the same attachment has; never changes.
    pub number: u8,
    /// The table that its maps and chains are in.
    pub table: Table<'static>,
    /// Its maps.
    pub maps: &'static [&'static Map],
    /// Its chains with their rules; the first one is looked for to tell whether they are there.
    pub chains: fn() -> Vec<WantedChain>,
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
    /// Its rules in order, each with a comment that may be empty.
    pub rules: Vec<(Vec<Expr>, &'static str)>,
}

impl WantedChain {
    fn write(&self, table: Table<'_>, batch: &mut Batch) {
        let (name, comment) = (self.name.as_str(), self.comment.as_str());
        batch.create_chain(&Chain { table, name, base: self.base, comment });
    }

    fn write_rules(&self, table: Table<'_>, batch: &mut Batch) {
        for (exprs, comment) in &self.rules {
            let exprs = exprs.clone();
            batch.add_rule(&Rule { table, chain: &self.name, place: Place::Last, exprs, comment });
        }
    }
}

impl Feature {
    /// The batch that makes all that the feature needs; refused as a whole where it is there already.
    fn create(&self) -> Batch {
        let mut batch = Batch::new();
        let comment = "container network: made and emptied by CNI plugins";
        for table in [TABLE, self.table] {
            batch.add_table(table, comment);
        }
        let chains = (self.chains)();
        let maps = [&[&index::OWNED], self.maps].concat();
        for map in maps {
            let Map { table, name, key, data, .. } = *map;
            batch.add_set(&Set { table, name, key, data, comment: map.comment });
        }
        for chain in &chains {
            chain.write(self.table, &mut batch);
        }
        for chain in &chains {
            chain.write_rules(self.table, &mut batch);
        }
        batch
    }
}
