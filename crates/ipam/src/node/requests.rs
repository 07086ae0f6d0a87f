// SPDX-License-Identifier: Apache-2.0
//! Requests that are not finished, and where each gets its addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::Timestamp;
use crate::block::{Attribute, Ordinal};
use crate::node::block_work::{Context, Demand, Intent, PartId};
use crate::node::blocks::Blocks;
use crate::node::messages::{AssignError, AssignRequest, Attachment, Settings, Ticket};
use crate::pool::{Labels, Pool, Use};

/// A request that is not finished.
#[derive(Debug)]
pub(crate) struct Pending {
    /// All get the same reply: the request may be repeated.
    pub(crate) tickets: Vec<Ticket>,
    pub(crate) request: AssignRequest,
    pub(crate) attachment: Arc<Attachment>,
    pub(crate) attribute: Arc<Attribute>,
    pub(crate) started: Timestamp,
    pub(crate) parts: Vec<Part>,
    pub(crate) stage: Stage,
    /// Reason why the request is not finished.
    pub(crate) waits_for: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Some parts have no address.
    Placing,
    /// All parts have an address, and the journal is being written.
    Journaling,
    /// As before, but the attachment was released in the meantime, or an address was lost.
    Cancelled { releases: Vec<Ticket> },
}

/// One address of a request.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    want: Want,
    pub(crate) held: Option<(IpNet, Ordinal)>,
}

#[derive(Debug, Clone, Copy)]
enum Want {
    Any { ipv6: bool },
    Address(IpAddr),
}

/// Next step for a part of a request.
#[derive(Debug)]
pub(crate) enum Placement {
    Held(IpNet, Ordinal),
    /// A write of this block is needed.
    Demand(IpNet, Option<Ordinal>),
    /// A new block is needed.
    Claim(IpNet),
    Wait(&'static str),
    Failed(AssignError),
}

#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) all: BTreeMap<u64, Pending>,
    next: u64,
}

impl Requests {
    pub(crate) fn add(
        &mut self,
        ticket: Ticket,
        request: AssignRequest,
        node: &str,
        now: Timestamp,
    ) {
        // The journal keeps seconds. The same attribute must result after a restart.
        let started = Timestamp::from_millis(now.as_millis() / 1000 * 1000);
        let parts = if request.addresses.is_empty() {
            let families = [(request.ipv4, false), (request.ipv6, true)];
            let families = families.into_iter().filter(|(wanted, _)| *wanted);
            families.map(|(_, ipv6)| Part { want: Want::Any { ipv6 }, held: None }).collect()
        } else {
            let addresses = request.addresses.iter();
            addresses.map(|address| Part { want: Want::Address(*address), held: None }).collect()
        };
        let pending = Pending {
            tickets: vec![ticket],
            attachment: Arc::new(request.attachment.clone()),
            attribute: request.attachment.attribute(node, started),
            request,
            started,
            parts,
            stage: Stage::Placing,
            waits_for: "",
        };
        self.all.insert(self.next, pending);
        self.next += 1;
    }

    /// Returns the requests of a handle, or only of one of its interfaces.
    pub(crate) fn of(&self, handle: &str, interface: Option<&str>) -> Vec<u64> {
        let is_meant = |pending: &Pending| {
            let attachment = &pending.attachment;
            attachment.handle == handle && interface.is_none_or(|i| i == attachment.interface)
        };
        self.all.iter().filter(|(_, pending)| is_meant(pending)).map(|(id, _)| *id).collect()
    }

    pub(crate) fn set_held(&mut self, (id, index): PartId, held: Option<(IpNet, Ordinal)>) -> bool {
        let part = self.all.get_mut(&id).and_then(|pending| pending.parts.get_mut(index));
        part.map(|part| part.held = held).is_some()
    }

    /// Returns the next request that has all addresses, and has not written the journal yet.
    pub(crate) fn complete(&self) -> Option<u64> {
        let is_complete = |pending: &Pending| {
            pending.stage == Stage::Placing && pending.parts.iter().all(|part| part.held.is_some())
        };
        self.all.iter().find(|(_, pending)| is_complete(pending)).map(|(id, _)| *id)
    }
}

