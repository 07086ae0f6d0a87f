// SPDX-License-Identifier: Apache-2.0
//! Making a feature's maps, chains and rules: all at once where nothing is there, and what is missing
//! where others have removed a part, or where a release before this one had fewer of them.

use kernel::nft::Batch;

use super::WantedChain;
use super::ledger::Ledger;

impl Ledger {
    /// Makes the feature where it is not there, and the chains that look at elements. Somebody else may do
    /// so at the same time.
    pub(super) fn make(&self, chains: &[WantedChain]) -> kernel::Result<()> {
        let table = self.feature.table;
        let known = (self.feature.chains)();
        let is_made = match known.first() {
            Some(first) => self.nft.has_chain(table, &first.name)?,
            None => self.nft.has_table(table)?,
        };
        if !is_made {
            exists_is_done(self.nft.commit(&self.feature.create()))?;
        }
        for chain in chains {
            if !self.nft.has_chain(table, &chain.name)? {
                let mut batch = Batch::new();
                chain.write(table, &mut batch);
                chain.write_rules(table, &mut batch);
                exists_is_done(self.nft.commit(&batch))?;
            }
        }
        Ok(())
    }

    /// Makes what is missing of a feature that is there in part, and of these chains where they are there.
    /// Under the lock.
    pub(super) fn mend(&self, chains: &[WantedChain]) -> kernel::Result<()> {
        let table = self.feature.table;
        let mut batch = Batch::new();
        self.feature.write_maps(&mut batch);
        self.write_missing(&mut batch)?;
        for chain in chains {
            if self.nft.has_chain(table, &chain.name)? {
                chain.write_parts(&mut batch);
                if self.check_entrances(chain).is_err() {
                    chain.write_entrances(table, &mut batch);
                }
            }
        }
        self.nft.commit(&batch)
    }

    /// The same where a rule or chain is missing, and nothing where none is or where all are. Under the
    /// lock.
    pub(super) fn mend_rules(&self) -> kernel::Result<()> {
        let present = self.nft.chains(self.feature.table)?;
        let is_used = (self.feature.chains)().iter().any(|chain| present.contains(&chain.name));
        let mut missing = Batch::new();
        if is_used {
            self.write_missing(&mut missing)?;
        }
        if missing.is_empty() { Ok(()) } else { self.mend(&[]) }
    }

    /// Rules of others that were put into our chains stay, unless some of ours are gone.
    fn write_missing(&self, batch: &mut Batch) -> kernel::Result<()> {
        let table = self.feature.table;
        let mut poor = Vec::new();
        for chain in (self.feature.chains)() {
            if !self.nft.has_chain(table, &chain.name)? {
                chain.write(table, batch);
                poor.push(chain);
            } else if self.nft.rules(table, &chain.name)?.len() < chain.rules.len() {
                batch.flush_chain(table, &chain.name);
                poor.push(chain);
            }
        }
        for chain in &poor {
            chain.write_rules(table, batch);
        }
        Ok(())
    }
}

fn exists_is_done(result: kernel::Result<()>) -> kernel::Result<()> {
    match result {
        Err(error) if error.already_exists() => Ok(()),
        other => other,
    }
}
