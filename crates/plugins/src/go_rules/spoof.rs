// SPDX-License-Identifier: Apache-2.0
//! `macspoofchk`: chains that drop what does not bear the container's hardware address.

use cni::Attachment;
use kernel::MacAddr;
use kernel::nft::{Batch, Nft, Table, TableFamily};

use super::{jumps, remove};

const NAT: Table<'static> = Table { family: TableFamily::Bridge, name: "nat" };

/// NFT_CHAIN_MAXNAMELEN without the final zero, less the `-mac` of the second chain.
const LONGEST_CHAIN: usize = 255 - 4;

/// Whether an attachment's chains are there, and are jumped to.
pub fn has_spoof_check(nft: &Nft, attachment: &Attachment, mac: MacAddr) -> kernel::Result<bool> {
    let chain = chain(attachment);
    if !is_there(nft, &chain)? || jumps(nft, NAT, "PREROUTING", &chain)?.is_empty() {
        return Ok(false);
    }
    let rules = nft.rules(NAT, &format!("{chain}-mac"))?;
    let is_let_pass = rules.iter().any(|rule| rule.compared().any(|value| value == mac.0));
    // Another one drops the rest.
    Ok(is_let_pass && rules.len() > 1)
}

fn chain(attachment: &Attachment) -> String {
    format!("cni-br-iface-{}-{}", attachment.container_id, attachment.ifname)
}

/// The kernel refuses to look for a name that no chain can have; a container ID may make one.
fn is_there(nft: &Nft, chain: &str) -> kernel::Result<bool> {
    Ok(chain.len() <= LONGEST_CHAIN && nft.has_chain(NAT, chain)?)
}

/// Removes an attachment's chains, and the rules that jump to them.
pub fn remove_spoof_check(nft: &Nft, attachment: &Attachment) -> kernel::Result<bool> {
    let chain = chain(attachment);
    if !is_there(nft, &chain)? {
        return Ok(false);
    }
    let comment = format!("macspoofchk-{}-{}", attachment.container_id, attachment.ifname);
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
