// SPDX-License-Identifier: Apache-2.0
//! Chains that a rule of another chain leads to, for some packets only. The elements that need such a
//! chain name it, so that the kernel keeps it as long as there is one of them.

use std::collections::BTreeMap;

use kernel::nft::{Batch, Expr, Place, Rule, Table, Verdict};

use super::fault::Fault;
use super::ledger::Ledger;

/// A rule of another chain that leads to a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entrance {
    /// The chain that it is in.
    pub from: &'static str,
    /// Where in that chain.
    pub place: Place,
    /// For which packets.
    pub exprs: Vec<Expr>,
}

impl Entrance {
    pub(super) fn write(&self, table: Table<'_>, to: &str, batch: &mut Batch) {
        let mut exprs = self.exprs.clone();
        exprs.push(Expr::Verdict(Verdict::Jump(to.to_owned())));
        let (chain, place) = (self.from, self.place);
        batch.add_rule(&Rule { table, chain, place, exprs, comment: "" });
    }
}

impl Ledger {
    /// Removes chains whose names begin so, with the rules of chain `from` that lead to them, where no
    /// element needs them any more.
    pub fn remove_unused_entered(&mut self, from: &str, prefix: &str) -> kernel::Result<()> {
        let table = self.feature.table;
        let mut entrances: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for rule in self.nft.rules(table, from)? {
            if let Some(target) = rule.target.filter(|target| target.starts_with(prefix)) {
                entrances.entry(target).or_default().push(rule.handle);
            }
        }
        for (name, handles) in &entrances {
            let mut batch = Batch::new();
            for handle in handles {
                batch.remove_rule(table, from, *handle);
            }
            batch.flush_chain(table, name);
            batch.remove_chain(table, name);
            self.nft.commit_unless_in_use(&batch)?;
        }
        Ok(())
    }

    /// Whether this many rules of chain `from` lead to a chain.
    pub fn check_entered(&self, from: &str, name: &str, expected: usize) -> Result<(), Fault> {
        let table = self.feature.table;
        let rules = self.nft.rules(table, from)?;
        let found = rules.iter().filter(|rule| rule.target.as_deref() == Some(name)).count();
        if found < expected {
            let what = format!("{found} rules of chain {from:?} lead to {name:?}, not {expected}");
            return Err(Fault::Wrong(what));
        }
        Ok(())
    }
}
