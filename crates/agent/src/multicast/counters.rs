// SPDX-License-Identifier: Apache-2.0
//! Counters of forwarded and dropped packets.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters, updated by the forwarder and read by the status.
#[derive(Debug, Default)]
pub struct Counters {
    /// Packets of local pods that were forwarded.
    pub carried: AtomicU64,
    /// Copies of those packets, one for each receiving node.
    pub sent: AtomicU64,
    /// Packets of other nodes that were delivered to local pods.
    pub delivered: AtomicU64,
    /// Groups that local pods have joined.
    pub groups: AtomicU64,
    dropped: [AtomicU64; DropReason::ALL.len()],
}

/// Why a packet or datagram was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// The rate limit was exceeded.
    Rate,
    /// The datagram does not come from the node that it names, or its packet does not come from a pod of that node.
    Forged,
    /// The datagram comes from a node that is not known, or not known yet.
    Stranger,
    /// The datagram has another protocol or version.
    Unknown,
    /// The kernel rejected the packet, for example because it is larger than the bridge's MTU.
    Refused,
    /// The packet is a batch that the sender left to segmentation offload.
    Uncut,
}

impl DropReason {
    pub const ALL: [Self; 6] =
        [Self::Rate, Self::Forged, Self::Stranger, Self::Unknown, Self::Refused, Self::Uncut];

    /// Value of the metric label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Forged => "forged",
            Self::Stranger => "stranger",
            Self::Unknown => "unknown",
            Self::Refused => "refused",
            Self::Uncut => "uncut",
        }
    }
}

impl Counters {
    pub(super) fn count_drop(&self, reason: DropReason) {
        add(&self.dropped[reason as usize], 1);
    }

    /// Returns the number of packets dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize].load(Ordering::Relaxed)
    }
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
