// SPDX-License-Identifier: Apache-2.0
//! Whether the kernel can do what a feature needs, without changing anything: a batch that makes all of
//! it and ends with a change that cannot be made, so that the whole is taken back.

use cni::{Code, Error};
use kernel::nft::Batch;

use super::Feature;
use super::ledger::Ledger;

const NO_SUCH_CHAIN: &str = "no-such-chain";

/// STATUS of those who need a feature.
pub fn status(feature: &'static Feature, doing: &str) -> Result<(), Error> {
    let ready = Ledger::open(feature).and_then(|ledger| ledger.rehearse());
    ready.map_err(|cause| {
        Error::because(Code::NOT_AVAILABLE, format!("nf_tables cannot {doing}"), &cause)
    })
}

impl Ledger {
    /// The kernel's complaint, if it has one. Where the feature is in use already it has none.
    fn rehearse(&self) -> kernel::Result<()> {
        let table = self.feature.table;
        let chains = (self.feature.chains)();
        if let Some(first) = chains.first()
            && self.nft.has_chain(table, &first.name)?
        {
            return Ok(());
        }
        let mut batch: Batch = self.feature.create();
        batch.remove_chain(table, NO_SUCH_CHAIN);
        match self.nft.commit(&batch) {
            Err(error) if error.object.ends_with(NO_SUCH_CHAIN) || error.already_exists() => Ok(()),
            other => other,
        }
    }
}
