// SPDX-License-Identifier: Apache-2.0
//! The agent's table: compares it with the desired one and puts the difference in one batch. A
//! packet therefore meets the rules from before the change or those from after it, never a mixture.

use kernel::nft::{
    BaseChain, Batch, Chain, ChainKind, Hook, MapTo, Nft, ObservedTable, Place, Rule, Set, Table,
};

use super::desired::{AgentTable, DesiredSet};
use super::{Change, Plan, TableDamage};

const CHAIN: &str = "postrouting";

/// Priority `srcnat`, like other programs that masquerade: the first one that does decides.
const BASE: BaseChain = BaseChain { kind: ChainKind::Nat, hook: Hook::Postrouting, priority: 100 };

/// Plans the changes of the table. `None` removes it.
pub(super) fn plan(
    nft: &Nft,
    table: Table<'_>,
    desired: Option<&AgentTable>,
) -> kernel::Result<Plan> {
    let mut plan = Plan::default();
    let name = format!("{} {}", table.family.as_str(), table.name);
    match (desired, nft.table(table)?) {
        (None, None) => {}
        (None, Some(_)) => {
            plan.batch.remove_table(table);
            plan.changes.push(Change::RemoveTable(name));
        }
        (Some(desired), None) => {
            create(&mut plan.batch, table, desired);
            plan.changes.push(Change::CreateTable(name));
        }
        (Some(desired), Some(observed)) => match damage(&observed, table, desired) {
            Some(damage) => {
                plan.batch.remove_table(table);
                create(&mut plan.batch, table, desired);
                plan.changes.push(Change::RecreateTable { table: name, damage });
            }
            None => repair(&mut plan, nft, table, desired)?,
        },
    }
    Ok(plan)
}

fn create(batch: &mut Batch, table: Table<'_>, desired: &AgentTable) {
    batch.add_table(table, "pod network: maintained by podwire agent");
    for set in &desired.sets {
        batch.add_set(&to_kernel(table, set));
        batch.add_ranges(table, set.name, &set.ranges());
    }
    batch.add_chain(&chain(table));
    add_rules(batch, table, desired);
}

/// Returns a difference that only a new table removes, if there is one.
fn damage(observed: &ObservedTable, table: Table<'_>, desired: &AgentTable) -> Option<TableDamage> {
    if !observed.is_active {
        return Some(TableDamage::Dormant);
    }
    if !observed.chains.iter().any(|one| one.is_like(&chain(table))) {
        return Some(TableDamage::MissingChain(CHAIN));
    }
    if let Some(foreign) = observed.chains.iter().find(|one| one.name != CHAIN) {
        return Some(TableDamage::ForeignChain(foreign.name.clone()));
    }
    let exists =
        |set: &&DesiredSet| observed.sets.iter().any(|one| one.is_like(&to_kernel(table, set)));
    if let Some(missing) = desired.sets.iter().find(|set| !exists(set)) {
        return Some(TableDamage::MissingSet(missing.name));
    }
    let is_foreign = |name: &str| desired.sets.iter().all(|set| set.name != name);
    let foreign = observed.sets.iter().find(|one| is_foreign(&one.name))?;
    Some(TableDamage::ForeignSet(foreign.name.clone()))
}

/// Repairs elements and rules of an existing table.
fn repair(
    plan: &mut Plan,
    nft: &Nft,
    table: Table<'_>,
    desired: &AgentTable,
) -> kernel::Result<()> {
    for set in &desired.sets {
        let ranges = set.ranges();
        if nft.ranges(table, set.name)? != ranges {
            plan.batch.flush_set(table, set.name);
            plan.batch.add_ranges(table, set.name, &ranges);
            let networks = set.networks.clone();
            plan.changes.push(Change::SetElements { set: set.name, networks });
        }
    }
    let observed = nft.rules(table, CHAIN)?;
    let is_converged = observed.len() == desired.rules.len()
        && (observed.iter().zip(&desired.rules)).all(|(observed, rule)| {
            observed.is_like(&rule.exprs) && observed.comment == rule.comment
        });
    if !is_converged {
        plan.batch.flush_chain(table, CHAIN);
        add_rules(&mut plan.batch, table, desired);
        plan.changes.push(Change::RewriteChain(CHAIN));
    }
    Ok(())
}

fn add_rules(batch: &mut Batch, table: Table<'_>, desired: &AgentTable) {
    for rule in &desired.rules {
        let (exprs, comment) = (rule.exprs.clone(), rule.comment);
        batch.add_rule(&Rule { table, chain: CHAIN, place: Place::Last, exprs, comment });
    }
}

fn chain(table: Table<'_>) -> Chain<'_> {
    Chain { table, name: CHAIN, base: Some(BASE), comment: "" }
}

fn to_kernel<'a>(table: Table<'a>, set: &'a DesiredSet) -> Set<'a> {
    Set {
        table,
        name: set.name,
        key: set.key(),
        data: MapTo::Nothing,
        is_interval: true,
        comment: set.comment,
    }
}
