// SPDX-License-Identifier: Apache-2.0
//! A rule that is there, and what it says: enough to tell rules of others apart that we have to
//! remove or to look for.

use ::netlink::{Attr, Attrs};

use super::{
    HEADER_LEN, NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_RULE_CHAIN, NFTA_RULE_TABLE,
    NFTA_VERDICT_CHAIN, chain_of, userdata,
};
use crate::nft::{Expr, MetaKey, Table, Verdict};

// linux/netfilter/nf_tables.h
const NFTA_RULE_HANDLE: u16 = 3;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_RULE_USERDATA: u16 = 7;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFTA_META_KEY: u16 = 2;
const NFTA_MATCH_NAME: u16 = 1;
const NFTA_MATCH_INFO: u16 = 3;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_TARGET_NAME: u16 = 1;

/// Name and attributes of an instruction.
type Instruction = (String, Vec<u8>);

/// A rule that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedRule {
    /// Its number, for [`crate::nft::Batch::remove_rule`].
    pub handle: u64,
    /// The chain that it jumps or goes to.
    pub target: Option<String>,
    /// Names of its instructions with their attributes as the kernel tells them.
    pub exprs: Vec<Instruction>,
    /// Its comment, as `nft` writes one; that of iptables is a match.
    pub comment: String,
}

impl ObservedRule {
    /// Kernels that do not filter a dump by chain tell of all rules.
    pub(super) fn read(payload: &[u8], table: Table<'_>, chain: &str) -> Option<Self> {
        let attrs = Attrs::after(payload, HEADER_LEN);
        let is = |kind, wanted| attrs.find_kind(kind).and_then(|attr| attr.str()) == Some(wanted);
        if !is(NFTA_RULE_TABLE, table.name) || !is(NFTA_RULE_CHAIN, chain) {
            return None;
        }
        let list = attrs.find_kind(NFTA_RULE_EXPRESSIONS).map(|attr| attr.nested());
        let exprs: Vec<_> = list.into_iter().flatten().filter_map(|one| read_expr(&one)).collect();
        Some(Self {
            handle: attrs.find_kind(NFTA_RULE_HANDLE)?.be64()?,
            target: exprs.iter().find_map(|(name, data)| target_of(name, data)),
            exprs,
            comment: userdata(&attrs, NFTA_RULE_USERDATA).comment,
        })
    }

    /// The values that it compares something with.
    pub fn compared(&self) -> impl Iterator<Item = &[u8]> {
        self.values("cmp", NFTA_CMP_DATA)
    }

    /// The values that it loads, as a change of addresses does.
    pub fn loaded(&self) -> impl Iterator<Item = &[u8]> {
        self.values("immediate", NFTA_IMMEDIATE_DATA)
    }

    fn values(&self, expr: &'static str, kind: u16) -> impl Iterator<Item = &[u8]> {
        let exprs = self.exprs.iter().filter(move |(name, _)| name == expr);
        exprs.filter_map(move |(_, data)| value_of(&Attrs::new(data).find_kind(kind)?))
    }

    /// Whether it lets packets pass.
    pub fn accepts(&self) -> bool {
        self.has_verdict(&Verdict::Accept)
    }

    fn has_verdict(&self, wanted: &Verdict) -> bool {
        let mut loaded = self.exprs.iter().filter(|(name, _)| name == "immediate");
        loaded.any(|(_, data)| {
            let data = Attrs::new(data).find_kind(NFTA_IMMEDIATE_DATA);
            let verdict = data.and_then(|data| verdict_of(&data));
            verdict.is_some_and(|(code, _)| code == wanted.code().cast_unsigned())
        })
    }

