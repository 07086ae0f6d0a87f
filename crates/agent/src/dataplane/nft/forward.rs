// SPDX-License-Identifier: Apache-2.0
//! Rules in the chain FORWARD of iptables, where there is one: Docker makes *drop* its policy, and no accept
//! in another table overrules that. They stand where flannel's stand, behind the jumps to other chains, so that
//! network policies come first; but before a rule that lets nothing pass.
//!
//! Where the chain is missing nothing drops, and nothing is made: whoever makes it is noticed.

use ipnet::IpNet;
use kernel::Family;
use kernel::nft::match_expr::match_network;
use kernel::nft::xtables::{self, comment_of};
use kernel::nft::{Batch, Expr, Nft, ObservedRule, Op, Place, Reg, Rule, Table, Verdict};

use super::Plan;
use super::desired::{Direction, Pass};

/// The chain.
pub const CHAIN: &str = "FORWARD";
/// The table that it is in.
pub const TABLE: &str = "filter";

/// How the rules are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// With the comment as iptables has it.
    Iptables,
    /// With that of `nft`, for kernels that lack matches of iptables.
    Nft,
}

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
    write(&mut plan.batch, table, &wanted, place(&rules, mark), mark, form);
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
        ours.iter().any(|(rule, text)| *text == text_of(pass) && lets_pass(rule, pass.network))
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

fn write(
    batch: &mut Batch,
    table: Table<'_>,
    passes: &[Pass],
    place: Place,
    mark: &str,
    form: Form,
) {
    let mut passes = passes.to_vec();
    if place != Place::Last {
        // Each goes directly behind the same rule, before those that went there earlier.
        passes.reverse();
    }
    for pass in &passes {
        let comment = format!("{}{}", prefix(mark), text_of(pass));
        let (exprs, comment) = match form {
            Form::Iptables => (exprs(pass, Some(&comment)), ""),
            Form::Nft => (exprs(pass, None), comment.as_str()),
        };
        batch.add_rule(&Rule { table, chain: CHAIN, place, exprs, comment });
    }
}

/// `-s 10.5.0.0/16 -m comment --comment "…" -j ACCEPT`
fn exprs(pass: &Pass, comment: Option<&str>) -> Vec<Expr> {
    let family = Family::of(pass.network.addr());
    let mut exprs = vec![match pass.direction {
        Direction::From => family.load_source(Reg(0)),
        Direction::To => family.load_destination(Reg(0)),
    }];
    exprs.extend(match_network(Reg(0), Op::Eq, pass.network));
    exprs.extend(comment.map(xtables::comment));
    exprs.extend([Expr::Counter, Expr::Verdict(Verdict::Accept)]);
    exprs
}

/// Whether a rule lets the packets of a network pass, in any form: iptables writes the same rule in
/// other ways when it has saved and restored a chain.
fn lets_pass(rule: &ObservedRule, network: IpNet) -> bool {
    const KNOWN: [&str; 6] = ["payload", "bitwise", "cmp", "match", "counter", "immediate"];
    let count = |kind: &str| rule.exprs.iter().filter(|(name, _)| name == kind).count();
    let has_comment = usize::from(rule.xt_match("comment").is_some());
    let address = kernel::nft::match_expr::octets(network.network());
    let whole = usize::from(network.prefix_len()).div_ceil(8);
    rule.accepts()
        && rule.exprs.iter().all(|(name, _)| KNOWN.contains(&name.as_str()))
        && (count("payload"), count("cmp"), count("match")) == (1, 1, has_comment)
        && rule.compared().all(|value| value.len() >= whole && address.starts_with(value))
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
