// SPDX-License-Identifier: Apache-2.0
//! One block as a node works with it: the stored state, what the node holds in it, and the next write.
//!
//! The node *holds* an address if the store says so: the allocation has the handle of the node's reserve, or an
//! attribute that the node wrote. Only the node itself changes such allocations, so it may give them from one pod to
//! the next in memory and write afterwards. The state of a held address:
//!
//! ```text
//!            take               journal written
//!   Free ───────────▶ Held ─────────────────────▶ Used
//!    ▲                  │                           │
//!    └──────────────────┴───────────────────────────┘
//!       request failed        released
//! ```
//!
//! [`BlockWork::image`] computes what the store should have: the last known state, with the changes of others, and this
//! node's addresses put on top. If the compare-and-swap fails, the image is computed again from the newer state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::Timestamp;
use crate::block::{Allocation, Attribute, Block, BlockError, Ordinal};
use crate::node::known::{InFlight, Known};
use crate::node::messages::{Attachment, Revision};
use crate::pools::Reservations;

/// Everything outside of the block that a decision depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) node: &'a str,
    pub(crate) now: Timestamp,
    pub(crate) cooldown: Duration,
    pub(crate) reservations: &'a Reservations,
    /// Other nodes may not use addresses of this node's blocks.
    pub(crate) strict: bool,
}

/// One part of a request: the request and the position of the address in it.
pub(crate) type PartId = (u64, usize);

/// A held address.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Local {
    /// In the queue, and usable after the cool-down.
    Free {
        since: Option<Timestamp>,
    },
    /// Taken by a request that is not finished.
    Held(PartId, Arc<Attribute>),
    Used(Arc<Attribute>),
}

/// A request that needs a write to this block before it can have an address.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Demand {
    pub(crate) part: PartId,
    pub(crate) attachment: Arc<Attachment>,
    pub(crate) attribute: Arc<Attribute>,
    /// `None` stands for any address.
    pub(crate) ordinal: Option<Ordinal>,
}

/// Plan of the node for the block as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Intent {
    #[default]
    Keep,
    /// Create the block for this node.
    Claim,
    /// Delete the block, because it is empty. No address is taken from it any more.
    Release,
}

/// A held address that the store has given to another user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) address: IpAddr,
    pub(crate) part: Option<PartId>,
    pub(crate) user: String,
}

/// The next write, and which requests it serves.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Write {
    Create(Block),
    Replace(Revision, Block),
    Delete(Revision),
}

#[derive(Debug, Default)]
pub(crate) struct BlockWork {
    pub(crate) known: Known<Block>,
    pub(crate) intent: Intent,
    local: BTreeMap<Ordinal, Local>,
    /// The free addresses of `local`. The first has been free longest.
    queue: VecDeque<Ordinal>,
    /// The node has written the block since it learned of it. Writes of an earlier process of this node, which may
    /// still be on their way, fail from then on. Before that, no address is taken.
    is_fenced: bool,
    pub(crate) demands: Vec<Demand>,
    /// Releases of allocations of other writers: handle and sequence number that the allocation must have.
    releases: BTreeMap<Ordinal, (String, u64)>,
    /// A node that does not exist any more, and the revision at which its addresses may be released.
    departed: Option<(String, Revision)>,
    /// The result of the last write is unknown.
    is_uncertain: bool,
    /// Cool-downs have ended, and no other node will write the block.
    settles: bool,
    pub(crate) in_flight: Option<InFlight<Block>>,
    /// Demands that the write in flight serves.
    pub(crate) served: Vec<(Demand, Ordinal)>,
}

impl BlockWork {
    /// Returns whether this node has claimed the block.
    pub(crate) fn is_own(&self, node: &str) -> bool {
        let block = self.known.object();
        block.is_some_and(|block| block.owner() == Some(node) && !block.deleted)
    }

    /// Returns whether addresses can be taken without a write.
    pub(crate) fn is_usable(&self, node: &str) -> bool {
        self.is_fenced && self.intent == Intent::Keep && self.is_own(node)
    }

    /// Returns whether the block becomes usable after writes that are due.
    pub(crate) fn is_coming(&self, node: &str) -> bool {
        self.intent == Intent::Claim
            || self.is_own(node) && self.intent == Intent::Keep && !self.is_fenced
    }

