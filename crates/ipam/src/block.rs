// SPDX-License-Identifier: Apache-2.0
//! A block of addresses: the unit that nodes claim, and that the store changes by compare-and-swap.
//!
//! An address is free or allocated. Free addresses are in a queue; assigning takes the first, which has been free
//! longest, and releasing appends to the end. An allocation has an attribute, which says who uses the address, and a
//! sequence number, which changes with every assignment: a release that names an old number is refused. A released
//! address can have a cool-down: it stays allocated, to an attribute that has only the time of the release.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::calico::Preserved;
use crate::pools::Reservations;
use crate::range::bits;
use crate::{Timestamp, cidr};

/// Position of an address in its block.
pub type Ordinal = u16;

/// Blocks have at most 4096 addresses.
const MAX_BITS: u8 = 12;

/// A consistent block: every ordinal is either allocated or once in the queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    cidr: IpNet,
    /// `host:<node>` if a node has claimed the block.
    pub affinity: Option<String>,
    /// Time of the claim.
    pub claimed: Option<Timestamp>,
    slots: Vec<Option<Allocation>>,
    free: VecDeque<Ordinal>,
    /// Changes with every write.
    pub sequence: u64,
    /// Set by a Calico client just before it deletes the object. Treated like a deleted object.
    pub deleted: bool,
    pub preserved: Preserved,
}

/// An allocated address.
#[derive(Debug, Clone, PartialEq)]
pub struct Allocation {
    pub attribute: Arc<Attribute>,
    /// Sequence number of the block when the address was allocated.
    pub sequence: u64,
}

/// User of an address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attribute {
    pub handle: Option<String>,
    /// Pod, namespace, node, type, and what else the writer stored.
    pub secondary: BTreeMap<String, String>,
    /// Only for an address in its cool-down.
    pub released_at: Option<Timestamp>,
    /// Fields that podwire does not know.
    pub preserved: Map<String, Value>,
}

/// Fields of a stored block.
#[derive(Debug)]
pub(crate) struct BlockParts {
    pub affinity: Option<String>,
    pub claimed: Option<Timestamp>,
    pub attributes: Vec<Arc<Attribute>>,
    /// Index of the attribute of each ordinal.
    pub allocations: Vec<Option<usize>>,
    pub unallocated: Vec<usize>,
    pub sequence: u64,
    pub sequences: BTreeMap<usize, u64>,
    pub deleted: bool,
    pub preserved: Preserved,
}

/// Numbers of addresses in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockCounts {
    pub size: usize,
    pub free: usize,
    /// Released, but still in the cool-down.
    pub cooling: usize,
    /// Set aside by the owner for fast assignments.
    pub reserved: usize,
    /// In use.
    pub used: usize,
    /// The part of `used` that other nodes than the owner use.
    pub borrowed: usize,
}

/// Reason why an address of a block cannot be changed as wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    #[error("address {address} is in use by {user}")]
    InUse { address: IpAddr, user: String },
    #[error(
        "address {address} was released {ago} s ago and may be assigned again after its cool-down"
    )]
    Cooling { address: IpAddr, ago: u64 },
    #[error("address {address} is not allocated")]
    NotAllocated { address: IpAddr },
    #[error("address {address} has handle {actual:?}; the request is for {expected:?}")]
    Handle { address: IpAddr, expected: String, actual: String },
    #[error(
        "address {address} was assigned again: sequence number {actual}, the request has {expected}"
    )]
    Sequence { address: IpAddr, expected: u64, actual: u64 },
}

impl Attribute {
    /// Handle of the addresses that a node sets aside for fast assignments.
    pub fn reserve_handle(node: &str) -> String {
        format!("podwire-reserved-{node}")
    }

    /// Returns the attribute of the addresses that a node sets aside.
    pub fn reserve(node: &str) -> Self {
        Self {
            handle: Some(Self::reserve_handle(node)),
            secondary: BTreeMap::from([("node".to_owned(), node.to_owned())]),
            ..Self::default()
        }
    }

