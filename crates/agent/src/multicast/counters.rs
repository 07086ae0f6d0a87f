// SPDX-License-Identifier: Apache-2.0
//! What was carried, and what was not.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that others may look at.
#[derive(Debug, Default)]
pub struct Counts {
    /// Packets of pods that were carried to other nodes.
    pub carried: AtomicU64,
    /// Copies of them, one for each node.
    pub sent: AtomicU64,
    /// Packets of other nodes' pods that were given to pods.
    pub delivered: AtomicU64,
    /// Groups that pods are in.
    pub groups: AtomicU64,
    lost: [AtomicU64; Loss::ALL.len()],
}

/// Why something was not carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// More than may be carried in a second.
    Rate,
    /// A datagram that does not come from the node it names, or a packet that does not come from its pods.
    Forged,
    /// A datagram of a node that is not known, or not yet.
    Stranger,
    /// A datagram of another protocol or version.
    Unknown,
    /// Refused by the kernel, as when it is too large for the bridge.
    Refused,
    /// Several packets in one, as only senders of very much make them.
    Uncut,
}

impl Loss {
    pub const ALL: [Self; 6] =
        [Self::Rate, Self::Forged, Self::Stranger, Self::Unknown, Self::Refused, Self::Uncut];

    /// Its word in metrics.
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

impl Counts {
    pub(super) fn lose(&self, why: Loss) {
        add(&self.lost[why as usize], 1);
    }

    /// How many were lost for this reason.
    pub fn lost(&self, why: Loss) -> u64 {
        self.lost[why as usize].load(Ordering::Relaxed)
    }
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
