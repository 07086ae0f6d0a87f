// SPDX-License-Identifier: Apache-2.0
//! All blocks that a node knows: its own, and those of other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::block::{Attribute, Block, Ordinal};
use crate::cidr;
use crate::node::block_work::{BlockWork, Context, Demand, Intent, PartId, Write};
use crate::node::known::{InFlight, Known};

/// The blocks, and which of them may need a write.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    all: BTreeMap<IpNet, BlockWork>,
    /// Blocks of this node, also those that it claims.
    own: BTreeSet<IpNet>,
    /// Own blocks that may have free addresses. A search removes those that have none, so that full blocks cost nothing.
    ready: BTreeSet<IpNet>,
    dirty: BTreeSet<IpNet>,
    in_flight: BTreeSet<IpNet>,
    /// Blocks with demands.
    demanded: BTreeSet<IpNet>,
}

impl Blocks {
    pub(crate) fn get(&self, cidr: IpNet) -> Option<&BlockWork> {
        self.all.get(&cidr)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (IpNet, &BlockWork)> {
        self.all.iter().map(|(cidr, work)| (*cidr, work))
    }

    /// Returns the stored blocks.
    pub(crate) fn stored(&self) -> impl Iterator<Item = &Block> {
        self.all.values().filter_map(|work| work.known.object())
    }

    pub(crate) fn own(&self) -> impl Iterator<Item = (IpNet, &BlockWork)> {
        self.own.iter().filter_map(|cidr| Some((*cidr, self.all.get(cidr)?)))
    }

    /// Returns a block for changes after which it may need a write.
    pub(crate) fn change(&mut self, cidr: IpNet) -> &mut BlockWork {
        self.dirty.insert(cidr);
        self.ready.insert(cidr);
        self.all.entry(cidr).or_default()
    }

    /// Updates the index of own blocks after a change of the block.
    pub(crate) fn index(&mut self, cidr: IpNet, node: &str) {
        let work = self.all.get(&cidr);
        if work.is_some_and(|work| work.is_own(node) || work.intent == Intent::Claim) {
            self.own.insert(cidr);
        } else {
            self.own.remove(&cidr);
        }
        if work.is_some_and(|work| work.in_flight.is_some()) {
            self.in_flight.insert(cidr);
        } else {
            self.in_flight.remove(&cidr);
        }
    }

    pub(crate) fn mark_dirty(&mut self, cidr: IpNet) {
        self.dirty.insert(cidr);
    }

    pub(crate) fn mark_all_dirty(&mut self) {
        self.dirty.extend(self.all.keys());
    }

    /// Returns the blocks that may need a write and have none in flight. The returned blocks count as clean.
    pub(crate) fn take_dirty(&mut self) -> Vec<IpNet> {
        let dirty: Vec<_> = self.dirty.difference(&self.in_flight).copied().collect();
        for cidr in &dirty {
            self.dirty.remove(cidr);
        }
        dirty
    }

    /// Takes an address from the own blocks in a pool.
    pub(crate) fn take_next(
        &mut self,
        pool: IpNet,
        part: PartId,
        attribute: &Arc<Attribute>,
        context: &Context<'_>,
    ) -> Option<(IpNet, Ordinal)> {
        let mut taken = None;
        let mut empty = Vec::new();
        for cidr in self.ready.range(pool..=IpNet::from(pool.broadcast())) {
            let Some(work) = self.all.get_mut(cidr) else { continue };
            if !work.is_usable(context.node) || work.has_empty_queue() {
                empty.push(*cidr);
            } else if let Some(ordinal) = work.take_next(part, attribute, context) {
                taken = Some((*cidr, ordinal));
                break;
            }
        }
        for cidr in empty {
            self.ready.remove(&cidr);
        }
        taken
    }

    /// Forgets the demands that no write in flight serves.
    pub(crate) fn clear_demands(&mut self) {
        for cidr in std::mem::take(&mut self.demanded) {
            if let Some(work) = self.all.get_mut(&cidr) {
                work.demands.clear();
            }
        }
    }

    pub(crate) fn add_demand(&mut self, cidr: IpNet, demand: Demand) {
        self.demanded.insert(cidr);
        self.change(cidr).demands.push(demand);
    }

    /// Returns whether a write in flight serves a part of a request.
    pub(crate) fn is_served(&self, part: PartId) -> bool {
        self.in_flight().any(|(_, work)| work.served.iter().any(|(demand, _)| demand.part == part))
    }

    /// Returns the next write of a block, see [`BlockWork::next_write`].
    pub(crate) fn next_write(
        &mut self,
        cidr: IpNet,
        automatic: bool,
        context: &Context<'_>,
    ) -> Option<Write> {
        self.all.get_mut(&cidr)?.next_write(cidr, automatic, context)
    }

    pub(crate) fn start(&mut self, cidr: IpNet, in_flight: InFlight<Block>, node: &str) {
        if let Some(work) = self.all.get_mut(&cidr) {
            work.in_flight = Some(in_flight);
        }
        self.index(cidr, node);
    }

    pub(crate) fn has_dirty(&self) -> bool {
        self.dirty.difference(&self.in_flight).next().is_some()
    }

    pub(crate) fn in_flight(&self) -> impl Iterator<Item = (IpNet, &BlockWork)> {
        self.in_flight.iter().filter_map(|cidr| Some((*cidr, self.all.get(cidr)?)))
    }

    /// Returns the existing block that contains an address.
    pub(crate) fn containing(&self, address: IpAddr) -> Option<IpNet> {
        let max = if address.is_ipv4() { 32 } else { 128 };
        // Blocks have 12 host bits at most. Usually all have the same length.
        (max - 12..=max).rev().map(|length| cidr::block(address, length)).find(|c| self.exists(*c))
    }

    /// Returns an existing block that overlaps a prefix. After a change of a pool's block size, blocks of the old size
    /// remain.
    pub(crate) fn overlapping(&self, prefix: IpNet) -> Option<IpNet> {
        let larger = self.containing(prefix.network());
        larger.or_else(|| {
            let last = IpNet::from(prefix.broadcast());
            let inside = self.all.range(prefix..=last).map(|(cidr, _)| *cidr);
            inside.into_iter().find(|cidr| prefix.contains(cidr) && self.exists(*cidr))
        })
    }

    /// Returns whether the block exists, or is being created.
    fn exists(&self, cidr: IpNet) -> bool {
        self.all.get(&cidr).is_some_and(|work| {
            work.intent == Intent::Claim
                || matches!(work.known, Known::Present(..) | Known::Malformed(_))
        })
    }
}
