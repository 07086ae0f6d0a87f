// SPDX-License-Identifier: Apache-2.0
//! Rules of the plugin portmap.

use std::net::IpAddr;

use cni::Attachment;
use kernel::nft::{Batch, Nft, ObservedRule, Table};

use super::{
    Chains, FAMILIES, family_of, jumps, matches_address, plan_chain, remove, remove_chains, table,
};
use crate::compat::names::hashed;
use crate::nftables::match_expr::octets;

/// The name prefixes of a container's chains, and the chains that jump to them.
const CHAINS: [(&str, &str); 2] =
    [("CNI-DN-", "CNI-HOSTPORT-DNAT"), ("CNI-SN-", "CNI-HOSTPORT-SNAT")];

const NFT_TABLE: &str = "cni_hostport";
const NFT_PORTS: [&str; 2] = ["hostports", "hostip_hostports"];
const NFT_MASQUERADE: &str = "masquerading";

/// The known properties of an attachment's mappings. A rule of nft names the container only, which
/// may have mappings on other networks too.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mapped<'a> {
    /// The container's addresses on this network.
    pub addresses: &'a [IpAddr],
    /// The host ports; used if the addresses are not known.
    pub host_ports: &'a [u16],
}

/// Removes the rules of a container on a network.
pub(crate) fn remove_port_mappings(
    nft: &Nft,
    network: &str,
    container: &str,
    mapped: Mapped<'_>,
) -> kernel::Result<bool> {
    let mut removed = false;
    for family in FAMILIES {
        let nat = table(family, "nat");
        for (prefix, from) in CHAINS {
            let chain = hashed(prefix, &[network, container], 28);
            if nft.has_chain(nat, &chain)? {
                removed |= remove(nft, || plan_chain(nft, nat, &chain, from))?;
            }
        }
        let ports = table(family, NFT_TABLE);
        if nft.has_chain(ports, NFT_PORTS[0])? {
            removed |= remove(nft, || plan_nft(nft, ports, container, mapped))?;
        }
    }
    Ok(removed)
}

/// Removes the chains of a network's containers that are not valid. Rules of nft are kept: they
/// name the container only, which may be on another network.
pub(crate) fn gc_port_mappings(
    nft: &Nft,
    network: &str,
    valid: &[Attachment],
) -> kernel::Result<()> {
    let (prefix, from) = CHAINS[0];
    let chain = |one: &Attachment| hashed(prefix, &[network, &one.container_id], 28);
    let kept = valid.iter().map(chain).collect();
    let comment = &format!("dnat name: \"{network}\" id: \"");
    for family in FAMILIES {
        remove_chains(nft, table(family, "nat"), Chains { prefix, from, comment }, &kept)?;
    }
    Ok(())
}

/// Whether there are rules for this number of mappings to the address.
pub(crate) fn has_port_mappings(
    nft: &Nft,
    network: &str,
    container: &str,
    address: IpAddr,
    count: usize,
) -> kernel::Result<bool> {
    let family = family_of(address);
    let (prefix, from) = CHAINS[0];
    let (nat, chain) = (table(family, "nat"), hashed(prefix, &[network, container], 28));
    if nft.has_chain(nat, &chain)? && !jumps(nft, nat, from, &chain)?.is_empty() {
        return Ok(nft.rules(nat, &chain)?.len() >= count);
    }
    let ports = table(family, NFT_TABLE);
    let mut found = 0;
    for chain in NFT_PORTS {
        let rules = nft.rules(ports, chain)?;
        found +=
            rules.iter().filter(|rule| rule.comment == container && maps_to(rule, address)).count();
    }
    Ok(count > 0 && found >= count)
}

fn plan_nft(
    nft: &Nft,
    table: Table<'_>,
    container: &str,
    mapped: Mapped<'_>,
) -> kernel::Result<Batch> {
    let mut batch = Batch::new();
    let mut addresses: Vec<Vec<u8>> = mapped.addresses.iter().map(|one| octets(*one)).collect();
    let by_port = addresses.is_empty() && !mapped.host_ports.is_empty();
    let is_known = by_port || !addresses.is_empty();
    for chain in NFT_PORTS {
        for rule in nft.rules(table, chain)?.iter().filter(|rule| rule.comment == container) {
            let is_own = match (is_known, by_port) {
                (false, _) => true,
                (true, false) => {
                    rule.loaded().any(|value| addresses.iter().any(|one| one == value))
                }
                (true, true) => has_port(rule, mapped.host_ports),
            };
            if is_own {
                batch.remove_rule(table, chain, rule.handle);
            }
            if by_port && is_own {
                let is_address = |value: &&[u8]| matches!(value.len(), 4 | 16);
                addresses.extend(rule.loaded().filter(is_address).map(<[u8]>::to_vec));
            }
        }
    }
    for rule in nft.rules(table, NFT_MASQUERADE)?.iter().filter(|rule| rule.comment == container) {
        if !is_known || rule.compared().any(|value| addresses.iter().any(|one| one == value)) {
            batch.remove_rule(table, NFT_MASQUERADE, rule.handle);
        }
    }
    Ok(batch)
}

fn maps_to(rule: &ObservedRule, address: IpAddr) -> bool {
    let octets = octets(address);
    matches_address(rule, address) || rule.loaded().any(|value| value == octets)
}

fn has_port(rule: &ObservedRule, ports: &[u16]) -> bool {
    rule.compared().any(|value| ports.iter().any(|port| port.to_be_bytes() == value))
}
