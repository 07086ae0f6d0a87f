// SPDX-License-Identifier: Apache-2.0
//! Compares the addresses of this node with its pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Finding, Host, InterfaceTag, Kind, Network, PodInterface, Repair};
use crate::block::{Allocation, Attribute, Block};
use crate::collect::Collected;
use crate::node::{Attachment, JournalEntry};

pub(super) fn check(network: &Network<'_>, host: &Host<'_>) -> Vec<Finding> {
    let used = used_handles(network, host);
    let assigned = host.assigned.values().filter(|entry| entry.attachment.tunnel.is_none());
    let mut findings: Vec<_> =
        assigned.filter_map(|entry| assigned_address(entry, network, host, &used)).collect();
    for (_, block) in network.blocks.values() {
        let own = own_allocations(network, block).filter_map(|(address, allocation)| {
            stored_address(address, allocation, block, host, &used)
        });
        findings.extend(own);
    }
    let in_pools = host.pods.iter().filter(|(one, _)| network.pools.containing(**one).is_some());
    findings.extend(in_pools.filter_map(|(address, pod)| {
        let is_known = host.assigned.get(address).is_some_and(|entry| is_of(entry, pod));
        if is_known { None } else { pod_address(*address, pod, network, host) }
    }));
    findings
}

/// Returns the handles that have an address in use. Their other addresses count as used too.
fn used_handles<'a>(network: &Network<'a>, host: &Host<'a>) -> BTreeSet<&'a str> {
    let is_used = |address: &IpAddr| host.addresses.contains(address);
    let assigned = host.assigned.values().filter(|entry| is_used(&entry.address));
    let mut used: BTreeSet<&str> = assigned.map(|entry| entry.attachment.handle.as_str()).collect();
    used.extend(host.running.iter().map(String::as_str));
    for (_, block) in network.blocks.values() {
        let own = own_allocations(network, block).filter(|(address, _)| is_used(address));
        used.extend(own.filter_map(|(_, allocation)| allocation.attribute.handle()));
    }
    used
}

/// Returns the addresses that pods of this node have in a block.
fn own_allocations<'a>(
    network: &Network<'a>,
    block: &'a Block,
) -> impl Iterator<Item = (IpAddr, &'a Allocation)> {
    let node = network.node;
    let is_own = move |attribute: &Attribute| {
        attribute.node() == Some(node)
            && !attribute.is_cooling()
            && attribute.reserved_by().is_none()
            && !attribute.secondary.contains_key("type")
    };
    let own = block.allocations().filter(move |(_, allocation)| is_own(&allocation.attribute));
    own.map(|(ordinal, allocation)| (block.address(ordinal), allocation))
}

/// Checks an address that the node has assigned.
fn assigned_address(
    entry: &JournalEntry,
    network: &Network<'_>,
    host: &Host<'_>,
    used: &BTreeSet<&str>,
) -> Option<Finding> {
    let JournalEntry { address, attachment, assigned_at, .. } = entry;
    let finding =
        |kind, reason, repair| Some(Finding { kind, object: address.to_string(), reason, repair });
    let user = user(attachment);
    if !used.contains(attachment.handle.as_str()) {
        let reason = match &attachment.netns {
            Some(netns) => format!("{user} is gone: there is no {netns} and no route"),
            None => format!("{user} is gone: there is no route to it"),
        };
        let (address, handle) = (*address, attachment.handle.clone());
        let repair = Collected::Assignment { address, handle, assigned_at: *assigned_at };
        return finding(Kind::Leaked, reason, Repair::Collect(repair));
    }
    if !host.saved.contains(address) {
        let reason = format!("{user} has it, but the journal has no file for it");
        return finding(Kind::Missing, reason, Repair::Save(*address));
    }
    let mut blocks = network.containing(*address).peekable();
    if blocks.peek().is_none() {
        let reason = format!("{user} has it, but it is in no block");
        let repair = match network.pools.containing(*address) {
            Some(_) => Repair::Agent(network.node.to_owned()),
            None => Repair::Manual("create a pool that contains it, or delete the pod".to_owned()),
        };
        return finding(Kind::Missing, reason, repair);
    }
    let is_stored = blocks.any(|block| {
        let stored = block.ordinal(*address).and_then(|ordinal| block.allocation(ordinal));
        stored.is_some_and(|allocation| {
            let attribute = &allocation.attribute;
            // The store learns the user of an address that was set aside a moment later.
            attribute.handle() == Some(&attachment.handle)
                || attribute.reserved_by() == Some(network.node)
        })
    });
    if is_stored {
        return None;
    }
    let reason = format!("{user} has it, but the store does not know");
    finding(Kind::Missing, reason, Repair::Agent(network.node.to_owned()))
}