    fn cooling(now: Timestamp) -> Self {
        Self { released_at: Some(now), ..Self::default() }
    }

    /// Returns the handle. Some old entries of Calico continue with a line break and another word.
    pub fn handle(&self) -> Option<&str> {
        self.handle.as_deref().and_then(|handle| handle.split('\r').next())
    }

    /// Returns the node that uses the address.
    pub fn node(&self) -> Option<&str> {
        self.secondary.get("node").map(String::as_str)
    }

    /// Returns the node that has set the address aside.
    pub fn reserved_by(&self) -> Option<&str> {
        self.handle().and_then(|handle| handle.strip_prefix("podwire-reserved-"))
    }

    pub fn is_cooling(&self) -> bool {
        self.released_at.is_some()
    }

    /// Describes the user for messages.
    pub fn user(&self) -> String {
        let get = |key: &str| self.secondary.get(key);
        if let Some(node) = self.reserved_by() {
            return format!("node {node}, which has set it aside for its pods");
        }
        match (get("namespace"), get("pod"), get("type"), self.handle()) {
            (Some(namespace), Some(pod), ..) => format!("pod {namespace}/{pod}"),
            (_, _, Some(kind), _) => format!("{kind} of node {}", self.node().unwrap_or("unknown")),
            (_, _, _, Some(handle)) => format!("handle {handle}"),
            _ => "an allocation without handle".to_owned(),
        }
    }
}

impl Block {
    /// Creates a block for a node, with all addresses free.
    ///
    /// As in Calico, the sequence starts with the time: if a block is deleted and created again, no number repeats.
    pub fn new(cidr: IpNet, node: &str, now: Timestamp) -> Self {
        let size = 1 << host_bits(cidr).min(MAX_BITS);
        Self {
            cidr,
            affinity: Some(format!("host:{node}")),
            claimed: Some(now),
            slots: vec![None; size],
            free: (0..size).filter_map(|ordinal| ordinal.try_into().ok()).collect(),
            sequence: now.as_millis().saturating_mul(1_000_000),
            deleted: false,
            preserved: Preserved::default(),
        }
    }

    /// Checks a stored block. The error is the reason.
    pub(crate) fn from_parts(cidr: IpNet, parts: BlockParts) -> Result<Self, String> {
        if cidr.trunc() != cidr || host_bits(cidr) > MAX_BITS {
            let min = cidr.max_prefix_len() - MAX_BITS;
            return Err(format!(
                "cidr {cidr}: expected a network with prefix length {min} or more"
            ));
        }
        let size = 1_usize << host_bits(cidr);
        if parts.allocations.len() != size {
            let length = parts.allocations.len();
            return Err(format!("allocations: {length} entries; expected {size} for {cidr}"));
        }
        let slot = |(ordinal, index): (usize, &Option<usize>)| match index {
            None => Ok(None),
            Some(index) => match parts.attributes.get(*index) {
                None => Err(format!("allocations[{ordinal}]: there is no attribute {index}")),
                Some(attribute) => {
                    let sequence = parts.sequences.get(&ordinal).copied().unwrap_or_default();
                    Ok(Some(Allocation { attribute: Arc::clone(attribute), sequence }))
                }
            },
        };
        let slots = parts.allocations.iter().enumerate().map(slot).collect::<Result<_, _>>()?;
        let mut block = Self {
            cidr,
            affinity: parts.affinity.filter(|text| !text.is_empty()),
            claimed: parts.claimed,
            slots,
            free: VecDeque::with_capacity(size),
            sequence: parts.sequence,
            deleted: parts.deleted,
            preserved: parts.preserved,
        };
        block.fill_queue(&parts.unallocated)?;
        Ok(block)
    }

