// SPDX-License-Identifier: Apache-2.0
//! The kernel state as the status shows it: conflicts, repairs, and the last full comparison.

use std::collections::{BTreeMap, VecDeque};

use overlay::diff::{Change, Conflict};

use super::MAX_LISTED;
use super::model::{Comparison, KernelStatus, Repair, RepairKind, Repairs, UdpStatus};
use crate::dataplane::routes::UdpTunnelSlot;

/// Number of repairs that are shown.
pub(super) const MAX_REPAIRS: usize = 32;

/// Conflicts, repairs, and the last full comparison.
#[derive(Debug)]
pub(super) struct Kernel {
    pub conflicts: Vec<Conflict>,
    pub comparison: Option<Comparison>,
    counts: BTreeMap<RepairKind, u64>,
    last_repairs: VecDeque<Repair>,
    /// Its counters are read whenever the status is.
    pub udp: UdpTunnelSlot,
}

impl Kernel {
    pub(super) fn new() -> Kernel {
        Kernel {
            conflicts: Vec::new(),
            comparison: None,
            counts: RepairKind::ALL.map(|kind| (kind, 0)).into(),
            last_repairs: VecDeque::new(),
            udp: UdpTunnelSlot::default(),
        }
    }

    pub(super) fn record(&mut self, repair: Repair) {
        *self.counts.entry(repair.kind).or_default() += 1;
        if self.last_repairs.len() == MAX_REPAIRS {
            self.last_repairs.pop_front();
        }
        self.last_repairs.push_back(repair);
    }

    pub(super) fn status(&self) -> KernelStatus {
        KernelStatus {
            conflicts: self.conflicts.iter().take(MAX_LISTED).map(ToString::to_string).collect(),
            conflicts_total: self.conflicts.len(),
            repairs: Repairs {
                counts: self.counts.clone(),
                last: self.last_repairs.iter().cloned().collect(),
            },
            comparison: self.comparison,
            udp: self.udp.counts().as_ref().map(UdpStatus::of),
        }
    }
}

impl From<&Change> for RepairKind {
    fn from(change: &Change) -> RepairKind {
        match change {
            Change::CreateDevice(_) | Change::ChangeDevice { .. } | Change::RemoveDevice(_) => {
                RepairKind::Device
            }
            Change::AddAddress(_) | Change::RemoveAddress(_) => RepairKind::Address,
            Change::SetNeighbour { .. } | Change::RemoveNeighbour { .. } => RepairKind::Neighbour,
            Change::SetForwarding { .. } | Change::RemoveForwarding { .. } => {
                RepairKind::Forwarding
            }
            Change::AddNexthop { .. } | Change::RemoveNexthop { .. } => RepairKind::Nexthop,
            Change::SetRoute { .. } | Change::RemoveRoute(_) => RepairKind::Route,
            Change::SetPeer { .. } | Change::RemovePeer { .. } => RepairKind::Peer,
            Change::CallAdded(_) | Change::CallRemoved(_) => RepairKind::Route,
        }
    }
}
