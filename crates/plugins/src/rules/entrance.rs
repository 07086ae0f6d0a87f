// SPDX-License-Identifier: Apache-2.0
//! Rules of one chain that lead to another, for some packets only.

use std::collections::BTreeMap;

use kernel::nft::{Batch, Expr, Place, Rule, Table, Verdict};

use super::WantedChain;
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
    /// Whether all rules are there that lead to a chain.
    pub(super) fn check_entrances(&self, chain: &WantedChain) -> Result<(), Fault> {
        let mut wanted: BTreeMap<&str, usize> = BTreeMap::new();
        for entrance in &chain.entrances {
            *wanted.entry(entrance.from).or_default() += 1;
        }
        let name = &chain.name;
        for (from, expected) in wanted {
            let rules = self.nft.rules(self.feature.table, from)?;
            let found = rules.iter().filter(|rule| rule.target.as_ref() == Some(name)).count();
            if found < expected {
                let what =
                    format!("{found} rules of chain {from:?} lead to {name:?}, not {expected}");
                return Err(Fault::Wrong(what));
            }
        }
        Ok(())
    }
}
