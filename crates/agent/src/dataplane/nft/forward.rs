// SPDX-License-Identifier: Apache-2.0
//! Accept rules in the chain FORWARD of iptables. Docker sets the policy of that chain to drop, and
//! no accept rule in another table overrides it. The rules are at the end of the chain, as
//! flannel's are, so that the chains of network policies come first. They are before any rule that
//! drops or rejects all packets.
//!
//! If the chain does not exist, nothing drops the packets and no rule is added. A later creation of
//! the chain causes an event.

use kernel::Family;
use kernel::nft::xtables::{self, Forwarded, comment_of};
pub(super) use kernel::nft::xtables::{FILTER as TABLE, FORWARD as CHAIN, Form};
use kernel::nft::{Batch, Nft, ObservedRule, Place};

use super::desired::{Accept, Direction};
use super::{Change, Plan};

/// Plans the changes of this agent's rules in the chain of one family.
pub(super) fn plan(
    nft: &Nft,
    family: Family,
    owner: &str,
    accepts: &[Accept],
    form: Form,
) -> kernel::Result<Plan> {
    let table = xtables::table(family, TABLE);
    let desired: Vec<Accept> =
        accepts.iter().filter(|accept| accept.family() == family).copied().collect();
    let rules = nft.rules(table, CHAIN)?;
    let own: Vec<(&ObservedRule, String)> =
        rules.iter().filter_map(|rule| Some((rule, packets_of(rule, owner)?))).collect();
    let mut plan = Plan::default();
    if is_converged(&rules, &own, &desired) {
        return Ok(plan);
    }
    let has_chain = !rules.is_empty() || nft.has_chain(table, CHAIN)?;
    if !has_chain {
        return Ok(plan);
    }
    for (rule, _) in &own {
        plan.batch.remove_rule(table, CHAIN, rule.handle);
    }
    add_rules(&mut plan.batch, family, &desired, place(&rules, owner), owner, form);
    plan.changes.extend(desired.iter().map(|accept| {
        let packets = accept.to_string();
        Change::SetForwardRule { family, packets }
    }));
    let is_desired = |packets: &str| desired.iter().any(|accept| accept.to_string() == packets);
    let stale = own.into_iter().filter(|(_, packets)| !is_desired(packets));
    let removal = |(_, packets)| Change::RemoveForwardRule { family, packets };
    plan.changes.extend(stale.map(removal));
    Ok(plan)
}

/// Returns whether each desired rule exists once, is unchanged, and is before any rule that blocks
/// all packets.
fn is_converged(
    rules: &[ObservedRule],
    own: &[(&ObservedRule, String)],
    desired: &[Accept],
) -> bool {
    let exists = |accept: &Accept| {
        own.iter().any(|(rule, packets)| {
            *packets == accept.to_string() && forwarded(accept).is_accepted_by(rule)
        })
    };
    let blocking = rules.iter().position(ObservedRule::blocks_all).unwrap_or(rules.len());
    let is_reached =
        |rule: &ObservedRule| rules[..blocking].iter().any(|one| one.handle == rule.handle);
    own.len() == desired.len()
        && desired.iter().all(exists)
        && own.iter().all(|(rule, _)| is_reached(rule))
}

/// Returns the place after the foreign rules, but before the first rule that blocks all packets.
fn place(rules: &[ObservedRule], owner: &str) -> Place {
    let Some(blocking) = rules.iter().position(ObservedRule::blocks_all) else {
        return Place::Last;
    };
    let foreign = rules[..blocking].iter().rfind(|rule| packets_of(rule, owner).is_none());
    foreign.map_or(Place::First, |rule| Place::After(rule.handle))
}

fn add_rules(
    batch: &mut Batch,
    family: Family,
    accepts: &[Accept],
    place: Place,
    owner: &str,
    form: Form,
) {
    let mut accepts = accepts.to_vec();
    if place != Place::Last {
        // The kernel adds each rule directly after the same existing rule, so the last one added is
        // the first of them.
        accepts.reverse();
    }
    for accept in &accepts {
        let comment = format!("{}{accept}", comment_prefix(owner));
        batch.add_rule(&forwarded(accept).accept_rule(family, place, &comment, form));
    }
}

fn forwarded(accept: &Accept) -> Forwarded {
    match accept.direction {
        Direction::From => Forwarded::From(accept.network),
        Direction::To => Forwarded::To(accept.network),
    }
}

fn comment_prefix(owner: &str) -> String {
    format!("podwire agent {owner}: ")
}

/// Returns the packets for which this agent added a rule, from the rule's comment. Returns `None`
/// for foreign rules.
fn packets_of(rule: &ObservedRule, owner: &str) -> Option<String> {
    comment_of(rule).strip_prefix(&comment_prefix(owner)).map(str::to_owned)
}