impl Pending {
    pub(crate) fn demand(&self, part: PartId, ordinal: Option<Ordinal>) -> Demand {
        Demand {
            part,
            attachment: Arc::clone(&self.attachment),
            attribute: Arc::clone(&self.attribute),
            ordinal,
        }
    }

    fn purpose(&self) -> Use {
        if self.attachment.tunnel.is_some() { Use::Tunnel } else { Use::Workload }
    }
}

/// Finds an address for a part: first without a write, then in an own block, then in a new block, then in a block of
/// another node.
pub(crate) fn place(
    pending: &Pending,
    id: PartId,
    blocks: &mut Blocks,
    settings: &Settings,
    context: &Context<'_>,
) -> Placement {
    match pending.parts[id.1].want {
        Want::Address(address) => place_address(pending, id, address, blocks, settings, context),
        Want::Any { ipv6 } => {
            let requested = match ipv6 {
                false => &pending.request.ipv4_pools,
                true => &pending.request.ipv6_pools,
            };
            let labels = Labels {
                node: &settings.node_labels,
                namespace: &pending.request.namespace_labels,
            };
            match settings.pools.choose(ipv6, requested, pending.purpose(), &labels) {
                Ok(pools) => place_any(pending, id, &pools, blocks, settings, context),
                Err(error) => Placement::Failed(error.into()),
            }
        }
    }
}

fn place_any(
    pending: &Pending,
    id: PartId,
    pools: &[&Pool],
    blocks: &mut Blocks,
    settings: &Settings,
    context: &Context<'_>,
) -> Placement {
    if pending.attachment.tunnel.is_some()
        && let Some((cidr, ordinal)) = stored_allocation(pending, pools, blocks, context)
    {
        return Placement::Demand(cidr, Some(ordinal));
    }
    for pool in pools {
        if let Some((cidr, ordinal)) =
            blocks.take_next(pool.cidr(), id, &pending.attribute, context)
        {
            return Placement::Held(cidr, ordinal);
        }
    }
    let position = |cidr: &IpNet| pools.iter().position(|pool| pool.cidr().contains(cidr));
    let mut own: Vec<_> =
        blocks.own().filter_map(|(cidr, _)| Some((position(&cidr)?, cidr))).collect();
    own.sort_unstable();
    let mut own_work = own.iter().filter_map(|(_, cidr)| Some((cidr, blocks.get(*cidr)?)));
    if own_work.clone().any(|(_, work)| work.is_coming(context.node)) {
        return Placement::Wait("the claim of a block");
    }
    let free = own_work.find(|(_, work)| work.is_usable(context.node) && work.has_room(context));
    if let Some((cidr, _)) = free {
        return Placement::Demand(*cidr, None);
    }
    let may_claim =
        settings.config.auto_allocate_blocks && own.len() < settings.config.max_blocks();
    if may_claim && let Some(cidr) = unclaimed(pools, blocks, context) {
        return Placement::Claim(cidr);
    }
    if !context.strict
        && let Some(cidr) = borrowable(pools, blocks, context)
    {
        return Placement::Demand(cidr, None);
    }
    let reason = match (context.strict, may_claim) {
        (true, true) => "all blocks are claimed, and strictAffinity forbids to borrow",
        (false, true) => "all blocks are claimed and full",
        (true, false) => "this node has as many blocks as allowed, and strictAffinity is set",
        (false, false) => "this node has as many blocks as allowed, and all others are full",
    };
    let family = if pools.iter().all(|pool| pool.is_ipv6()) { "IPv6" } else { "IPv4" };
    let pools = pools.iter().map(|pool| pool.name()).collect::<Vec<_>>().join(", ");
    Placement::Failed(AssignError::Exhausted { family, pools, reason })
}

