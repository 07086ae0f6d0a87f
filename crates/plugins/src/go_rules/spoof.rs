// SPDX-License-Identifier: Apache-2.0
//! `macspoofchk`: chains that drop what does not bear the container's hardware address.

use cni::Attachment;
use kernel::nft::{Batch, Family, Nft, Table};

use super::remove;

const NAT: Table<'static> = Table { family: Family::Bridge, name: "nat" };

/// Removes an attachment's chains, and the rules that jump to them.
pub fn remove_spoof_check(nft: &Nft, attachment: &Attachment) -> kernel::Result<bool> {
    let id = format!("{}-{}", attachment.container_id, attachment.ifname);
    let chain = format!("cni-br-iface-{id}");
    if !nft.has_chain(NAT, &chain)? {
        return Ok(false);
    }
    let comment = format!("macspoofchk-{id}");
    remove(nft, || {
        let mut batch = Batch::new();
        for rule in nft.rules(NAT, "PREROUTING")? {
            if rule.target.as_deref() == Some(&chain) || rule.comment == comment {
                batch.remove_rule(NAT, "PREROUTING", rule.handle);
            }
        }
        // The first jumps to the second.
        for name in [chain.clone(), format!("{chain}-mac")] {
            if nft.has_chain(NAT, &name)? {
                batch.flush_chain(NAT, &name);
                batch.remove_chain(NAT, &name);
            }
        }
        Ok(batch)
    })
}
