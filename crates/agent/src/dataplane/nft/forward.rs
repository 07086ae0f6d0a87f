// SPDX-License-Identifier: Apache-2.0
//! Rules in the chain FORWARD of iptables, where there is one: Docker makes *drop* its policy, and no accept
//! in another table overrules that. They stand where flannel's stand, behind the jumps to other chains, so that
//! network policies come first; but before a rule that lets nothing pass.
//!
//! Where the chain is missing nothing drops, and nothing is made: whoever makes it is noticed.

use kernel::Family;
use kernel::nft::xtables::{self, Forwarded, comment_of};
pub use kernel::nft::xtables::{FILTER as TABLE, FORWARD as CHAIN, Form};
use kernel::nft::{Batch, Nft, ObservedRule, Place};

use super::Plan;
use super::desired::{Direction, Pass};

/// What makes this agent's rules in a family's chain as they should be.
pub fn plan(
    nft: &Nft,
    family: Family,
    mark: &str,
    passes: &[Pass],
    form: Form,
) -> kernel::Result<Plan> {
    let table = xtables::table(family, TABLE);
    let wanted: Vec<Pass> =
        passes.iter().filter(|one| Family::of(one.network.addr()) == family).copied().collect();
    let rules = nft.rules(table, CHAIN)?;
    let ours: Vec<(&ObservedRule, String)> =
        rules.iter().filter_map(|rule| Some((rule, subject(rule, mark)?))).collect();
    let mut plan = Plan::default();
    if is_right(&rules, &ours, &wanted) {
        return Ok(plan);
    }
    let has_chain = !rules.is_empty() || nft.has_chain(table, CHAIN)?;
    if !has_chain {
        return Ok(plan);
    }
    for (rule, _) in &ours {
        plan.batch.remove_rule(table, CHAIN, rule.handle);
    }
    write(&mut plan.batch, family, &wanted, place(&rules, mark), mark, form);
    let program = if family == Family::V4 { "iptables" } else { "ip6tables" };
    let told = |verb: &str, what: &str| format!("{verb} the rule of {program} for packets {what}");
    let is_wanted = |text: &str| wanted.iter().any(|one| text_of(one) == text);
    plan.changes.extend(wanted.iter().map(|one| told("set", &text_of(one))));
    let stale = ours.iter().filter(|(_, text)| !is_wanted(text));
    plan.changes.extend(stale.map(|(_, text)| told("remove", text)));
    Ok(plan)
}

/// Each is there once and as it should be, before any rule that lets nothing pass.
fn is_right(rules: &[ObservedRule], ours: &[(&ObservedRule, String)], wanted: &[Pass]) -> bool {
    let is_there = |pass: &Pass| {
        ours.iter()
            .any(|(rule, text)| *text == text_of(pass) && forwarded(pass).is_accepted_by(rule))
    };
    let wall = rules.iter().position(ObservedRule::blocks_all).unwrap_or(rules.len());
    let is_reached =
        |rule: &ObservedRule| rules[..wall].iter().any(|one| one.handle == rule.handle);
    ours.len() == wanted.len()
        && wanted.iter().all(is_there)
        && ours.iter().all(|(rule, _)| is_reached(rule))
}

/// Behind the last rule of others before the first that lets nothing pass.
fn place(rules: &[ObservedRule], mark: &str) -> Place {
    let Some(wall) = rules.iter().position(ObservedRule::blocks_all) else { return Place::Last };
    let before = rules[..wall].iter().rfind(|rule| subject(rule, mark).is_none());
    before.map_or(Place::First, |rule| Place::After(rule.handle))
}

fn write(batch: &mut Batch, family: Family, passes: &[Pass], place: Place, mark: &str, form: Form) {
    let mut passes = passes.to_vec();
    if place != Place::Last {
        // The kernel adds each rule directly after the same rule, so before those that were added earlier.
        passes.reverse();
    }
    for pass in &passes {
        let comment = format!("{}{}", prefix(mark), text_of(pass));
        batch.add_rule(&forwarded(pass).accept_rule(family, place, &comment, form));
    }
}

fn forwarded(pass: &Pass) -> Forwarded {
    match pass.direction {
        Direction::From => Forwarded::From(pass.network),
        Direction::To => Forwarded::To(pass.network),
    }
}

fn prefix(mark: &str) -> String {
    format!("podwire agent {mark}: ")
}

fn text_of(pass: &Pass) -> String {
    let direction = match pass.direction {
        Direction::From => "from",
        Direction::To => "to",
    };
    format!("{direction} {}", pass.network)
}

/// Which packets a rule of this agent's is for; none for rules of others.
fn subject(rule: &ObservedRule, mark: &str) -> Option<String> {
    comment_of(rule).strip_prefix(&prefix(mark)).map(str::to_owned)
}
