// SPDX-License-Identifier: Apache-2.0
//! Our own table: what differs from what is wanted, and the one batch that mends it. Packets meet the rules
//! from before it or those from behind it, never a part.

use kernel::nft::{
    BaseChain, Batch, Chain, ChainKind, Hook, MapTo, Nft, ObservedTable, Place, Rule, Set, Table,
};

use super::Plan;
use super::desired::{OwnTable, WantedSet};

const CHAIN: &str = "postrouting";

/// `srcnat`, as others that masquerade: the first that does decides.
const BASE: BaseChain = BaseChain { kind: ChainKind::Nat, hook: Hook::Postrouting, priority: 100 };

/// What makes the table as it should be, or removes it.
pub fn plan(nft: &Nft, table: Table<'_>, wanted: Option<&OwnTable>) -> kernel::Result<Plan> {
    let mut plan = Plan::default();
    let name = format!("table {} {}", table.family.as_str(), table.name);
    match (wanted, nft.table(table)?) {
        (None, None) => {}
        (None, Some(_)) => {
            plan.batch.remove_table(table);
            plan.changes.push(format!("remove {name}"));
        }
        (Some(wanted), None) => {
            make(&mut plan.batch, table, wanted);
            plan.changes.push(format!("make {name}"));
        }
        (Some(wanted), Some(found)) => match damage(&found, table, wanted) {
            Some(why) => {
                plan.batch.remove_table(table);
                make(&mut plan.batch, table, wanted);
                plan.changes.push(format!("make {name} anew: {why}"));
            }
            None => mend(&mut plan, nft, table, wanted)?,
        },
    }
    Ok(plan)
}

fn make(batch: &mut Batch, table: Table<'_>, wanted: &OwnTable) {
    batch.add_table(table, "pod network: made and mended by podwire agent");
    for set in &wanted.sets {
        batch.add_set(&as_set(table, set));
        batch.add_ranges(table, set.name, &set.ranges());
    }
    batch.add_chain(&chain(table));
    write_rules(batch, table, wanted);
}

/// What cannot be mended by rules and elements.
fn damage(found: &ObservedTable, table: Table<'_>, wanted: &OwnTable) -> Option<String> {
    if !found.is_active {
        return Some("it has flags".to_owned());
    }
    if !found.chains.iter().any(|one| one.is_like(&chain(table))) {
        return Some(format!("chain {CHAIN} is missing or changed"));
    }
    if let Some(other) = found.chains.iter().find(|one| one.name != CHAIN) {
        return Some(format!("chain {} is not ours", other.name));
    }
    let is_there = |set: &&WantedSet| found.sets.iter().any(|one| one.is_like(&as_set(table, set)));
    if let Some(missing) = wanted.sets.iter().find(|set| !is_there(set)) {
        return Some(format!("set {} is missing or changed", missing.name));
    }
    let is_other = |name: &str| wanted.sets.iter().all(|set| set.name != name);
    let other = found.sets.iter().find(|one| is_other(&one.name))?;
    Some(format!("set {} is not wanted", other.name))
}

fn mend(plan: &mut Plan, nft: &Nft, table: Table<'_>, wanted: &OwnTable) -> kernel::Result<()> {
    for set in &wanted.sets {
        let ranges = set.ranges();
        if nft.ranges(table, set.name)? != ranges {
            plan.batch.flush_set(table, set.name);
            plan.batch.add_ranges(table, set.name, &ranges);
            let networks: Vec<String> = set.networks.iter().map(ToString::to_string).collect();
            plan.changes.push(format!("fill set {} with {}", set.name, networks.join(", ")));
        }
    }
    let found = nft.rules(table, CHAIN)?;
    let is_right = found.len() == wanted.rules.len()
        && (found.iter().zip(&wanted.rules))
            .all(|(found, rule)| found.is_like(&rule.exprs) && found.comment == rule.comment);
    if !is_right {
        plan.batch.flush_chain(table, CHAIN);
        write_rules(&mut plan.batch, table, wanted);
        plan.changes.push(format!("write the rules of chain {CHAIN}"));
    }
    Ok(())
}

fn write_rules(batch: &mut Batch, table: Table<'_>, wanted: &OwnTable) {
    for rule in &wanted.rules {
        let (exprs, comment) = (rule.exprs.clone(), rule.comment);
        batch.add_rule(&Rule { table, chain: CHAIN, place: Place::Last, exprs, comment });
    }
}

fn chain(table: Table<'_>) -> Chain<'_> {
    Chain { table, name: CHAIN, base: Some(BASE), comment: "" }
}

fn as_set<'a>(table: Table<'a>, set: &'a WantedSet) -> Set<'a> {
    Set {
        table,
        name: set.name,
        key: set.key(),
        data: MapTo::Nothing,
        is_interval: true,
        comment: set.comment,
    }
}
