// SPDX-License-Identifier: Apache-2.0
//! `macspoofchk`: chains that drop frames with another source than the container's MAC address.

use cni::Attachment;
use kernel::MacAddr;
use kernel::nft::{Batch, Nft, Table, TableFamily};

use super::{jumps, remove};

const NAT: Table<'static> = Table { family: TableFamily::Bridge, name: "nat" };

/// NFT_CHAIN_MAXNAMELEN without the NUL byte and without the suffix `-mac` of the second chain.
const MAX_CHAIN_LEN: usize = 255 - 4;

/// Whether an attachment's chains exist and are reachable from PREROUTING.
pub(crate) fn has_spoof_check(
    nft: &Nft,
    attachment: &Attachment,
    mac: MacAddr,
) -> kernel::Result<bool> {
    let chain = chain(attachment);
    if !exists(nft, &chain)? || jumps(nft, NAT, "PREROUTING", &chain)?.is_empty() {
        return Ok(false);
    }
    let rules = nft.rules(NAT, &format!("{chain}-mac"))?;
    let accepts_mac = rules.iter().any(|rule| rule.compared().any(|value| value == mac.0));
    // Another rule drops everything else.
    Ok(accepts_mac && rules.len() > 1)
}

fn chain(attachment: &Attachment) -> String {
    format!("cni-br-iface-{}-{}", attachment.container_id, attachment.ifname)
}

/// The kernel refuses a lookup with a name that is too long, which a long container ID can cause.
fn exists(nft: &Nft, chain: &str) -> kernel::Result<bool> {
    Ok(chain.len() <= MAX_CHAIN_LEN && nft.has_chain(NAT, chain)?)
}

/// Removes an attachment's chains and the rules that jump to them.
pub(crate) fn remove_spoof_check(nft: &Nft, attachment: &Attachment) -> kernel::Result<bool> {
    let chain = chain(attachment);
    if !exists(nft, &chain)? {
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
        // The first chain jumps to the second, so it must go first.
        for name in [chain.clone(), format!("{chain}-mac")] {
            if nft.has_chain(NAT, &name)? {
                batch.flush_chain(NAT, &name);
                batch.remove_chain(NAT, &name);
            }
        }
        Ok(batch)
    })
}