    /// Whether no packet gets past it: it drops or rejects and asks for nothing.
    pub fn blocks_all(&self) -> bool {
        let is_target = |data: &[u8], wanted| {
            // A match has its name in the same place.
            let name = Attrs::new(data).find_kind(NFTA_TARGET_NAME);
            name.and_then(|name| name.str()) == Some(wanted)
        };
        let is_reject = |one: &Instruction| match one.0.as_str() {
            "reject" => true,
            "target" => is_target(&one.1, "REJECT"),
            _ => false,
        };
        let asks = |one: &Instruction| match one.0.as_str() {
            "match" => !is_target(&one.1, "comment"),
            "counter" | "immediate" => false,
            _ => !is_reject(one),
        };
        (self.has_verdict(&Verdict::Drop) || self.exprs.iter().any(is_reject))
            && !self.exprs.iter().any(asks)
    }

    /// Whether it has exactly these instructions. Counters are left out: they count.
    pub fn is_like(&self, exprs: &[Expr]) -> bool {
        let wanted = Expr::written(exprs);
        wanted.len() == self.exprs.len() && wanted.iter().zip(&self.exprs).all(is_same)
    }

    /// Whether it looks at this about a packet.
    pub fn looks_at(&self, key: MetaKey) -> bool {
        let keys = self.exprs.iter().filter(|(name, _)| name == "meta");
        let mut keys = keys.map(|(_, data)| Attrs::new(data).find_kind(NFTA_META_KEY));
        keys.any(|found| found.and_then(|found| found.be32()) == Some(key as u32))
    }

    /// The structure of a match of iptables that it has.
    pub fn xt_match(&self, name: &str) -> Option<Vec<u8>> {
        let matches = self.exprs.iter().filter(|(kind, _)| kind == "match");
        let mut attrs = matches.map(|(_, data)| Attrs::new(data));
        let is_it = |one: &Attrs<'_>| {
            one.find_kind(NFTA_MATCH_NAME).and_then(|found| found.str()) == Some(name)
        };
        let info = attrs.find(is_it)?.find_kind(NFTA_MATCH_INFO)?;
        Some(info.payload.to_vec())
    }
}

fn is_same(((name, wanted), (found_name, found)): (&Instruction, &Instruction)) -> bool {
    if name != found_name {
        return false;
    }
    let (wanted, found) = (Attrs::new(wanted), Attrs::new(found));
    let is_there = |one: Attr<'_>| {
        let Some(other) = found.find_kind(one.kind) else { return false };
        let is_verdict = name == "immediate" && one.kind == NFTA_IMMEDIATE_DATA;
        one.payload == other.payload
            || (is_verdict && verdict_of(&one).is_some_and(|one| Some(one) == verdict_of(&other)))
    };
    // What we do not write is zero: the kernel tells it all the same.
    let is_nothing = |one: Attr<'_>| {
        wanted.find_kind(one.kind).is_some() || one.payload.iter().all(|byte| *byte == 0)
    };
    name == "counter" || (wanted.clone().all(is_there) && found.clone().all(is_nothing))
}

/// Number and chain of a verdict.
fn verdict_of(data: &Attr<'_>) -> Option<(u32, Option<String>)> {
    let verdict = data.nested().find_kind(NFTA_DATA_VERDICT)?.nested();
    let chain = verdict.find_kind(NFTA_VERDICT_CHAIN).and_then(|chain| chain.str());
    Some((verdict.find_kind(NFTA_VERDICT_CODE)?.be32()?, chain.map(str::to_owned)))
}

fn read_expr(one: &Attr<'_>) -> Option<(String, Vec<u8>)> {
    let attrs = one.nested();
    let data = attrs.find_kind(NFTA_EXPR_DATA).map(|data| data.payload.to_vec());
    Some((attrs.find_kind(NFTA_EXPR_NAME)?.str()?.to_owned(), data.unwrap_or_default()))
}

fn value_of<'a>(data: &Attr<'a>) -> Option<&'a [u8]> {
    Some(data.nested().find_kind(NFTA_DATA_VALUE)?.payload)
}

fn target_of(name: &str, data: &[u8]) -> Option<String> {
    let immediate = Attrs::new(data).find_kind(NFTA_IMMEDIATE_DATA)?;
    if name == "immediate" { chain_of(&immediate) } else { None }
}
