// SPDX-License-Identifier: Apache-2.0
//! Rules in the form that iptables itself writes, so that every version of iptables can read, save and
//! restore them.

use super::{Expr, ObservedRule, Table};
use crate::types::Family;

/// Returns a table of iptables, such as `filter` or `nat`.
pub fn table(family: Family, name: &str) -> Table<'_> {
    Table { family: family.table_family(), name }
}

/// `-m comment --comment "…"`
pub fn comment(text: &str) -> Expr {
    // struct xt_comment_info, a text that ends with NUL.
    let mut info = text.as_bytes().to_vec();
    info.truncate(255);
    info.resize(256, 0);
    Expr::XtMatch { name: "comment", revision: 0, info }
}

/// Returns the comment of a rule, in the form of iptables or, on a kernel without iptables matches, of `nft`.
pub fn comment_of(rule: &ObservedRule) -> String {
    let Some(info) = rule.xt_match("comment") else { return rule.comment.clone() };
    let text = info.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
