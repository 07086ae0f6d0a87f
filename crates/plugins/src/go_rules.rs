// SPDX-License-Identifier: Apache-2.0
//! Rules that the Go plugins made for containers that are still there: looked for by CHECK and removed
//! by DEL and GC. Those of `iptables` are rules of nf_tables too, and are reached without that program; where
//! it is the older `iptables-legacy`, they are not.
//!
//! Every look begins with the name of a chain, and costs next to nothing where there is none.

mod firewall;
mod masquerade;
mod portmap;
mod spoof;

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use kernel::nft::{Batch, Nft, ObservedRule, Table, TableFamily};

pub use self::firewall::{has_firewall, has_isolation, remove_firewall};
pub use self::masquerade::{gc_masquerade, has_masquerade, remove_masquerade};
pub use self::portmap::{Mapped, gc_port_mappings, has_port_mappings, remove_port_mappings};
pub use self::spoof::{has_spoof_check, remove_spoof_check};
use crate::rules::match_expr::octets;

/// How often a removal is tried again when others change the same chains.
const TRIES: usize = 5;

/// The families that iptables has tables for.
const FAMILIES: [TableFamily; 2] = [TableFamily::Ip, TableFamily::Ip6];

fn family_of(address: IpAddr) -> TableFamily {
    if address.is_ipv4() { TableFamily::Ip } else { TableFamily::Ip6 }
}

fn table(family: TableFamily, name: &str) -> Table<'_> {
    Table { family, name }
}

/// Removes something in the calling thread's namespace.
pub fn remove_with(what: impl FnOnce(&Nft) -> kernel::Result<()>) -> kernel::Result<()> {
    what(&Nft::open()?)
}

/// Whether a rule compares a packet's address with this one.
fn is_about(rule: &ObservedRule, address: IpAddr) -> bool {
    let wanted = octets(address);
    rule.compared().any(|value| value == wanted)
}

/// Whether a rule compares a packet's address with one that is none of these.
fn is_about_another(rule: &ObservedRule, addresses: &[IpAddr]) -> bool {
    let is_address = |value: &[u8]| matches!(value.len(), 4 | 16);
    let is_ours = |value: &[u8]| addresses.iter().any(|address| octets(*address) == value);
    rule.compared().any(|value| is_address(value) && !is_ours(value))
}

/// Carries a removal out, planned anew where others were faster. Tells whether there was anything.
fn remove(nft: &Nft, plan: impl Fn() -> kernel::Result<Batch>) -> kernel::Result<bool> {
    for _ in 1..TRIES {
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

/// A chain of a container, and the rules elsewhere that jump to it.
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

/// Chains of containers by what their names begin with, the chain that leads to them, and what the comment
/// there begins with for those of a network.
struct Chains<'a> {
    prefix: &'a str,
    from: &'a str,
    comment: &'a str,
}

/// Removes the chains of a network's containers but these.
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

/// The text is followed by zeros.
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
