// SPDX-License-Identifier: Apache-2.0
//! Masquerading rules of the Go plugins, made with iptables or nft.

use std::collections::HashSet;
use std::net::IpAddr;

use cni::Attachment;
use kernel::nft::{Batch, Nft, Table, TableFamily};

use super::{
    Chains, FAMILIES, family_of, jumps, matches_address, matches_other_address, remove,
    remove_chains, table, write_removal,
};
use crate::compat::iptables::quoted;
use crate::compat::names::hashed;

const NFT: Table<'static> = Table { family: TableFamily::Inet, name: "cni_plugins_masquerade" };
const NFT_CHAIN: &str = "masq_checks";

/// Removes an attachment's rules. The name of the iptables chain depends on network and container
/// only. If the addresses are known, rules for another interface of the same container are kept.
pub(crate) fn remove_masquerade(
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
        let tag = tag(network, attachment);
        removed |= remove(nft, || plan_nft(nft, |comment| comment.starts_with(&tag)))?;
    }
    Ok(removed)
}

/// Removes the rules of a network's attachments that are not valid.
pub(crate) fn gc_masquerade(nft: &Nft, network: &str, valid: &[Attachment]) -> kernel::Result<()> {
    let kept = valid.iter().map(|one| chain(network, one)).collect();
    let comment = &format!("name: {} id: ", quoted(network));
    for family in FAMILIES {
        let chains = Chains { prefix: "CNI-", from: "POSTROUTING", comment };
        remove_chains(nft, table(family, "nat"), chains, &kept)?;
    }
    let tags: HashSet<String> = valid.iter().map(|one| tag(network, one)).collect();
    let prefix = network_tag(network);
    let is_stale = |comment: &str| {
        let own = comment.split(',').next().unwrap_or_default();
        comment.starts_with(&prefix) && !tags.contains(own)
    };
    remove(nft, || plan_nft(nft, is_stale)).map(drop)
}

/// Whether the Go plugin masquerades this address of an attachment.
pub(crate) fn has_masquerade(
    nft: &Nft,
    network: &str,
    attachment: &Attachment,
    address: IpAddr,
) -> kernel::Result<bool> {
    let (nat, chain) = (table(family_of(address), "nat"), chain(network, attachment));
    if nft.has_chain(nat, &chain)? {
        let jumps = jumps(nft, nat, "POSTROUTING", &chain)?;
        if jumps.iter().any(|(_, rule)| matches_address(rule, address)) {
            return Ok(true);
        }
    }
    let tag = tag(network, attachment);
    let rules = nft.rules(NFT, NFT_CHAIN)?;
    Ok(rules.iter().any(|rule| rule.comment.starts_with(&tag) && matches_address(rule, address)))
}

fn chain(network: &str, attachment: &Attachment) -> String {
    hashed("CNI-", &[network, &attachment.container_id], 28)
}

/// The start of the comments of an attachment's rules.
fn tag(network: &str, attachment: &Attachment) -> String {
    let Attachment { container_id, ifname } = attachment;
    network_tag(network) + &hashed("", &[ifname, ":", container_id], 16)
}

fn network_tag(network: &str) -> String {
    hashed("", &[network], 16) + "-"
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
    let (others, own): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|(_, rule)| !addresses.is_empty() && matches_other_address(rule, addresses));
    if others.is_empty() {
        write_removal(&mut batch, nat, chain, &own);
    } else {
        for (from, rule) in &own {
            batch.remove_rule(nat, from, rule.handle);
        }
    }
    Ok(batch)
}

fn plan_nft(nft: &Nft, is_removed: impl Fn(&str) -> bool) -> kernel::Result<Batch> {
    let mut batch = Batch::new();
    for rule in nft.rules(NFT, NFT_CHAIN)?.iter().filter(|rule| is_removed(&rule.comment)) {
        batch.remove_rule(NFT, NFT_CHAIN, rule.handle);
    }
    Ok(batch)
}
