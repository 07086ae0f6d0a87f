// SPDX-License-Identifier: Apache-2.0
//! What our own table lets pass, chains of iptables may drop all the same: Docker makes that the policy
//! of FORWARD. So there is one rule for all containers in that chain, which lets marked packets pass,
//! in the form that iptables itself writes, for every version of it to read.

use kernel::Family;
use kernel::nft::{
    BaseChain, Batch, Chain, ChainKind, Expr, Hook, MetaKey, Nft, ObservedRule, Op, Place, Reg,
    Rule, Table, Verdict, xtables,
};

use crate::rules;

const COMMENT: &str = "podwire: what the firewall plugin has marked";

/// Chains of the Go plugin: behind its jumps, so that rules of administrators in there come first.
const OF_GO: [&str; 2] = ["CNI-ISOLATION-STAGE-1", "CNI-FORWARD"];

/// How often the rule is tried again when others rewrite the chain meanwhile.
const TRIES: usize = 20;

/// Makes sure that packets with this bit pass.
pub fn ensure(nft: &Nft, family: Family, mark_bit: u8) -> kernel::Result<()> {
    if is_there(nft, family, mark_bit)? {
        return Ok(());
    }
    // Others of ours may have seen the same, and each would insert a rule.
    let _lock = rules::lock()?;
    for _ in 1..TRIES {
        match insert(nft, family, 1 << mark_bit) {
            // The rule that it was to stand behind is gone, or the chain.
            Err(error) if error.is_not_found() => {}
            done => return done,
        }
    }
    insert(nft, family, 1 << mark_bit)
}

fn insert(nft: &Nft, family: Family, bit: u32) -> kernel::Result<()> {
    let rules = nft.rules(filter(family), "FORWARD")?;
    if rules.iter().any(|rule| is_pass(rule, bit)) {
        return Ok(());
    }
    let is_of_go =
        |rule: &&ObservedRule| rule.target.as_deref().is_some_and(|target| OF_GO.contains(&target));
    let behind = rules.iter().rfind(is_of_go);
    let place = behind.map_or(Place::First, |rule| Place::After(rule.handle));
    let has_chain = !rules.is_empty() || nft.has_chain(filter(family), "FORWARD")?;
    match nft.commit(&batch(family, has_chain, place, as_iptables(bit), "")) {
        // The kernel's word also for a match that it lacks; such a kernel has no iptables that could not
        // read the other form.
        Err(error) if error.is_not_found() || error.is_unsupported() => {
            nft.commit(&batch(family, has_chain, place, as_nft(bit), COMMENT))
        }
        done => done,
    }
}

/// Whether they do.
pub fn is_there(nft: &Nft, family: Family, mark_bit: u8) -> kernel::Result<bool> {
    let rules = nft.rules(filter(family), "FORWARD")?;
    Ok(rules.iter().any(|rule| is_pass(rule, 1 << mark_bit)))
}

fn filter(family: Family) -> Table<'static> {
    xtables::table(family, "filter")
}

/// The chain as iptables makes it, where it is missing: what comes later finds our rule in it.
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

/// Whether a rule lets packets with this bit pass and asks for nothing else, in either form: a chain that
/// was saved and restored by another iptables has the other one.
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
            let wanted = [bits, bits].concat();
            let is_plain = info.starts_with(&wanted) && info.get(8) == Some(&0);
            is_plain && count("cmp") == 0 && count("match") == 1 + has_comment
        }
        None => {
            let is_mark = rule.looks_at(MetaKey::Mark) && count("meta") == 1;
            let is_alone = count("cmp") == 1 && count("match") == has_comment;
            is_mark && is_alone && rule.compared().any(|value| value == bits)
        }
    }
}