    /// An ordinal that is neither allocated nor in the stored queue would be lost, so it is appended.
    fn fill_queue(&mut self, unallocated: &[usize]) -> Result<(), String> {
        let mut is_queued = vec![false; self.slots.len()];
        for &ordinal in unallocated {
            match self.slots.get(ordinal) {
                None => return Err(format!("unallocated: ordinal {ordinal} is out of range")),
                Some(Some(_)) => {
                    return Err(format!("unallocated: ordinal {ordinal} is also allocated"));
                }
                Some(None) if is_queued[ordinal] => {
                    return Err(format!("unallocated: ordinal {ordinal} appears twice"));
                }
                Some(None) => is_queued[ordinal] = true,
            }
        }
        let missing = (0..self.slots.len()).filter(|o| self.slots[*o].is_none() && !is_queued[*o]);
        let all = unallocated.iter().copied().chain(missing);
        self.free = all.filter_map(|ordinal| ordinal.try_into().ok()).collect();
        Ok(())
    }

    pub fn cidr(&self) -> IpNet {
        self.cidr
    }

    /// Returns the number of addresses.
    pub fn size(&self) -> usize {
        self.slots.len()
    }

    /// Returns the node that has claimed the block.
    pub fn owner(&self) -> Option<&str> {
        self.affinity.as_deref().and_then(|affinity| affinity.strip_prefix("host:"))
    }

    pub fn address(&self, ordinal: Ordinal) -> IpAddr {
        let base = self.cidr.network();
        cidr::address(base, bits(base) + u128::from(ordinal))
    }

    /// Returns the position of an address, or `None` if it is not in the block.
    pub fn ordinal(&self, address: IpAddr) -> Option<Ordinal> {
        let offset = || bits(address) - bits(self.cidr.network());
        self.cidr.contains(&address).then(offset)?.try_into().ok()
    }

    pub fn allocation(&self, ordinal: Ordinal) -> Option<&Allocation> {
        self.slots.get(usize::from(ordinal))?.as_ref()
    }

    /// Returns the allocated ordinals in order, also those in their cool-down.
    pub fn allocations(&self) -> impl Iterator<Item = (Ordinal, &Allocation)> {
        (0..).zip(&self.slots).filter_map(|(ordinal, slot)| Some((ordinal, slot.as_ref()?)))
    }

    /// Returns the free ordinals. The first has been free longest.
    pub fn free(&self) -> impl Iterator<Item = Ordinal> {
        self.free.iter().copied()
    }

    /// Returns the free ordinals that may be assigned to a request that names no address.
    pub fn assignable(&self, reservations: &Reservations) -> impl Iterator<Item = Ordinal> {
        self.free().filter(|ordinal| !reservations.contains(self.address(*ordinal)))
    }

    /// Returns the addresses that other nodes than the owner use, with the node.
    pub fn borrowed(&self) -> impl Iterator<Item = (IpAddr, &str)> {
        let owner = self.owner();
        self.allocations().filter_map(move |(ordinal, allocation)| {
            let node = allocation.attribute.node()?;
            (Some(node) != owner).then(|| (self.address(ordinal), node))
        })
    }

    /// Assigns the address that has been free longest.
    pub fn assign_next(
        &mut self,
        attribute: &Arc<Attribute>,
        reservations: &Reservations,
    ) -> Option<Ordinal> {
        let ordinal = self.assignable(reservations).next()?;
        self.assign(ordinal, attribute).ok()?;
        Some(ordinal)
    }

    /// Assigns a certain address, which must be free.
    pub fn assign(
        &mut self,
        ordinal: Ordinal,
        attribute: &Arc<Attribute>,
    ) -> Result<(), BlockError> {
        if let Some(allocation) = self.allocation(ordinal) {
            let user = allocation.attribute.user();
            return Err(BlockError::InUse { address: self.address(ordinal), user });
        }
        if let Some(position) = self.free.iter().position(|free| *free == ordinal) {
            self.free.remove(position);
        }
        self.put(ordinal, attribute);
        Ok(())
    }

    /// Gives an allocated address to another user, without making it free in between.
    pub fn hand_over(&mut self, ordinal: Ordinal, attribute: &Arc<Attribute>) {
        if self.allocation(ordinal).is_some() {
            self.put(ordinal, attribute);
        }
    }

    fn put(&mut self, ordinal: Ordinal, attribute: &Arc<Attribute>) {
        let allocation = Allocation { attribute: Arc::clone(attribute), sequence: self.sequence };
        self.slots[usize::from(ordinal)] = Some(allocation);
    }

