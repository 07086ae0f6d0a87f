// SPDX-License-Identifier: Apache-2.0
//! Rules that the Go plugins made for containers that still exist: CHECK accepts them, DEL and GC
//! remove them. The rules of iptables-nft are nf_tables rules and are changed by netlink. The rules
//! of iptables-legacy are not reachable this way.
//!
//! Each search starts with the name of a chain, and is cheap if the chain does not exist.

mod firewall;
mod masquerade;
mod portmap;
mod spoof;

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use kernel::nft::{Batch, Nft, ObservedRule, Table, TableFamily};

pub(crate) use self::firewall::{has_firewall, has_isolation, remove_firewall};
pub(crate) use self::masquerade::{gc_masquerade, has_masquerade, remove_masquerade};
pub(crate) use self::portmap::{Mapped, gc_port_mappings, has_port_mappings, remove_port_mappings};
pub(crate) use self::spoof::{has_spoof_check, remove_spoof_check};
use crate::nftables::match_expr::octets;

/// Maximum number of attempts if other programs change the same chains.
const MAX_ATTEMPTS: usize = 5;

/// The families that iptables has tables for.
const FAMILIES: [TableFamily; 2] = [TableFamily::Ip, TableFamily::Ip6];

fn family_of(address: IpAddr) -> TableFamily {
    if address.is_ipv4() { TableFamily::Ip } else { TableFamily::Ip6 }
}

fn table(family: TableFamily, name: &str) -> Table<'_> {
    Table { family, name }
}

/// Opens a socket in the calling thread's namespace and runs `body`.
pub(crate) fn remove_with(body: impl FnOnce(&Nft) -> kernel::Result<()>) -> kernel::Result<()> {
    body(&Nft::open()?)
}

/// Whether a rule matches this address.
fn matches_address(rule: &ObservedRule, address: IpAddr) -> bool {
    let octets = octets(address);
    rule.compared().any(|value| value == octets)
}

/// Whether a rule matches an address that is not one of these.
fn matches_other_address(rule: &ObservedRule, addresses: &[IpAddr]) -> bool {
    let is_address = |value: &[u8]| matches!(value.len(), 4 | 16);
    let is_listed = |value: &[u8]| addresses.iter().any(|address| octets(*address) == value);
    rule.compared().any(|value| is_address(value) && !is_listed(value))
}

/// Commits a removal; plans it again if another program changed the same objects. Returns whether
/// there was anything to remove.
fn remove(nft: &Nft, plan: impl Fn() -> kernel::Result<Batch>) -> kernel::Result<bool> {
    for _ in 1..MAX_ATTEMPTS {
        let batch = plan()?;
        match nft.commit(&batch) {
            Ok(()) => return Ok(!batch.is_empty()),
            Err(error) if error.is_not_found() || error.is_busy() => {}
            Err(error) => return Err(error),
        }
    }
    let batch = plan()?;
    nft.commit(&batch).map(|()| !batch.is_empty())
}

/// Removes a container's chain and the rules that jump to it.
fn write_removal(batch: &mut Batch, table: Table<'_>, chain: &str, jumps: &[(&str, ObservedRule)]) {
    for (from, rule) in jumps {
        batch.remove_rule(table, from, rule.handle);
    }
    batch.flush_chain(table, chain);
    batch.remove_chain(table, chain);
}

fn plan_chain(nft: &Nft, table: Table<'_>, chain: &str, from: &str) -> kernel::Result<Batch> {
    let mut batch = Batch::new();
    if nft.has_chain(table, chain)? {
        write_removal(&mut batch, table, chain, &jumps(nft, table, from, chain)?);
    }
    Ok(batch)
}

/// Identifies the chains of a network's containers.
struct Chains<'a> {
    /// The start of the chains' names.
    prefix: &'a str,
    /// The chain that jumps to them.
    from: &'a str,
    /// The start of the comments of those jumps.
    comment: &'a str,
}

/// Removes the chains of a network's containers except those to keep.
fn remove_chains(
    nft: &Nft,
    table: Table<'_>,
    Chains { prefix, from, comment }: Chains<'_>,
    kept: &HashSet<String>,
) -> kernel::Result<()> {
    let mut stale = BTreeSet::new();
    for rule in nft.rules(table, from)? {
        let is_of_network = xt_comment(&rule).starts_with(comment.as_bytes());
        let target = rule.target.filter(|name| is_of_network && name.starts_with(prefix));
        stale.extend(target.filter(|name| !kept.contains(name)));
    }
    for chain in stale {
        remove(nft, || plan_chain(nft, table, &chain, from))?;
    }
    Ok(())
}

/// The text is padded with NUL bytes.
fn xt_comment(rule: &ObservedRule) -> Vec<u8> {
    rule.xt_match("comment").unwrap_or_default()
}

fn jumps<'a>(
    nft: &Nft,
    table: Table<'_>,
    from: &'a str,
    to: &str,
) -> kernel::Result<Vec<(&'a str, ObservedRule)>> {
    let rules = nft.rules(table, from)?.into_iter();
    Ok(rules.filter(|rule| rule.target.as_deref() == Some(to)).map(|rule| (from, rule)).collect())
}