    pub(crate) fn has_empty_queue(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the address that has been free longest, after its cool-down.
    pub(crate) fn take_next(
        &mut self,
        part: PartId,
        attribute: &Arc<Attribute>,
        context: &Context<'_>,
    ) -> Option<Ordinal> {
        // The first is ready unless the ones before it are cooling and it was set aside later.
        let position = self.queue.iter().position(|queued| !self.is_cooling(*queued, context))?;
        let ordinal = self.queue.remove(position)?;
        self.local.insert(ordinal, Local::Held(part, Arc::clone(attribute)));
        Some(ordinal)
    }

    /// Takes a certain address.
    pub(crate) fn take(
        &mut self,
        ordinal: Ordinal,
        part: PartId,
        attribute: &Arc<Attribute>,
        context: &Context<'_>,
    ) -> Result<(), BlockError> {
        let error = self.refusal(ordinal, context);
        match self.local.get(&ordinal) {
            Some(Local::Free { .. }) if !self.is_cooling(ordinal, context) => {
                self.queue.retain(|queued| *queued != ordinal);
                self.local.insert(ordinal, Local::Held(part, Arc::clone(attribute)));
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Returns whether any address is in use on this node.
    pub(crate) fn has_used(&self) -> bool {
        self.local.values().any(|local| matches!(local, Local::Used(_)))
    }

    /// Returns whether the stored block has a free address for one more demand.
    pub(crate) fn has_room(&self, context: &Context<'_>) -> bool {
        let Some(block) = self.known.object().filter(|block| !block.deleted) else { return false };
        let wanted = self.demands.len() + self.served.len() + 1;
        let free = block.assignable(context.reservations).take(wanted).count();
        if free == wanted {
            return true;
        }
        let ended = |since| context.now.since(since) >= context.cooldown;
        let cooled = block.allocations().filter_map(|(_, a)| a.attribute.released_at);
        free + cooled.filter(|since| ended(*since)).count() >= wanted
    }

    pub(crate) fn is_free(&self, ordinal: Ordinal) -> bool {
        matches!(self.local.get(&ordinal), Some(Local::Free { .. }))
    }

    pub(crate) fn has(&self, ordinal: Ordinal) -> bool {
        self.local.contains_key(&ordinal)
    }

    fn is_cooling(&self, ordinal: Ordinal, context: &Context<'_>) -> bool {
        let since = match self.local.get(&ordinal) {
            Some(Local::Free { since: Some(since) }) => *since,
            _ => return false,
        };
        context.now.since(since) < context.cooldown
    }

    /// Returns why an address cannot be assigned.
    pub(crate) fn refusal(&self, ordinal: Ordinal, context: &Context<'_>) -> BlockError {
        let block = self.known.object();
        let address = block.map_or(IpAddr::from([0, 0, 0, 0]), |block| block.address(ordinal));
        let stored = block.and_then(|block| block.allocation(ordinal));
        let cooling =
            |since| BlockError::Cooling { address, ago: context.now.since(since).as_secs() };
        match (self.local.get(&ordinal), stored) {
            (Some(Local::Free { since: Some(since) }), _) => cooling(*since),
            (Some(Local::Held(_, attribute) | Local::Used(attribute)), _) => {
                BlockError::InUse { address, user: attribute.user() }
            }
            (_, Some(Allocation { attribute, .. })) => match attribute.released_at {
                Some(since) => cooling(since),
                None => BlockError::InUse { address, user: attribute.user() },
            },
            _ => BlockError::NotAllocated { address },
        }
    }

    /// Marks a held address as used.
    pub(crate) fn set_used(&mut self, ordinal: Ordinal, attribute: Arc<Attribute>) {
        self.local.insert(ordinal, Local::Used(attribute));
    }

    /// Gives back an address that was held but never used, as the first of the queue.
    pub(crate) fn put_back(&mut self, ordinal: Ordinal, node: &str) {
        self.local.remove(&ordinal);
        if self.is_own(node) {
            self.local.insert(ordinal, Local::Free { since: None });
            self.queue.push_front(ordinal);
        }
    }

    /// Releases a used address. The next write gives it back to the store. If the store is unreachable, an address of an
    /// own block can be taken again before.
    pub(crate) fn free(&mut self, ordinal: Ordinal, context: &Context<'_>) {
        self.local.remove(&ordinal);
        // In a block of another node the allocation has no holder now, so the next write releases it.
        if self.is_own(context.node) {
            self.enqueue(ordinal, Some(context.now), context);
        }
    }

    fn enqueue(&mut self, ordinal: Ordinal, since: Option<Timestamp>, context: &Context<'_>) {
        let address = self.known.object().map(|block| block.address(ordinal));
        // A reserved address goes back to the store, and is skipped there.
        if address.is_some_and(|address| context.reservations.contains(address)) {
            return;
        }
        self.local.insert(ordinal, Local::Free { since });
        self.queue.push_back(ordinal);
    }

    /// Removes reserved addresses from the queue.
    pub(crate) fn apply_reservations(&mut self, context: &Context<'_>) {
        let Some(block) = self.known.object() else { return };
        let reserved = |ordinal: &Ordinal| context.reservations.contains(block.address(*ordinal));
        self.local
            .retain(|ordinal, local| !matches!(local, Local::Free { .. }) || !reserved(ordinal));
        self.queue.retain(|ordinal| !reserved(ordinal));
    }

    /// Plans the release of an allocation that this node does not hold.
    pub(crate) fn plan_release(&mut self, ordinal: Ordinal, handle: String, sequence: u64) {
        self.releases.insert(ordinal, (handle, sequence));
    }

    /// Plans to release everything of a node that does not exist any more. The plan is dropped if the block changes:
    /// the node may have come back.
    pub(crate) fn plan_departed(&mut self, node: String, revision: Revision) {
        self.departed = Some((node, revision));
    }

    /// Returns the handles of the addresses that a node uses in the stored block.
    pub(crate) fn handles_of(&self, node: &str) -> BTreeSet<String> {
        let allocations = self.known.object().into_iter().flat_map(Block::allocations);
        let attributes = allocations.map(|(_, allocation)| &allocation.attribute);
        let used = attributes.filter(|attribute| attribute.node() == Some(node));
        let used = used.filter(|attribute| attribute.reserved_by().is_none());
        used.filter_map(|attribute| attribute.handle().map(str::to_owned)).collect()
    }

    /// Plans a write that ends cool-downs.
    pub(crate) fn plan_settle(&mut self) {
        self.settles = true;
    }

    /// Takes over a newer state of the block. Returns the addresses that are lost.
    pub(crate) fn learn(&mut self, new: Known<Block>, context: &Context<'_>) -> Vec<Lost> {
        if !self.known.update(new) {
            return Vec::new();
        }
        self.adopt(context)
    }

    /// Takes over that an operation found no block.
    pub(crate) fn learn_gone(
        &mut self,
        expected: Option<Revision>,
        context: &Context<'_>,
    ) -> Vec<Lost> {
        if !self.known.gone(expected) {
            return Vec::new();
        }
        self.adopt(context)
    }

    /// Brings the held addresses in line with the stored block.
    fn adopt(&mut self, context: &Context<'_>) -> Vec<Lost> {
        self.is_uncertain = false;
        let node = context.node;
        let is_own = self.is_own(node);
        if !is_own {
            self.is_fenced = false;
        }
        match self.intent {
            // Another node was faster, or the claim succeeded.
            Intent::Claim if !self.known.is_missing() => self.intent = Intent::Keep,
            // The block is gone, or another node has borrowed an address of it.
            Intent::Release if !is_own || !self.is_unused() => self.intent = Intent::Keep,
            _ => {}
        }
        if self.departed.as_ref().map(|(_, at)| *at) != self.known.revision() {
            self.departed = None;
        }
        let Known::Present(_, block) = &self.known else {
            self.forget_free();
            return Vec::new();
        };
        let is_mine = |o: Ordinal| {
            let allocation = block.allocation(o);
            allocation.is_some_and(|a| Attachment::wrote(node, &a.attribute))
        };
        self.local.retain(|o, local| !matches!(local, Local::Free { .. }) || is_own && is_mine(*o));
        let local = &self.local;
        self.queue.retain(|o| local.contains_key(o));
        let lost = self.lost(block, context);
        for lost in &lost {
            if let Some(ordinal) = block.ordinal(lost.address) {
                self.local.remove(&ordinal);
            }
        }
        if is_own {
            self.enqueue_found(context);
        }
        lost
    }

    /// Without a block there are no free addresses.
    fn forget_free(&mut self) {
        self.local.retain(|_, local| !matches!(local, Local::Free { .. }));
        self.queue.clear();
    }

    /// Returns the held addresses that are allocated to another user.
    fn lost(&self, block: &Block, context: &Context<'_>) -> Vec<Lost> {
        let lost = self.local.iter().filter_map(|(ordinal, local)| {
            let (part, own) = match local {
                Local::Free { .. } => return None,
                Local::Held(part, attribute) => (Some(*part), attribute),
                Local::Used(attribute) => (None, attribute),
            };
            let stored = &block.allocation(*ordinal)?.attribute;
            if may_replace(stored, own, context.node) {
                return None;
            }
            Some(Lost { address: block.address(*ordinal), part, user: stored.user() })
        });
        lost.collect()
    }

    /// Puts addresses into the queue that this node holds according to the store, and that no request waits for: the
    /// reserve, and allocations that were released while the node could not write.
    fn enqueue_found(&mut self, context: &Context<'_>) {
        let Some(block) = self.known.object() else { return };
        let mut found: Vec<_> = block
            .allocations()
            .filter(|(_, allocation)| Attachment::wrote(context.node, &allocation.attribute))
            .filter(|(ordinal, _)| !self.local.contains_key(ordinal))
            .filter(|(ordinal, _)| !self.served.iter().any(|(_, served)| served == ordinal))
            .map(|(ordinal, allocation)| {
                let is_reserve = allocation.attribute.reserved_by().is_some();
                (!is_reserve, allocation.sequence, ordinal)
            })
            .collect();
        found.sort_unstable();
        for (was_used, _, ordinal) in found {
            self.enqueue(ordinal, was_used.then_some(context.now), context);
        }
    }

    /// Returns whether the block can be deleted: no address is in use, by this node or by another.
    pub(crate) fn is_unused(&self) -> bool {
        self.local.values().all(|local| matches!(local, Local::Free { .. }))
            && self.served.is_empty()
            && self.known.object().is_some_and(Block::is_unused)
    }

    /// Returns the next write of the block, or `None` if the store has what it should have.
    ///
    /// `automatic` tells whether the block's pool assigns addresses without being named; only then the node sets
    /// addresses aside. Demands that are served move to `served`, the others stay.
    pub(crate) fn next_write(
        &mut self,
        cidr: IpNet,
        automatic: bool,
        context: &Context<'_>,
    ) -> Option<Write> {
        let is_own = self.is_own(context.node);
        match &self.known {
            Known::Missing(_) if self.intent == Intent::Claim => {
                let block = Block::new(cidr, context.node, context.now);
                self.image(block, automatic, true, context).map(Write::Create)
            }
            Known::Unknown | Known::Missing(_) | Known::Malformed(_) => None,
            // A Calico client was interrupted between marking and deleting the block.
            Known::Present(revision, block) if block.deleted => {
                let is_wanted = self.intent == Intent::Claim || !self.local.is_empty();
                is_wanted.then_some(Write::Delete(*revision))
            }
            Known::Present(revision, _) if is_own && self.intent == Intent::Release => {
                Some(Write::Delete(*revision))
            }
            Known::Present(revision, block) => {
                let (revision, block) = (*revision, block.clone());
                let image = self.image(block, automatic, is_own, context)?;
                // As in Calico, a block without owner is deleted with its last address.
                let is_done = image.affinity.is_none() && image.is_unused();
                Some(if is_done {
                    Write::Delete(revision)
                } else {
                    Write::Replace(revision, image)
                })
            }
        }
    }

    /// Applies this node's changes to a state of the block. Returns `None` if there are no changes.
    fn image(
        &mut self,
        mut block: Block,
        automatic: bool,
        is_own: bool,
        context: &Context<'_>,
    ) -> Option<Block> {
        let ended = block.end_cooldowns(context.now, context.cooldown);
        let is_left = block.affinity.is_none() && block.is_unused();
        let mut changed = is_own && !self.is_fenced || self.settles && (ended || is_left);
        self.settles = false;
        changed |= self.apply_releases(&mut block, context);
        changed |= self.apply_departed(&mut block, context);
        if is_own {
            self.give_back_released();
            self.apply_surplus(&block, automatic, context);
        }
        changed |= self.apply_local(&mut block, context);
        changed |= self.apply_demands(&mut block, context);
        if is_own {
            changed |= self.apply_reserve(&mut block, automatic, changed, context);
        }
        changed.then(|| {
            block.sequence += 1;
            block
        })
    }

    fn apply_releases(&mut self, block: &mut Block, context: &Context<'_>) -> bool {
        let local = &self.local;
        let mut changed = false;
        self.releases.retain(|ordinal, (handle, sequence)| {
            let valid = block.check(*ordinal, handle, Some(*sequence)).is_ok();
            if valid && !local.contains_key(ordinal) {
                block.release(*ordinal, context.now, context.cooldown);
                changed = true;
            }
            valid
        });
        changed
    }

    fn apply_departed(&self, block: &mut Block, context: &Context<'_>) -> bool {
        let Some((departed, _)) = &self.departed else { return false };
        let is_theirs = |attribute: &Attribute| {
            attribute.node() == Some(departed) || attribute.reserved_by() == Some(departed)
        };
        let theirs: Vec<_> = block.allocations().filter(|(_, a)| is_theirs(&a.attribute)).collect();
        let theirs: Vec<_> = theirs.into_iter().map(|(ordinal, _)| ordinal).collect();
        for ordinal in &theirs {
            block.release(*ordinal, context.now, context.cooldown);
        }
        let owned = block.owner() == Some(departed);
        if owned {
            block.affinity = None;
            block.claimed = None;
        }
        owned || !theirs.is_empty()
    }

    /// Takes released addresses out of the queue. A later step appends them to the queue in the store, and sets others
    /// aside that have been free longer.
    ///
    /// After a write without result they stay, because the node could not use them until the store answers.
    fn give_back_released(&mut self) {
        if self.is_uncertain {
            return;
        }
        let is_released = |local: &Local| matches!(local, Local::Free { since: Some(_) });
        self.local.retain(|_, local| !is_released(local));
        let local = &self.local;
        self.queue.retain(|ordinal| local.contains_key(ordinal));
    }

    /// Takes addresses out of the queue if too few are left for other nodes. The next step releases them.
    fn apply_surplus(&mut self, block: &Block, automatic: bool, context: &Context<'_>) {
        let shared = shared_part(block.size(), automatic, context);
        let free = block.assignable(context.reservations).count();
        if free >= shared - shared / 2 {
            return;
        }
        for _ in free..shared {
            let Some(ordinal) = self.queue.pop_back() else { return };
            if self.is_cooling(ordinal, context) {
                self.queue.push_back(ordinal);
                return;
            }
            self.local.remove(&ordinal);
        }
    }

    fn apply_local(&self, block: &mut Block, context: &Context<'_>) -> bool {
        let mut changed = false;
        let reserve = Arc::new(Attribute::reserve(context.node));
        for (&ordinal, local) in &self.local {
            let stored = block.allocation(ordinal).map(|allocation| &allocation.attribute);
            let wanted = match local {
                Local::Used(attribute) => attribute,
                // Until the request succeeds, the address stays what it is.
                Local::Held(_, attribute) if stored.is_none() => attribute,
                Local::Held(..) => continue,
                Local::Free { .. } => &reserve,
            };
            match stored {
                None => changed |= block.assign(ordinal, wanted).is_ok(),
                Some(stored) if stored == wanted => {}
                Some(stored) if may_replace(stored, wanted, context.node) => {
                    block.hand_over(ordinal, wanted);
                    changed = true;
                }
                Some(_) => {}
            }
        }
        let strays: Vec<_> = block
            .allocations()
            .filter(|(_, allocation)| Attachment::wrote(context.node, &allocation.attribute))
            .map(|(ordinal, _)| ordinal)
            .filter(|ordinal| !self.local.contains_key(ordinal))
            .filter(|ordinal| !self.is_demanded(block, *ordinal, context))
            .collect();
        for ordinal in &strays {
            // Addresses that this node had only set aside need no cool-down.
            let allocation = block.allocation(*ordinal);
            let was_used = allocation.is_some_and(|a| a.attribute.reserved_by().is_none());
            let cooldown = if was_used { context.cooldown } else { Duration::ZERO };
            block.release(*ordinal, context.now, cooldown);
        }
        changed || !strays.is_empty()
    }

    fn is_demanded(&self, block: &Block, ordinal: Ordinal, context: &Context<'_>) -> bool {
        let Some(allocation) = block.allocation(ordinal) else { return false };
        let fits = |demand: &Demand| demand.ordinal.is_none_or(|wanted| wanted == ordinal);
        self.demands.iter().any(|demand| {
            fits(demand) && demand.attachment.has_attribute(&allocation.attribute, context.node)
        })
    }

    /// Serves demands: an allocation that the attachment already has, or a free address.
    fn apply_demands(&mut self, block: &mut Block, context: &Context<'_>) -> bool {
        self.served.clear();
        for demand in std::mem::take(&mut self.demands) {
            match self.serve(&demand, block, context) {
                Some(ordinal) => self.served.push((demand, ordinal)),
                None => self.demands.push(demand),
            }
        }
        !self.served.is_empty()
    }

    fn serve(&self, demand: &Demand, block: &mut Block, context: &Context<'_>) -> Option<Ordinal> {
        let attribute = &demand.attribute;
        let existing = block
            .allocations()
            .filter(|(ordinal, _)| demand.ordinal.is_none_or(|wanted| wanted == *ordinal))
            .filter(|(ordinal, _)| !self.local.contains_key(ordinal))
            .filter(|(ordinal, _)| !self.served.iter().any(|(_, served)| served == ordinal))
            .find(|(_, a)| demand.attachment.has_attribute(&a.attribute, context.node))
            .map(|(ordinal, _)| ordinal);
        if let Some(ordinal) = existing {
            block.hand_over(ordinal, attribute);
            return Some(ordinal);
        }
        match demand.ordinal {
            None => block.assign_next(attribute, context.reservations),
            Some(ordinal) => block.assign(ordinal, attribute).ok().map(|()| ordinal),
        }
    }

    /// Sets free addresses aside, except for the part that other nodes may borrow. Without another reason to write, it
    /// waits until there are half as many more than that part.
    fn apply_reserve(
        &self,
        block: &mut Block,
        automatic: bool,
        is_written: bool,
        context: &Context<'_>,
    ) -> bool {
        let shared = shared_part(block.size(), automatic, context);
        let free = block.assignable(context.reservations).count();
        if free <= shared || !is_written && free <= shared + shared / 2 {
            return false;
        }
        let reserve = Arc::new(Attribute::reserve(context.node));
        for _ in shared..free {
            block.assign_next(&reserve, context.reservations);
        }
        true
    }

    /// Notes that a write of the block succeeded. Returns the addresses that are lost, and the demands served.
    pub(crate) fn written(
        &mut self,
        revision: Revision,
        context: &Context<'_>,
    ) -> (Vec<Lost>, Vec<(PartId, Ordinal)>) {
        let Some(in_flight) = self.in_flight.take() else { return Default::default() };
        let served = std::mem::take(&mut self.served);
        for (demand, ordinal) in &served {
            let held = Local::Held(demand.part, Arc::clone(&demand.attribute));
            self.local.insert(*ordinal, held);
        }
        let new = in_flight.written(revision);
        let is_newest = Some(revision) >= self.known.revision();
        let mut lost = if self.known.update(new) { self.adopt(context) } else { Vec::new() };
        if !is_newest {
            // A later change is already known; it may have taken what this write assigned.
            lost.extend(self.adopt(context));
        }
        self.is_fenced = self.is_own(context.node);
        let kept = served.iter().filter(|(_, ordinal)| self.local.contains_key(ordinal));
        let kept = kept.map(|(demand, ordinal)| (demand.part, *ordinal)).collect();
        (lost, kept)
    }

    /// Notes that the result of a write is unknown.
    pub(crate) fn unknown(&mut self) {
        self.is_uncertain = true;
        self.not_written();
    }

    /// Notes that a write failed.
    pub(crate) fn not_written(&mut self) -> Option<InFlight<Block>> {
        self.served.clear();
        self.in_flight.take()
    }

    /// Returns the addresses in the queue that can be taken now.
    pub(crate) fn ready(&self, context: &Context<'_>) -> impl Iterator<Item = IpAddr> {
        let block = self.known.object();
        let ready = self.queue.iter().filter(|ordinal| !self.is_cooling(**ordinal, context));
        let ready: Vec<_> = ready.filter_map(|o| block.map(|block| block.address(*o))).collect();
        ready.into_iter()
    }
}

/// Returns how many addresses stay free for other nodes.
fn shared_part(size: usize, automatic: bool, context: &Context<'_>) -> usize {
    match (automatic, context.strict) {
        // Addresses of such pools are assigned by name, on any node.
        (false, _) => size,
        (true, true) => 0,
        (true, false) => size / 4,
    }
}

/// Returns whether this node may put its attribute in the place of the stored one.
fn may_replace(stored: &Attribute, wanted: &Attribute, node: &str) -> bool {
    Attachment::wrote(node, stored)
        || stored.handle() == wanted.handle() && stored.node() == Some(node)
}
