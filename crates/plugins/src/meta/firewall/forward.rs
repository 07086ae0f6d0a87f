// SPDX-License-Identifier: Apache-2.0
//! Packets that our table accepts can still be dropped by a chain of iptables: Docker sets the
//! policy of FORWARD to DROP. One rule in that chain accepts the marked packets of all containers.
//! It has the form that iptables itself writes, so that every version of iptables can read it.

use kernel::Family;
use kernel::nft::xtables::{self, FILTER, FORWARD, Form, Forwarded};
use kernel::nft::{
    BaseChain, Batch, Chain, ChainKind, Hook, Nft, ObservedRule, Place, Rule, Table,
};

use crate::nftables;

const COMMENT: &str = "podwire: what the firewall plugin has marked";

/// The Go plugin's chains. Our rule comes after the jumps to them, so that the administrator's
/// rules there apply first.
const GO_CHAINS: [&str; 2] = ["CNI-ISOLATION-STAGE-1", "CNI-FORWARD"];

/// Maximum number of attempts if other programs rewrite the chain.
const MAX_ATTEMPTS: usize = 20;

/// Ensures that packets with this mark bit are accepted.
pub(super) fn ensure(nft: &Nft, family: Family, mark_bit: u8) -> kernel::Result<()> {
    if exists(nft, family, mark_bit)? {
        return Ok(());
    }
    // Another plugin process may insert the same rule at the same time.
    let _lock = nftables::lock()?;
    for _ in 1..MAX_ATTEMPTS {
        match insert(nft, family, Forwarded::Marked(1 << mark_bit)) {
            // The chain, or the rule that ours was to follow, was removed meanwhile.
            Err(error) if error.is_not_found() => {}
            other => return other,
        }
    }
    insert(nft, family, Forwarded::Marked(1 << mark_bit))
}

fn insert(nft: &Nft, family: Family, packets: Forwarded) -> kernel::Result<()> {
    let rules = nft.rules(filter(family), FORWARD)?;
    if rules.iter().any(|rule| packets.is_accepted_by(rule)) {
        return Ok(());
    }
    let is_go_jump = |rule: &&ObservedRule| {
        rule.target.as_deref().is_some_and(|target| GO_CHAINS.contains(&target))
    };
    let last_jump = rules.iter().rfind(is_go_jump);
    let place = last_jump.map_or(Place::First, |rule| Place::After(rule.handle));
    let has_chain = !rules.is_empty() || nft.has_chain(filter(family), FORWARD)?;
    let rule = |form| packets.accept_rule(family, place, COMMENT, form);
    match nft.commit(&batch(family, has_chain, &rule(Form::Iptables))) {
        // The kernel also returns ENOENT if it lacks the match. Every iptables that works with such
        // a kernel can read the other form.
        Err(error) if error.is_not_found() || error.is_unsupported() => {
            nft.commit(&batch(family, has_chain, &rule(Form::Nft)))
        }
        other => other,
    }
}

/// Whether the rule exists.
pub(super) fn exists(nft: &Nft, family: Family, mark_bit: u8) -> kernel::Result<bool> {
    let rules = nft.rules(filter(family), FORWARD)?;
    let packets = Forwarded::Marked(1 << mark_bit);
    Ok(rules.iter().any(|rule| packets.is_accepted_by(rule)))
}

fn filter(family: Family) -> Table<'static> {
    xtables::table(family, FILTER)
}

/// Adds the chain as iptables creates it if it is missing; a program that uses it later finds our
/// rule there.
fn batch(family: Family, has_chain: bool, rule: &Rule<'_>) -> Batch {
    let table = filter(family);
    let mut batch = Batch::new();
    if !has_chain {
        let base = BaseChain { kind: ChainKind::Filter, hook: Hook::Forward, priority: 0 };
        batch.add_table(table, "");
        batch.add_chain(&Chain { table, name: FORWARD, base: Some(base), comment: "" });
    }
    batch.add_rule(rule);
    batch
}
