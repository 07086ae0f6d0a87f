// SPDX-License-Identifier: Apache-2.0
//! A rule as read from the kernel, with the questions that identify rules to find or remove, also
//! rules written by other programs.

use ::netlink::{Attr, Attrs};

use super::{name_in_table, userdata, verdict_chain};
use crate::nft::uapi::{
    HEADER_LEN, NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_EXPR_DATA, NFTA_EXPR_NAME,
    NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_HANDLE, NFTA_RULE_TABLE, NFTA_RULE_USERDATA,
    NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE,
};
use crate::nft::{Expr, MetaKey, Op, Table, Verdict};

// linux/netfilter/nf_tables.h
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFTA_META_KEY: u16 = 2;
const NFTA_MATCH_NAME: u16 = 1;
const NFTA_MATCH_INFO: u16 = 3;
const NFTA_TARGET_NAME: u16 = 1;

/// Name and attributes of an expression.
type RawExpr = (String, Vec<u8>);

/// A rule as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedRule {
    /// Handle, for [`crate::nft::Batch::remove_rule`].
    pub handle: u64,
    /// Chain that the rule jumps or goes to.
    pub target: Option<String>,
    /// Names and attributes of the expressions, as the kernel reports them.
    pub exprs: Vec<RawExpr>,
    /// Comment written by `nft`; a comment written by iptables is a match.
    pub comment: String,
}

impl ObservedRule {
    /// Parses a rule of this chain. Kernels that do not filter a dump by chain list all rules.
    pub(super) fn parse(payload: &[u8], table: Table<'_>, chain: &str) -> Option<Self> {
        let attrs = Attrs::after(payload, HEADER_LEN);
        name_in_table(&attrs, table, NFTA_RULE_TABLE, NFTA_RULE_CHAIN)
            .filter(|name| *name == chain)?;
        let list = attrs.find_kind(NFTA_RULE_EXPRESSIONS).map(|attr| attr.nested());
        let exprs: Vec<_> = list.into_iter().flatten().filter_map(|one| parse_expr(&one)).collect();
        Some(Self {
            handle: attrs.find_kind(NFTA_RULE_HANDLE)?.be64()?,
            target: exprs.iter().find_map(|(name, data)| target_of(name, data)),
            exprs,
            comment: userdata(&attrs, NFTA_RULE_USERDATA).comment,
        })
    }

    /// Returns the values that the rule compares with.
    pub fn compared(&self) -> impl Iterator<Item = &[u8]> {
        self.values("cmp", NFTA_CMP_DATA)
    }

    /// Returns whether all comparisons of the rule are for equality.
    pub(crate) fn compares_only_equal(&self) -> bool {
        let mut cmps = self.exprs.iter().filter(|(name, _)| name == "cmp");
        cmps.all(|(_, data)| {
            let op = Attrs::new(data).find_kind(NFTA_CMP_OP);
            op.and_then(|op| op.be32()) == Some(Op::Eq as u32)
        })
    }

    /// Returns the values that the rule loads, such as the new address of a NAT rule.
    pub fn loaded(&self) -> impl Iterator<Item = &[u8]> {
        self.values("immediate", NFTA_IMMEDIATE_DATA)
    }

    fn values(&self, expr: &'static str, kind: u16) -> impl Iterator<Item = &[u8]> {
        let exprs = self.exprs.iter().filter(move |(name, _)| name == expr);
        exprs.filter_map(move |(_, data)| value_of(&Attrs::new(data).find_kind(kind)?))
    }

    /// Returns whether the rule has the verdict `accept`.
    pub fn accepts(&self) -> bool {
        self.has_verdict(&Verdict::Accept)
    }

    fn has_verdict(&self, verdict: &Verdict) -> bool {
        let mut immediates = self.exprs.iter().filter(|(name, _)| name == "immediate");
        immediates.any(|(_, data)| {
            let data = Attrs::new(data).find_kind(NFTA_IMMEDIATE_DATA);
            let observed = data.and_then(|data| verdict_of(&data));
            observed.is_some_and(|(code, _)| code == verdict.code().cast_unsigned())
        })
    }