/// Finds an allocation that the attachment already has in the store, for example written by Calico.
fn stored_allocation(
    pending: &Pending,
    pools: &[&Pool],
    blocks: &Blocks,
    context: &Context<'_>,
) -> Option<(IpNet, Ordinal)> {
    let in_pools = |cidr: IpNet| pools.iter().any(|pool| pool.cidr().contains(&cidr));
    blocks.iter().filter(|(cidr, _)| in_pools(*cidr)).find_map(|(cidr, work)| {
        let mut allocations = work.known.object()?.allocations();
        let found = allocations.find(|(ordinal, allocation)| {
            !work.has(*ordinal)
                && pending.attachment.has_attribute(&allocation.attribute, context.node)
        });
        found.map(|(ordinal, _)| (cidr, ordinal))
    })
}

fn unclaimed(pools: &[&Pool], blocks: &Blocks, context: &Context<'_>) -> Option<IpNet> {
    let all = pools.iter().flat_map(|pool| pool.blocks_from(context.node));
    let mut usable = all.filter(|cidr| !context.reservations.covers(*cidr));
    usable.find(|cidr| blocks.overlapping(*cidr).is_none())
}

/// Returns a block of another node with a free address. Nodes start their search at different places.
fn borrowable(pools: &[&Pool], blocks: &Blocks, context: &Context<'_>) -> Option<IpNet> {
    let in_pools = |cidr: &IpNet| pools.iter().any(|pool| pool.cidr().contains(cidr));
    let candidates: Vec<_> = blocks
        .iter()
        .filter(|(cidr, work)| {
            in_pools(cidr) && !work.is_own(context.node) && work.has_room(context)
        })
        .map(|(cidr, _)| cidr)
        .collect();
    let start =
        context.node.bytes().fold(0_usize, |sum, byte| sum * 31 % 65521 + usize::from(byte));
    candidates.get(start % candidates.len().max(1)).copied()
}

fn place_address(
    pending: &Pending,
    id: PartId,
    address: IpAddr,
    blocks: &mut Blocks,
    settings: &Settings,
    context: &Context<'_>,
) -> Placement {
    let Some(pool) = settings.pools.containing(address).filter(|p| p.allows(pending.purpose()))
    else {
        return Placement::Failed(AssignError::NotInPool(address));
    };
    let Some(cidr) = blocks.containing(address) else {
        let block = pool.block_of(address);
        return match blocks.overlapping(block) {
            None => Placement::Claim(block),
            Some(other) => Placement::Failed(AssignError::Block {
                address,
                block,
                reason: format!("it overlaps the existing block {other}"),
            }),
        };
    };
    let refused = |reason: &str| {
        let reason = reason.to_owned();
        Placement::Failed(AssignError::Block { address, block: cidr, reason })
    };
    let work = blocks.change(cidr);
    let Some(block) = work.known.object() else {
        return match work.intent {
            Intent::Claim => Placement::Wait("the claim of a block"),
            _ => refused("its object in the store cannot be read"),
        };
    };
    let Some(ordinal) = block.ordinal(address) else { return refused("it is too large") };
    let stored = block.allocation(ordinal).map(|allocation| &allocation.attribute);
    let has_it = stored.is_some_and(|a| pending.attachment.has_attribute(a, context.node));
    if work.is_own(context.node) && !work.is_usable(context.node) {
        return Placement::Wait("a write of the block");
    }
    if work.is_free(ordinal) {
        return match work.take(ordinal, id, &pending.attribute, context) {
            Ok(()) => Placement::Held(cidr, ordinal),
            Err(error) => Placement::Failed(error.into()),
        };
    }
    let is_leaving = stored.is_some_and(|a| Attachment::wrote(context.node, a));
    if is_leaving && !has_it && !work.has(ordinal) {
        // This node has released it. The next write gives it back to the store.
        return Placement::Wait("a write of the block");
    }
    let is_taken = work.has(ordinal) || stored.is_some() && !has_it;
    if is_taken {
        return Placement::Failed(work.refusal(ordinal, context).into());
    }
    let is_other = !work.is_own(context.node);
    if is_other && context.strict {
        let owner = match block.owner() {
            Some(node) => format!("node {node}"),
            None => "no node".to_owned(),
        };
        return Placement::Failed(AssignError::OtherNode { address, block: cidr, owner });
    }
    Placement::Demand(cidr, Some(ordinal))
}
