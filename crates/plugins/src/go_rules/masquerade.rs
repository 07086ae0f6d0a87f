// SPDX-License-Identifier: Apache-2.0
//! Masquerading, by chains of iptables or rules of nft.

use std::net::IpAddr;

use cni::Attachment;
use kernel::nft::{Batch, Family, Nft, Table};

use super::{FAMILIES, family_of, is_about, is_about_another, jumps, remove, table, write_removal};
use crate::go_names::hashed;

const NFT: Table<'static> = Table { family: Family::Inet, name: "cni_plugins_masquerade" };
const NFT_CHAIN: &str = "masq_checks";

/// Removes an attachment's rules. The chain of iptables is named after network and container alone: where
/// the addresses are known, what another interface of the same container needs stays.
pub fn remove_masquerade(
    nft: &Nft,
    network: &str,
    attachment: &Attachment,
    addresses: &[IpAddr],
) -> kernel::Result<bool> {
    let chain = chain(network, attachment);
    let mut removed = false;
    for family in FAMILIES {
        let nat = table(family, "nat");
        if nft.has_chain(nat, &chain)? {
            removed |= remove(nft, || plan_iptables(nft, nat, &chain, addresses))?;
        }
    }
    if nft.has_chain(NFT, NFT_CHAIN)? {
        removed |= remove(nft, || plan_nft(nft, &mark(network, attachment)))?;
    }
    Ok(removed)
}

/// Whether one of an attachment's addresses is masqueraded.
pub fn has_masquerade(
    nft: &Nft,
    network: &str,
    attachment: &Attachment,
    address: IpAddr,
) -> kernel::Result<bool> {
    let (nat, chain) = (table(family_of(address), "nat"), chain(network, attachment));
    if nft.has_chain(nat, &chain)? {
        let jumps = jumps(nft, nat, "POSTROUTING", &chain)?;
        if jumps.iter().any(|(_, rule)| is_about(rule, address)) {
            return Ok(true);
        }
    }
    let mark = mark(network, attachment);
    let rules = nft.rules(NFT, NFT_CHAIN)?;
    Ok(rules.iter().any(|rule| rule.comment.starts_with(&mark) && is_about(rule, address)))
}

fn chain(network: &str, attachment: &Attachment) -> String {
    hashed("CNI-", &[network, &attachment.container_id], 28)
}

/// What the comment of an attachment's rules begins with.
fn mark(network: &str, attachment: &Attachment) -> String {
    let Attachment { container_id, ifname } = attachment;
    hashed("", &[network], 16) + "-" + &hashed("", &[ifname, ":", container_id], 16)
}

fn plan_iptables(
    nft: &Nft,
    nat: Table<'_>,
    chain: &str,
    addresses: &[IpAddr],
) -> kernel::Result<Batch> {
    let mut batch = Batch::new();
    if !nft.has_chain(nat, chain)? {
        return Ok(batch);
    }
    let all = jumps(nft, nat, "POSTROUTING", chain)?;
    let (others, going): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|(_, rule)| !addresses.is_empty() && is_about_another(rule, addresses));
    if others.is_empty() {
        write_removal(&mut batch, nat, chain, &going);
    } else {
        for (from, rule) in &going {
            batch.remove_rule(nat, from, rule.handle);
        }
    }
    Ok(batch)
}

fn plan_nft(nft: &Nft, mark: &str) -> kernel::Result<Batch> {
    let mut batch = Batch::new();
    for rule in nft.rules(NFT, NFT_CHAIN)?.iter().filter(|rule| rule.comment.starts_with(mark)) {
        batch.remove_rule(NFT, NFT_CHAIN, rule.handle);
    }
    Ok(batch)
}