    /// Returns the allocation if it has this handle and sequence number.
    pub fn check(
        &self,
        ordinal: Ordinal,
        handle: &str,
        sequence: Option<u64>,
    ) -> Result<&Allocation, BlockError> {
        let address = self.address(ordinal);
        let allocation = self.allocation(ordinal).filter(|a| !a.attribute.is_cooling());
        let allocation = allocation.ok_or(BlockError::NotAllocated { address })?;
        let actual = allocation.attribute.handle().unwrap_or_default();
        if actual != handle {
            let (expected, actual) = (handle.to_owned(), actual.to_owned());
            return Err(BlockError::Handle { address, expected, actual });
        }
        match sequence {
            Some(expected) if expected != allocation.sequence => {
                Err(BlockError::Sequence { address, expected, actual: allocation.sequence })
            }
            _ => Ok(allocation),
        }
    }

    /// Releases an address: at once, or into its cool-down.
    pub fn release(&mut self, ordinal: Ordinal, now: Timestamp, cooldown: Duration) {
        if self.allocation(ordinal).is_none() {
            return;
        }
        if cooldown.is_zero() {
            self.slots[usize::from(ordinal)] = None;
            self.free.push_back(ordinal);
        } else {
            self.put(ordinal, &Arc::new(Attribute::cooling(now)));
        }
    }

    /// Moves addresses into the queue after their cool-down. Returns whether there were any.
    pub fn end_cooldowns(&mut self, now: Timestamp, cooldown: Duration) -> bool {
        let mut ended: Vec<_> = self
            .allocations()
            .filter_map(|(ordinal, allocation)| {
                let released = allocation.attribute.released_at?;
                (now.since(released) >= cooldown).then_some((released, ordinal))
            })
            .collect();
        ended.sort_unstable();
        for (_, ordinal) in &ended {
            self.slots[usize::from(*ordinal)] = None;
            self.free.push_back(*ordinal);
        }
        !ended.is_empty()
    }

    /// Returns whether no address is in use. Addresses that a node has set aside do not count as used.
    pub fn is_unused(&self) -> bool {
        self.allocations().all(|(_, allocation)| allocation.attribute.reserved_by().is_some())
    }

    pub fn counts(&self) -> BlockCounts {
        let mut counts =
            BlockCounts { size: self.size(), free: self.free.len(), ..BlockCounts::default() };
        for (_, allocation) in self.allocations() {
            let attribute = &allocation.attribute;
            if attribute.is_cooling() {
                counts.cooling += 1;
            } else if attribute.reserved_by().is_some() {
                counts.reserved += 1;
            } else {
                counts.used += 1;
            }
        }
        counts.borrowed = self.borrowed().count();
        counts
    }
}

