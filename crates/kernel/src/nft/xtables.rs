// SPDX-License-Identifier: Apache-2.0
//! Rules in the form that iptables itself writes, so that every version of iptables can read, save
//! and restore them, and the accept rules that podwire adds to iptables' chain `FORWARD`.

use ipnet::IpNet;

use super::match_expr::{match_network, octets};
use super::{Expr, MetaKey, ObservedRule, Op, Place, Reg, Rule, Table, Verdict};
use crate::types::Family;

/// Table with the chain [`FORWARD`].
pub const FILTER: &str = "filter";
/// Chain of forwarded packets. Docker sets its policy to drop, and no accept rule in another table
/// can override that.
pub const FORWARD: &str = "FORWARD";

/// Returns a table of iptables, such as [`FILTER`] or `nat`.
pub fn table(family: Family, name: &str) -> Table<'_> {
    Table { family: family.table_family(), name }
}

/// `-m comment --comment "…"`
fn comment(text: &str) -> Expr {
    // struct xt_comment_info, a text that ends with NUL.
    let mut info = text.as_bytes().to_vec();
    info.truncate(255);
    info.resize(256, 0);
    Expr::XtMatch { name: "comment", revision: 0, info }
}

/// Returns the comment of a rule, in the form of iptables or, on a kernel without iptables matches,
/// of `nft`.
pub fn comment_of(rule: &ObservedRule) -> String {
    let Some(info) = rule.xt_match("comment") else { return rule.comment.clone() };
    let text = info.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Form in which a rule is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// With matches of iptables.
    Iptables,
    /// With expressions of `nft`, for kernels that lack the matches.
    Nft,
}

/// Forwarded packets that an accept rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarded {
    /// Packets from this network.
    From(IpNet),
    /// Packets to this network.
    To(IpNet),
    /// Packets with this bit in their mark.
    Marked(u32),
}

impl Forwarded {
    /// Builds a rule of the chain [`FORWARD`] that accepts these packets.
    pub fn accept_rule<'a>(
        self,
        family: Family,
        place: Place,
        text: &'a str,
        form: Form,
    ) -> Rule<'a> {
        let mut exprs = self.match_exprs(form);
        let text = match form {
            Form::Iptables => {
                exprs.push(comment(text));
                ""
            }
            Form::Nft => text,
        };
        exprs.extend([Expr::Counter, Expr::Verdict(Verdict::Accept)]);
        Rule { table: table(family, FILTER), chain: FORWARD, place, exprs, comment: text }
    }

    fn match_exprs(self, form: Form) -> Vec<Expr> {
        let match_address = |load: fn(Family, Reg) -> Expr, network: IpNet| {
            let mut exprs = vec![load(Family::of(network.addr()), Reg(0))];
            exprs.extend(match_network(Reg(0), Op::Eq, network));
            exprs
        };
        match (self, form) {
            // -s 10.5.0.0/16
            (Forwarded::From(network), _) => match_address(Family::load_source, network),
            // -d 10.5.0.0/16
            (Forwarded::To(network), _) => match_address(Family::load_destination, network),
            // -m mark --mark 0x1000/0x1000
            (Forwarded::Marked(bit), Form::Iptables) => {
                // struct xt_mark_mtinfo1: mark, mask, invert.
                let mut info = [bit.to_ne_bytes(), bit.to_ne_bytes()].concat();
                info.resize(16, 0);
                vec![Expr::XtMatch { name: "mark", revision: 1, info }]
            }
            // meta mark & 0x1000 == 0x1000, which iptables writes since 1.8.8
            (Forwarded::Marked(bit), Form::Nft) => {
                let mask = bit.to_ne_bytes().to_vec();
                vec![
                    Expr::Meta(MetaKey::Mark, Reg(0)),
                    Expr::Bitwise { reg: Reg(0), mask: mask.clone(), xor: vec![0; 4] },
                    Expr::Cmp(Reg(0), Op::Eq, mask),
                ]
            }
        }
    }

    /// Returns whether a rule accepts these packets without a further condition, in any form:
    /// another version of iptables that saves and restores a chain writes the same rule in another
    /// form.
    pub fn is_accepted_by(self, rule: &ObservedRule) -> bool {
        if !rule.accepts() || !rule.compares_only_equal() {
            return false;
        }
        let count = |kind: &str| rule.exprs.iter().filter(|(name, _)| name == kind).count();
        let comments = usize::from(rule.xt_match("comment").is_some());
        match self {
            Forwarded::From(network) | Forwarded::To(network) => {
                let address = octets(network.network());
                let prefix_bytes = usize::from(network.prefix_len()).div_ceil(8);
                let is_prefix =
                    |value: &[u8]| value.len() >= prefix_bytes && address.starts_with(value);
                has_only(rule, &["payload", "bitwise", "cmp", "match", "counter", "immediate"])
                    && (count("payload"), count("cmp"), count("match")) == (1, 1, comments)
                    && rule.compared().all(is_prefix)
            }
            Forwarded::Marked(bit) => {
                let bits = bit.to_ne_bytes();
                let is_marked = match rule.xt_match("mark") {
                    Some(info) => {
                        let is_equal = info.starts_with(&[bits, bits].concat());
                        let is_inverted = info.get(8) != Some(&0);
                        let is_single = count("cmp") == 0 && count("match") == 1 + comments;
                        is_equal && !is_inverted && is_single
                    }
                    None => {
                        let is_mark = rule.looks_at(MetaKey::Mark) && count("meta") == 1;
                        let is_single = count("cmp") == 1 && count("match") == comments;
                        is_mark && is_single && rule.compared().any(|value| value == bits)
                    }
                };
                has_only(rule, &["match", "meta", "bitwise", "cmp", "counter", "immediate"])
                    && is_marked
            }
        }
    }
}

/// Returns whether a rule has no other expressions than these.
fn has_only(rule: &ObservedRule, names: &[&str]) -> bool {
    rule.exprs.iter().all(|(name, _)| names.contains(&name.as_str()))
}
