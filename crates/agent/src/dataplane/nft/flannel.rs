// SPDX-License-Identifier: Apache-2.0
//! Finds the rules that flanneld leaves behind, so that they can be removed when the agent takes
//! over its node. Rules written by `iptables-nft` are nf_tables rules. Rules of `iptables-legacy`
//! cannot be changed through nf_tables; for those, the agent reports the commands that remove them.

use kernel::Family;
use kernel::iptables_legacy;
use kernel::nft::xtables::{self, comment_of};
use kernel::nft::{Nft, ObservedRule, Table};

use super::{Change, Plan, Problem};

/// Table, base chain, flannel's chain, and the comment of flannel's rules in the base chain.
const CHAINS: [(&str, &str, &str, &str); 2] = [
    ("nat", "POSTROUTING", "FLANNEL-POSTRTG", "flanneld masq"),
    ("filter", "FORWARD", "FLANNEL-FWD", "flanneld forward"),
];

/// Tables that flannel creates if it is configured to use nf_tables.
const TABLES: [(Family, &str); 2] = [(Family::V4, "flannel-ipv4"), (Family::V6, "flannel-ipv6")];

/// Plans the removal of flannel's rules, chains and tables.
pub(super) fn plan(nft: &Nft) -> kernel::Result<Plan> {
    let mut plan = Plan::default();
    for family in [Family::V4, Family::V6] {
        for (name, base_chain, chain, comment) in CHAINS {
            let table = xtables::table(family, name);
            let is_flannel = |rule: &ObservedRule| {
                rule.target.as_deref() == Some(chain) || comment_of(rule) == comment
            };
            let shown = format!("{} {name}", table.family.as_str());
            for rule in nft.rules(table, base_chain)?.iter().filter(|rule| is_flannel(rule)) {
                plan.batch.remove_rule(table, base_chain, rule.handle);
                let chain = format!("{shown} {base_chain}");
                plan.changes.push(Change::RemoveFlannelRule { chain });
            }
            if nft.has_chain(table, chain)? {
                plan.batch.flush_chain(table, chain);
                plan.batch.remove_chain(table, chain);
                plan.changes.push(Change::RemoveFlannelChain(format!("{shown} {chain}")));
            }
        }
    }
    for (family, name) in TABLES {
        let table = Table { family: family.table_family(), name };
        if nft.has_table(table)? {
            plan.batch.remove_table(table);
            let name = format!("{} {name}", table.family.as_str());
            plan.changes.push(Change::RemoveFlannelTable(name));
        }
    }
    Ok(plan)
}

/// Returns a problem for each of flannel's chains in `iptables-legacy`.
pub(super) fn legacy_rules() -> Vec<Problem> {
    let mut problems = Vec::new();
    for family in [Family::V4, Family::V6] {
        let program = if family == Family::V4 { "iptables-legacy" } else { "ip6tables-legacy" };
        for (table, base_chain, chain, comment) in CHAINS {
            if iptables_legacy::mentions(family, table, chain).unwrap_or(false) {
                let run = format!("{program} -t {table}");
                problems.push(Problem::LegacyFlannel(format!(
                    "{run} -D {base_chain} -m comment --comment \"{comment}\" -j {chain}; \
                     {run} -F {chain}; {run} -X {chain}"
                )));
            }
        }
    }
    problems
}