    /// Returns whether the rule drops or rejects every packet: it has no condition.
    pub fn blocks_all(&self) -> bool {
        let is_named = |data: &[u8], name| {
            // Targets and matches of iptables have their name in the same attribute.
            let attr = Attrs::new(data).find_kind(NFTA_TARGET_NAME);
            attr.and_then(|attr| attr.str()) == Some(name)
        };
        let is_reject = |expr: &RawExpr| match expr.0.as_str() {
            "reject" => true,
            "target" => is_named(&expr.1, "REJECT"),
            _ => false,
        };
        let is_condition = |expr: &RawExpr| match expr.0.as_str() {
            "match" => !is_named(&expr.1, "comment"),
            "counter" | "immediate" => false,
            _ => !is_reject(expr),
        };
        (self.has_verdict(&Verdict::Drop) || self.exprs.iter().any(is_reject))
            && !self.exprs.iter().any(is_condition)
    }

    /// Returns whether the rule has exactly these expressions. The values of counters do not
    /// matter.
    pub fn is_like(&self, exprs: &[Expr]) -> bool {
        let desired = Expr::written(exprs);
        desired.len() == self.exprs.len() && desired.iter().zip(&self.exprs).all(is_same)
    }

    /// Returns whether the rule reads this metadata of a packet.
    pub(crate) fn looks_at(&self, key: MetaKey) -> bool {
        let metas = self.exprs.iter().filter(|(name, _)| name == "meta");
        let mut keys = metas.map(|(_, data)| Attrs::new(data).find_kind(NFTA_META_KEY));
        keys.any(|attr| attr.and_then(|attr| attr.be32()) == Some(key as u32))
    }

    /// Returns the data of an iptables match of this name.
    pub fn xt_match(&self, name: &str) -> Option<Vec<u8>> {
        let matches = self.exprs.iter().filter(|(kind, _)| kind == "match");
        let mut attrs = matches.map(|(_, data)| Attrs::new(data));
        let has_name = |one: &Attrs<'_>| {
            one.find_kind(NFTA_MATCH_NAME).and_then(|attr| attr.str()) == Some(name)
        };
        let info = attrs.find(has_name)?.find_kind(NFTA_MATCH_INFO)?;
        Some(info.payload.to_vec())
    }
}

fn is_same(((name, desired), (observed_name, observed)): (&RawExpr, &RawExpr)) -> bool {
    if name != observed_name {
        return false;
    }
    let (desired, observed) = (Attrs::new(desired), Attrs::new(observed));
    let is_observed = |one: Attr<'_>| {
        let Some(other) = observed.find_kind(one.kind) else { return false };
        let is_verdict = name == "immediate" && one.kind == NFTA_IMMEDIATE_DATA;
        one.payload == other.payload
            || (is_verdict && verdict_of(&one).is_some_and(|one| Some(one) == verdict_of(&other)))
    };
    // The kernel reports attributes that were not sent as zero.
    let is_desired_or_zero = |one: Attr<'_>| {
        desired.find_kind(one.kind).is_some() || one.payload.iter().all(|byte| *byte == 0)
    };
    name == "counter"
        || (desired.clone().all(is_observed) && observed.clone().all(is_desired_or_zero))
}

/// Returns the code and the chain of a verdict.
fn verdict_of(data: &Attr<'_>) -> Option<(u32, Option<String>)> {
    let verdict = data.nested().find_kind(NFTA_DATA_VERDICT)?.nested();
    let chain = verdict.find_kind(NFTA_VERDICT_CHAIN).and_then(|chain| chain.str());
    Some((verdict.find_kind(NFTA_VERDICT_CODE)?.be32()?, chain.map(str::to_owned)))
}

fn parse_expr(expr: &Attr<'_>) -> Option<RawExpr> {
    let attrs = expr.nested();
    let data = attrs.find_kind(NFTA_EXPR_DATA).map(|data| data.payload.to_vec());
    Some((attrs.find_kind(NFTA_EXPR_NAME)?.str()?.to_owned(), data.unwrap_or_default()))
}

fn value_of<'a>(data: &Attr<'a>) -> Option<&'a [u8]> {
    Some(data.nested().find_kind(NFTA_DATA_VALUE)?.payload)
}

fn target_of(name: &str, data: &[u8]) -> Option<String> {
    let immediate = Attrs::new(data).find_kind(NFTA_IMMEDIATE_DATA)?;
    if name == "immediate" { verdict_chain(&immediate) } else { None }
}
