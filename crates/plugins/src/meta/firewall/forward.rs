// SPDX-License-Identifier: Apache-2.0
//! Packets that our table accepts can still be dropped by a chain of iptables: Docker sets the
//! policy of FORWARD to DROP. One rule in that chain accepts the marked packets of all containers.
//! It has the form that iptables itself writes, so that every version of iptables can read it.

use kernel::Family;
use kernel::nft::{
    BaseChain, Batch, Chain, ChainKind, Expr, Hook, MetaKey, Nft, ObservedRule, Op, Place, Reg,
    Rule, Table, Verdict, xtables,
};

use crate::nftables;

const COMMENT: &str = "podwire: what the firewall plugin has marked";

/// The Go plugin's chains. Our rule comes after the jumps to them, so that the administrator's
/// rules there apply first.
const GO_CHAINS: [&str; 2] = ["CNI-ISOLATION-STAGE-1", "CNI-FORWARD"];

/// Maximum number of attempts if other programs rewrite the chain.
const MAX_ATTEMPTS: usize = 20;

/// Ensures that packets with this mark bit are accepted.
pub fn ensure(nft: &Nft, family: Family, mark_bit: u8) -> kernel::Result<()> {
    if exists(nft, family, mark_bit)? {
        return Ok(());
    }
    // Another plugin process may insert the same rule at the same time.
    let _lock = nftables::lock()?;
    for _ in 1..MAX_ATTEMPTS {
        match insert(nft, family, 1 << mark_bit) {
            // The chain, or the rule that ours was to follow, was removed meanwhile.
            Err(error) if error.is_not_found() => {}
            other => return other,
        }
    }
    insert(nft, family, 1 << mark_bit)
}

fn insert(nft: &Nft, family: Family, bit: u32) -> kernel::Result<()> {
    let rules = nft.rules(filter(family), "FORWARD")?;
    if rules.iter().any(|rule| is_pass(rule, bit)) {
        return Ok(());
    }
    let is_go_jump = |rule: &&ObservedRule| {
        rule.target.as_deref().is_some_and(|target| GO_CHAINS.contains(&target))
    };
    let last_jump = rules.iter().rfind(is_go_jump);
    let place = last_jump.map_or(Place::First, |rule| Place::After(rule.handle));
    let has_chain = !rules.is_empty() || nft.has_chain(filter(family), "FORWARD")?;
    match nft.commit(&batch(family, has_chain, place, as_iptables(bit), "")) {
        // The kernel also returns ENOENT if it lacks the match. Every iptables that works with such
        // a kernel can read the other form.
        Err(error) if error.is_not_found() || error.is_unsupported() => {
            nft.commit(&batch(family, has_chain, place, as_nft(bit), COMMENT))
        }
        other => other,
    }
}

/// Whether the rule exists.
pub fn exists(nft: &Nft, family: Family, mark_bit: u8) -> kernel::Result<bool> {
    let rules = nft.rules(filter(family), "FORWARD")?;
    Ok(rules.iter().any(|rule| is_pass(rule, 1 << mark_bit)))
}

fn filter(family: Family) -> Table<'static> {
    xtables::table(family, "filter")
}

/// Adds the chain as iptables creates it if it is missing; a program that uses it later finds our
/// rule there.
fn batch(
    family: Family,
    has_chain: bool,
    place: Place,
    exprs: Vec<Expr>,
    comment: &'static str,
) -> Batch {
    let table = filter(family);
    let mut batch = Batch::new();
    if !has_chain {
        let base = BaseChain { kind: ChainKind::Filter, hook: Hook::Forward, priority: 0 };
        batch.add_table(table, "");
        batch.add_chain(&Chain { table, name: "FORWARD", base: Some(base), comment: "" });
    }
    batch.add_rule(&Rule { table, chain: "FORWARD", place, exprs, comment });
    batch
}

/// `-m mark --mark 0x1000/0x1000 -m comment --comment "…" -j ACCEPT`
fn as_iptables(bit: u32) -> Vec<Expr> {
    // struct xt_mark_mtinfo1: mark, mask, invert.
    let mut mark = [bit.to_ne_bytes(), bit.to_ne_bytes()].concat();
    mark.resize(16, 0);
    vec![
        Expr::XtMatch { name: "mark", revision: 1, info: mark },
        xtables::comment(COMMENT),
        Expr::Counter,
        Expr::Verdict(Verdict::Accept),
    ]
}

/// `meta mark & 0x1000 == 0x1000 counter accept`, which iptables writes since 1.8.8.
fn as_nft(bit: u32) -> Vec<Expr> {
    let mask = bit.to_ne_bytes().to_vec();
    vec![
        Expr::Meta(MetaKey::Mark, Reg(0)),
        Expr::Bitwise { reg: Reg(0), mask: mask.clone(), xor: vec![0; 4] },
        Expr::Cmp(Reg(0), Op::Eq, mask),
        Expr::Counter,
        Expr::Verdict(Verdict::Accept),
    ]
}

/// Whether a rule accepts packets with this bit and has no other condition, in either form: if
/// another version of iptables saved and restored the chain, the rule has the other form.
fn is_pass(rule: &ObservedRule, bit: u32) -> bool {
    const KNOWN: [&str; 6] = ["match", "meta", "bitwise", "cmp", "counter", "immediate"];
    let bits = bit.to_ne_bytes();
    let count = |kind: &str| rule.exprs.iter().filter(|(name, _)| name == kind).count();
    let has_comment = usize::from(rule.xt_match("comment").is_some());
    if !rule.accepts() || rule.exprs.iter().any(|(name, _)| !KNOWN.contains(&name.as_str())) {
        return false;
    }
    match rule.xt_match("mark") {
        Some(info) => {
            let expected = [bits, bits].concat();
            let is_plain = info.starts_with(&expected) && info.get(8) == Some(&0);
            is_plain && count("cmp") == 0 && count("match") == 1 + has_comment
        }
        None => {
            let is_mark = rule.looks_at(MetaKey::Mark) && count("meta") == 1;
            let is_only = count("cmp") == 1 && count("match") == has_comment;
            is_mark && is_only && rule.compared().any(|value| value == bits)
        }
    }
}