fn host_bits(cidr: IpNet) -> u8 {
    cidr.max_prefix_len() - cidr.prefix_len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calico::Reservation;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn block() -> Block {
        Block::new("10.0.0.8/30".parse().unwrap(), "node1", NOW)
    }

    fn used(handle: &str, node: &str) -> Arc<Attribute> {
        let secondary = BTreeMap::from([("node".to_owned(), node.to_owned())]);
        Arc::new(Attribute { handle: Some(handle.to_owned()), secondary, ..Attribute::default() })
    }

    fn none() -> Reservations {
        Reservations::default()
    }

    #[test]
    fn assignment_takes_the_address_that_was_free_longest() {
        let mut block = block();
        let attribute = used("h", "node1");
        let taken: Vec<_> = (0..5).map(|_| block.assign_next(&attribute, &none())).collect();
        assert_eq!(taken, [Some(0), Some(1), Some(2), Some(3), None]);
        for ordinal in [2, 0, 3] {
            block.release(ordinal, NOW, Duration::ZERO);
        }
        let taken: Vec<_> = (0..3).map(|_| block.assign_next(&attribute, &none())).collect();
        assert_eq!(taken, [Some(2), Some(0), Some(3)]);
    }

    #[test]
    fn reservation_is_skipped_unless_named() {
        let mut block = block();
        let reserved =
            Reservation { cidrs: vec!["10.0.0.8/31".parse().unwrap()], ..Default::default() };
        let reservations = Reservations::new([&reserved]);
        assert_eq!(block.assign_next(&used("h", "node1"), &reservations), Some(2));
        assert_eq!(block.assign(0, &used("h", "node1")), Ok(()));
        assert_eq!(block.free().collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn named_address_in_use_is_refused_with_its_user() {
        let mut block = block();
        block.assign(1, &used("h", "node1")).unwrap();
        let error = block.assign(1, &used("g", "node1")).unwrap_err().to_string();
        assert_eq!(error, "address 10.0.0.9 is in use by handle h");
        block.assign(2, &Arc::new(Attribute::reserve("node1"))).unwrap();
        let error = block.assign(2, &used("g", "node1")).unwrap_err().to_string();
        assert_eq!(
            error,
            "address 10.0.0.10 is in use by node node1, which has set it aside for its pods"
        );
    }

    #[test]
    fn stale_release_is_refused() {
        let mut block = block();
        block.assign(0, &used("h", "node1")).unwrap();
        let old = block.allocation(0).unwrap().sequence;
        block.sequence += 1;
        block.release(0, NOW, Duration::ZERO);
        block.assign(0, &used("h", "node1")).unwrap();
        assert!(matches!(block.check(0, "h", Some(old)), Err(BlockError::Sequence { .. })));
        assert!(matches!(block.check(0, "g", None), Err(BlockError::Handle { .. })));
        assert!(matches!(block.check(1, "h", None), Err(BlockError::NotAllocated { .. })));
        assert!(block.check(0, "h", Some(old + 1)).is_ok());
    }

    #[test]
    fn released_address_waits_for_its_cooldown() {
        let mut block = block();
        let cooldown = Duration::from_secs(30);
        for _ in 0..4 {
            block.assign_next(&used("h", "node1"), &none());
        }
        block.release(3, NOW, cooldown);
        block.release(1, NOW + Duration::from_secs(1), cooldown);
        assert!(!block.end_cooldowns(NOW + Duration::from_secs(29), cooldown));
        assert_eq!(
            block.counts(),
            BlockCounts { size: 4, cooling: 2, used: 2, ..Default::default() }
        );
        assert!(block.end_cooldowns(NOW + Duration::from_secs(40), cooldown));
        assert_eq!(block.free().collect::<Vec<_>>(), [3, 1]);
    }

    #[test]
    fn counts_tell_reserved_and_borrowed_addresses() {
        let mut block = block();
        block.assign(0, &Arc::new(Attribute::reserve("node1"))).unwrap();
        assert!(block.is_unused());
        block.assign(1, &used("h", "node2")).unwrap();
        block.assign(2, &used("g", "node1")).unwrap();
        assert!(!block.is_unused());
        let expected =
            BlockCounts { size: 4, free: 1, reserved: 1, used: 2, borrowed: 1, cooling: 0 };
        assert_eq!(block.counts(), expected);
        let borrowed: Vec<_> = block.borrowed().collect();
        assert_eq!(borrowed, [("10.0.0.9".parse().unwrap(), "node2")]);
    }

    #[test]
    fn address_and_ordinal_are_inverse() {
        // libcalico-go/lib/backend/model/block_test.go
        for (cidr, ordinal, address) in [
            ("10.0.0.64/30", 3, "10.0.0.67"),
            ("10.0.0.64/32", 0, "10.0.0.64"),
            ("10.0.128.0/20", 257, "10.0.129.1"),
            ("fd00::40/122", 5, "fd00::45"),
        ] {
            let block = Block::new(cidr.parse().unwrap(), "n", NOW);
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(block.address(ordinal), address);
            assert_eq!(block.ordinal(address), Some(ordinal));
        }
        assert_eq!(block().ordinal("10.0.0.7".parse().unwrap()), None);
        assert_eq!(block().ordinal("fd00::8".parse().unwrap()), None);
    }
}