/// Checks an address that the store has for a pod of this node.
fn stored_address(
    address: IpAddr,
    allocation: &Allocation,
    block: &Block,
    host: &Host<'_>,
    used: &BTreeSet<&str>,
) -> Option<Finding> {
    let attribute = &allocation.attribute;
    let handle = attribute.handle().unwrap_or_default();
    let entry = host.assigned.get(&address);
    if used.contains(handle) || entry.is_some_and(|entry| entry.attachment.handle == handle) {
        return None;
    }
    let object = address.to_string();
    if handle.is_empty() {
        let reason = "it is assigned without a handle, and has no route".to_owned();
        let hint = format!("release it with `podwire ipam release {address}`");
        return Some(Finding { kind: Kind::Leaked, object, reason, repair: Repair::Manual(hint) });
    }
    let (handle, sequence) = (handle.to_owned(), allocation.sequence);
    let repair = Collected::Allocation { block: block.cidr(), address, handle, sequence };
    let reason =
        format!("{} is gone: no namespace is known and there is no route", attribute.user());
    Some(Finding { kind: Kind::Leaked, object, reason, repair: Repair::Collect(repair) })
}

/// Checks an address that an interface of this node has, and that this node has not assigned to it.
fn pod_address(
    address: IpAddr,
    pod: &PodInterface,
    network: &Network<'_>,
    host: &Host<'_>,
) -> Option<Finding> {
    let PodInterface { name, attachment } = pod;
    let (holder, delete) = match attachment {
        Some(InterfaceTag { container_id, .. }) => (
            format!("interface {name} of container {container_id} has it"),
            format!("delete container {container_id}, so that its pod gets another address"),
        ),
        None => (
            format!("interface {name} has it"),
            format!("delete the pod of interface {name}, or the route if there is none"),
        ),
    };
    let object = address.to_string();
    let other = match host.assigned.get(&address) {
        Some(entry) => Some(user(&entry.attachment)),
        None => other_user(address, pod, network),
    };
    if let Some(other) = other {
        let reason = format!("{holder}, but it is assigned to {other}");
        return Some(Finding {
            kind: Kind::Conflict,
            object,
            reason,
            repair: Repair::Manual(delete),
        });
    }
    let repair = match attachment {
        Some(tag) => Repair::Adopt(tag.clone(), address),
        // Calico's interfaces do not name their container.
        None if users(address, network).next().is_some() => return None,
        None => Repair::Manual(delete),
    };
    let reason = format!("{holder}, but it is not assigned");
    Some(Finding { kind: Kind::Missing, object, reason, repair })
}

/// Returns who has an address in the store, except what this node has set aside.
fn users<'a>(address: IpAddr, network: &Network<'a>) -> impl Iterator<Item = &'a Attribute> {
    let node = network.node;
    let stored = network.containing(address).filter_map(move |block| {
        block.allocation(block.ordinal(address)?).map(|allocation| &*allocation.attribute)
    });
    stored.filter(move |attribute| !attribute.is_cooling() && attribute.reserved_by() != Some(node))
}

/// Returns who else than the pod of an interface has its address in the store.
fn other_user(address: IpAddr, pod: &PodInterface, network: &Network<'_>) -> Option<String> {
    let handle = pod.attachment.as_ref().map(InterfaceTag::handle);
    let is_of_pod = |attribute: &Attribute| {
        attribute.node() == Some(network.node)
            && (handle.is_none() || attribute.handle() == handle.as_deref())
    };
    let other = users(address, network).find(|attribute| !is_of_pod(attribute))?;
    Some(match other.node() {
        Some(node) if node != network.node => format!("{} on node {node}", other.user()),
        _ => other.user(),
    })
}

fn is_of(entry: &JournalEntry, pod: &PodInterface) -> bool {
    pod.attachment.as_ref().is_none_or(|tag| tag.handle() == entry.attachment.handle)
}

fn user(attachment: &Attachment) -> String {
    match &attachment.pod {
        Some(pod) => format!("pod {}/{}", pod.namespace, pod.name),
        None => format!("container {}", attachment.container_id),
    }
}
