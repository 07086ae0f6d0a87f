// SPDX-License-Identifier: Apache-2.0
//! What flanneld has left in the packet filter, to be removed when its node is taken over. Rules that
//! `iptables-nft` made are rules of nf_tables, and are reached without that program; those of
//! `iptables-legacy` are not, and all we can do is to say what to run.

use kernel::Family;
use kernel::iptables_legacy;
use kernel::nft::xtables::{self, comment_of};
use kernel::nft::{Nft, ObservedRule, Table};

use super::{Plan, Problem};

/// Table, chain that packets enter, flannel's own chain, and the comment that its rules bear.
const CHAINS: [(&str, &str, &str, &str); 2] = [
    ("nat", "POSTROUTING", "FLANNEL-POSTRTG", "flanneld masq"),
    ("filter", "FORWARD", "FLANNEL-FWD", "flanneld forward"),
];

/// Where it was told to use nf_tables.
const TABLES: [(Family, &str); 2] = [(Family::V4, "flannel-ipv4"), (Family::V6, "flannel-ipv6")];

/// How the removal of a rule is told.
pub const REMOVAL: &str = "remove flannel's rule";

/// What removes all of it that can be reached.
pub fn plan(nft: &Nft) -> kernel::Result<Plan> {
    let mut plan = Plan::default();
    for family in [Family::V4, Family::V6] {
        for (name, from, chain, comment) in CHAINS {
            let table = xtables::table(family, name);
            let is_flannels = |rule: &ObservedRule| {
                rule.target.as_deref() == Some(chain) || comment_of(rule) == comment
            };
            let shown = format!("{} {name}", table.family.as_str());
            for rule in nft.rules(table, from)?.iter().filter(|rule| is_flannels(rule)) {
                plan.batch.remove_rule(table, from, rule.handle);
                plan.changes.push(format!("{REMOVAL} of chain {shown} {from}"));
            }
            if nft.has_chain(table, chain)? {
                plan.batch.flush_chain(table, chain);
                plan.batch.remove_chain(table, chain);
                plan.changes.push(format!("remove chain {shown} {chain}"));
            }
        }
    }
    for (family, name) in TABLES {
        let table = Table { family: family.table_family(), name };
        if nft.has_table(table)? {
            plan.batch.remove_table(table);
            plan.changes.push(format!("remove table {} {name}", table.family.as_str()));
        }
    }
    Ok(plan)
}

/// What is out of reach.
pub fn out_of_reach() -> Vec<Problem> {
    let mut problems = Vec::new();
    for family in [Family::V4, Family::V6] {
        let program = if family == Family::V4 { "iptables-legacy" } else { "ip6tables-legacy" };
        for (table, from, chain, comment) in CHAINS {
            if iptables_legacy::mentions(family, table, chain).unwrap_or(false) {
                let run = format!("{program} -t {table}");
                problems.push(Problem::OldFlannel(format!(
                    "{run} -D {from} -m comment --comment \"{comment}\" -j {chain}; \
                     {run} -F {chain}; {run} -X {chain}"
                )));
            }
        }
    }
    problems
}
