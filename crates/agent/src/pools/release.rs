// SPDX-License-Identifier: Apache-2.0
//! The release of one address that the command `ipam release` asks for: who has the address, and whether it may be
//! released here. Pure.

use std::net::IpAddr;

use ipam::block::{Allocation, Attribute, Block};
use ipam::collect::Collected;
use ipam::node::JournalEntry;

use super::core::Core;
use super::observe::Observed;

/// How an address is released.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// As DEL does it.
    Attachment { handle: String, interface: String },
    /// Nothing on this node has it.
    Collect(Collected),
}

/// Returns how to release an address, or why not. With `force` also that of an existing pod of this node.
pub(super) fn plan(
    core: &Core,
    observed: &Observed,
    address: IpAddr,
    force: bool,
) -> Result<Plan, String> {
    let node = core.node();
    let assigned = node.assignments().find(|entry| entry.address == address);
    if let Some(JournalEntry { attachment, .. }) = assigned {
        if attachment.tunnel.is_some() {
            return Err(format!("{address} is the address of a tunnel of this node"));
        }
        let user = match &attachment.pod {
            Some(pod) => format!("pod {}/{}", pod.namespace, pod.name),
            None => format!("container {}", attachment.container_id),
        };
        if !force {
            refuse_used(observed, address, &attachment.handle, &user)?;
        }
        let (handle, interface) = (attachment.handle.clone(), attachment.interface.clone());
        return Ok(Plan::Attachment { handle, interface });
    }
    let Some((block, allocation)) = stored(core, address) else {
        return Err(match node.settings().pools.containing(address) {
            Some(_) => format!("{address} is not assigned"),
            None => format!("{address} is in no pool"),
        });
    };
    let attribute = &allocation.attribute;
    if attribute.is_cooling() || attribute.reserved_by().is_some() {
        return Err(format!("{address} is not assigned: {}", unassigned(attribute)));
    }
    let (user, on) = (attribute.user(), attribute.node().unwrap_or_default());
    let is_here = on == node.name();
    if !is_here && core.node_names().contains(on) {
        return Err(format!("{address} is assigned to {user} on node {on}: release it there"));
    }
    if is_here && !force {
        refuse_used(observed, address, attribute.handle().unwrap_or_default(), &user)?;
    }
    let handle = attribute.handle().unwrap_or_default().to_owned();
    let (block, sequence) = (block.cidr(), allocation.sequence);
    Ok(Plan::Collect(Collected::Allocation { block, address, handle, sequence }))
}

fn refuse_used(
    observed: &Observed,
    address: IpAddr,
    handle: &str,
    user: &str,
) -> Result<(), String> {
    let why = match (observed.running.contains(handle), observed.addresses.contains(&address)) {
        (true, _) => "its network namespace exists",
        (false, true) => "this node has a route to it",
        (false, false) => return Ok(()),
    };
    Err(format!("{user} has {address}, and {why}: delete the pod, or pass --force"))
}

fn unassigned(attribute: &Attribute) -> String {
    match attribute.reserved_by() {
        Some(node) => format!("node {node} has set it aside for its pods"),
        None => "it was released and is in its cool-down".to_owned(),
    }
}

fn stored(core: &Core, address: IpAddr) -> Option<(&Block, &Allocation)> {
    core.node().blocks().find_map(|block| Some((block, block.allocation(block.ordinal(address)?)?)))
}
