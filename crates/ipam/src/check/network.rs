// SPDX-License-Identifier: Apache-2.0
//! Compares the objects in the store with each other.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Finding, Kind, Network, Repair};
use crate::block::{Attribute, Block};
use crate::calico::AffinityState;
use crate::cidr;
use crate::collect::Collected;
use crate::node::Revision;

/// Number of addresses that a finding names.
const NAMED: usize = 3;

pub(super) fn check(network: &Network<'_>) -> Vec<Finding> {
    let mut findings = invalid(network);
    findings.extend(overlaps(network));
    for (revision, block) in network.blocks.values() {
        findings.extend(departed(network, *revision, block));
        findings.extend(outside(network, block));
    }
    findings.extend(affinities(network));
    findings.extend(handles(network));
    findings
}

/// Returns objects that cannot be read, and pools that are not used.
fn invalid(network: &Network<'_>) -> Vec<Finding> {
    let hint = || Repair::Manual("correct or delete the object".to_owned());
    let malformed = network.malformed.iter().map(|(key, reason)| Finding {
        kind: Kind::Invalid,
        object: key.to_string(),
        reason: (*reason).to_owned(),
        repair: hint(),
    });
    let rejected = network.pools.rejected().iter().map(|pool| Finding {
        kind: Kind::Invalid,
        object: format!("IPPool {}", pool.name),
        reason: pool.reason.to_string(),
        repair: hint(),
    });
    malformed.chain(rejected).collect()
}

/// Returns blocks that contain another block, and addresses that both have assigned.
fn overlaps(network: &Network<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut outer: Option<&Block> = None;
    // A network sorts before the smaller ones in it.
    let mut blocks: Vec<&Block> = network.blocks.values().map(|(_, block)| *block).collect();
    blocks.sort_by_key(|block| (block.cidr().network(), block.cidr().prefix_len()));
    for block in blocks {
        match outer.filter(|outer| cidr::overlap(outer.cidr(), block.cidr())) {
            Some(outer) => findings.extend(overlap(outer, block)),
            None => outer = Some(block),
        }
    }
    findings
}

fn overlap(outer: &Block, inner: &Block) -> Vec<Finding> {
    let owner = |block: &Block| match block.owner() {
        Some(node) => format!("of node {node}"),
        None => "without a node".to_owned(),
    };
    let empty = [inner, outer].into_iter().find(|block| block.is_unused());
    let hint = match empty {
        Some(block) => format!("stop the agent of its node, delete IPAMBlock {}", block.cidr()),
        None => format!("delete the pods of {}", inner.cidr()),
    };
    let (cidr, other) = (inner.cidr(), outer.cidr());
    let mut findings = vec![Finding {
        kind: Kind::Conflict,
        object: cidr.to_string(),
        reason: format!("this block {} overlaps block {other} {}", owner(inner), owner(outer)),
        repair: Repair::Manual(hint),
    }];
    for (ordinal, allocation) in inner.allocations().filter(|(_, a)| is_used(&a.attribute)) {
        let address = inner.address(ordinal);
        let twin = outer.ordinal(address).and_then(|ordinal| outer.allocation(ordinal));
        let Some(twin) = twin.filter(|twin| is_used(&twin.attribute)) else { continue };
        let (one, two) = (allocation.attribute.user(), twin.attribute.user());
        findings.push(Finding {
            kind: Kind::Conflict,
            object: address.to_string(),
            reason: format!("assigned to {one} in block {cidr} and to {two} in block {other}"),
            repair: Repair::Manual("delete one of the pods".to_owned()),
        });
    }
    findings
}

/// Returns whether a pod or a tunnel has the address.
fn is_used(attribute: &Attribute) -> bool {
    !attribute.is_cooling() && attribute.reserved_by().is_none()
}

/// Returns what nodes that do not exist have in a block.
fn departed(network: &Network<'_>, revision: Revision, block: &Block) -> Vec<Finding> {
    let is_departed = |name: &str| name != network.node && !network.nodes.contains(name);
    let mut addresses: BTreeMap<&str, Vec<IpAddr>> = BTreeMap::new();
    for (ordinal, allocation) in block.allocations() {
        let attribute = &allocation.attribute;
        let user = attribute.node().or_else(|| attribute.reserved_by());
        if let Some(node) = user.filter(|node| is_departed(node)) {
            let used = addresses.entry(node).or_default();
            if is_used(attribute) {
                used.push(block.address(ordinal));
            }
        }
    }
    let owner = block.owner().filter(|owner| is_departed(owner));
    let cidr = block.cidr();
    let repair = |node: &str| {
        let (node, block) = (node.to_owned(), cidr);
        Repair::Collect(Collected::Departed { node, block, revision })
    };
    let mut findings = Vec::new();
    if let Some(node) = owner {
        let used = addresses.remove(node).unwrap_or_default().len();
        findings.push(Finding {
            kind: Kind::Stale,
            object: cidr.to_string(),
            reason: format!("block of node {node}, which does not exist; addresses in use: {used}"),
            repair: repair(node),
        });
    }
    findings.extend(addresses.into_iter().map(|(node, used)| {
        let (object, reason) = match used.as_slice() {
            [] => (
                cidr.to_string(),
                format!("node {node}, which does not exist, set addresses aside"),
            ),
            used => (named(used), format!("assigned on node {node}, which does not exist")),
        };
        let kind = if used.is_empty() { Kind::Stale } else { Kind::Leaked };
        Finding { kind, object, reason, repair: repair(node) }
    }));
    findings
}

