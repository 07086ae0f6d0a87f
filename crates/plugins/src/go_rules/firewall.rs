// SPDX-License-Identifier: Apache-2.0
//! Rules that let a container's packets pass. They name nothing but its addresses.

use std::net::IpAddr;

use kernel::nft::{Batch, Nft};

use super::{FAMILIES, family_of, is_about, remove, table};

const CHAIN: &str = "CNI-FORWARD";

/// Removes the rules for these addresses.
pub fn remove_firewall(nft: &Nft, addresses: &[IpAddr]) -> kernel::Result<()> {
    for family in FAMILIES {
        let own: Vec<IpAddr> =
            addresses.iter().copied().filter(|one| family_of(*one) == family).collect();
        let filter = table(family, "filter");
        if own.is_empty() || !nft.has_chain(filter, CHAIN)? {
            continue;
        }
        remove(nft, || {
            let mut batch = Batch::new();
            for rule in nft.rules(filter, CHAIN)? {
                if rule.accepts() && own.iter().any(|address| is_about(&rule, *address)) {
                    batch.remove_rule(filter, CHAIN, rule.handle);
                }
            }
            Ok(batch)
        })?;
    }
    Ok(())
}

/// Whether there are rules for an address, one for each direction, that packets come to.
pub fn has_firewall(nft: &Nft, address: IpAddr) -> kernel::Result<bool> {
    let filter = table(family_of(address), "filter");
    let rules = nft.rules(filter, CHAIN)?;
    let count = rules.iter().filter(|rule| rule.accepts() && is_about(rule, address)).count();
    if count < 2 {
        return Ok(false);
    }
    let forward = nft.rules(filter, "FORWARD")?;
    Ok(forward.iter().any(|rule| rule.target.as_deref() == Some(CHAIN)))
}
