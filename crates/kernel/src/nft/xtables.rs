// SPDX-License-Identifier: Apache-2.0
//! Rules in the form that iptables itself writes, for every version of it to read, save and restore.

use super::{Expr, ObservedRule, Table};
use crate::types::Family;

/// A table of iptables' own: `filter`, `nat`, …
pub fn table(family: Family, name: &str) -> Table<'_> {
    Table { family: family.table_family(), name }
}

/// `-m comment --comment "…"`
pub fn comment(text: &str) -> Expr {
    // struct xt_comment_info, which ends with a zero.
    let mut info = text.as_bytes().to_vec();
    info.truncate(255);
    info.resize(256, 0);
    Expr::XtMatch { name: "comment", revision: 0, info }
}

/// What a rule says about itself, in either form: a kernel without matches of iptables has that of `nft`.
pub fn comment_of(rule: &ObservedRule) -> String {
    let Some(info) = rule.xt_match("comment") else { return rule.comment.clone() };
    let text = info.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