/// Names the first of several addresses.
fn named(addresses: &[IpAddr]) -> String {
    let first: Vec<String> = addresses.iter().take(NAMED).map(ToString::to_string).collect();
    match addresses.len().saturating_sub(NAMED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Returns the block if it is in no pool.
fn outside(network: &Network<'_>, block: &Block) -> Option<Finding> {
    let cidr = block.cidr();
    if network.pools.containing(cidr.network()).is_some() {
        return None;
    }
    let used = block.counts().used;
    let owner = block.owner();
    let repair = match owner {
        _ if used > 0 => {
            let hint = "create a pool that contains it, or delete its pods";
            Repair::Manual(hint.to_owned())
        }
        Some(node) if node == network.node => {
            Repair::Collect(Collected::EmptyBlock { block: cidr })
        }
        Some(node) => Repair::Agent(node.to_owned()),
        None => Repair::Collect(Collected::EndCooldowns { block: cidr }),
    };
    let of = owner.map(|node| format!(" of node {node}")).unwrap_or_default();
    let reason = format!("block{of} is in no pool; addresses in use: {used}");
    Some(Finding { kind: Kind::Outside, object: cidr.to_string(), reason, repair })
}

/// Compares affinities with blocks.
fn affinities(network: &Network<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |kind, node: &str, block: IpNet, reason: String, repair| {
        let object = format!("BlockAffinity {block} of node {node}");
        findings.push(Finding { kind, object, reason, repair });
    };
    for ((node, cidr), (revision, affinity)) in &network.affinities {
        let block = network.blocks.get(cidr).map(|(_, block)| *block);
        let owner = block.and_then(Block::owner);
        if owner == Some(*node) {
            continue;
        }
        if !network.nodes.contains(node) && *node != network.node {
            let repair = Collected::DepartedAffinity {
                node: (*node).to_owned(),
                block: *cidr,
                revision: *revision,
            };
            let reason = "the node does not exist".to_owned();
            add(Kind::Stale, node, *cidr, reason, Repair::Collect(repair));
            continue;
        }
        let repair = Repair::Agent((*node).to_owned());
        match owner {
            Some(owner) => {
                let reason = format!("the block belongs to node {owner}");
                add(Kind::Conflict, node, *cidr, reason, repair);
            }
            // A claim begins with a pending affinity.
            None if affinity.state == AffinityState::Pending => {}
            None => {
                let reason = match block {
                    Some(_) => "the block belongs to no node",
                    None => "the block does not exist",
                };
                add(Kind::Stale, node, *cidr, reason.to_owned(), repair);
            }
        }
    }
    for (cidr, (_, block)) in &network.blocks {
        let Some(owner) = block.owner().filter(|owner| network.nodes.contains(owner)) else {
            continue;
        };
        if !network.affinities.contains_key(&(owner, *cidr)) {
            let reason = "it does not exist, but the block belongs to the node".to_owned();
            add(Kind::Missing, owner, *cidr, reason, Repair::Agent(owner.to_owned()));
        }
    }
    findings
}

/// Compares handles with the addresses that have them.
fn handles(network: &Network<'_>) -> Vec<Finding> {
    let Some(handles) = &network.handles else { return Vec::new() };
    let mut nodes: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for (_, block) in network.blocks.values() {
        let used = block.allocations().filter(|(_, allocation)| is_used(&allocation.attribute));
        nodes.extend(used.filter_map(|(_, allocation)| {
            Some((allocation.attribute.handle()?, allocation.attribute.node()))
        }));
    }
    let object = |id: &str| format!("IPAMHandle {id}");
    let unused = handles.iter().filter(|(id, _)| !nodes.contains_key(**id));
    let unused = unused.map(|(id, revision)| Finding {
        kind: Kind::Stale,
        object: object(id),
        reason: "no address has it".to_owned(),
        repair: Repair::Collect(Collected::Handle { id: (*id).to_owned(), revision: *revision }),
    });
    let missing = nodes.iter().filter(|(id, _)| !handles.contains_key(**id));
    let missing = missing.filter_map(|(id, node)| {
        // The addresses of a departed node are released with its blocks.
        let node = node.filter(|node| network.nodes.contains(node))?;
        Some(Finding {
            kind: Kind::Missing,
            object: object(id),
            reason: "it does not exist, but addresses have it".to_owned(),
            repair: Repair::Agent(node.to_owned()),
        })
    });
    unused.chain(missing).collect()
}
