// SPDX-License-Identifier: Apache-2.0
//! What has been carried and what has not.

use std::sync::{Mutex, PoisonError};

/// Since the tunnel was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// From the interface to other nodes.
    pub sent: Flow,
    /// From other nodes to the interface.
    pub received: Flow,
    /// What was not carried.
    pub dropped: Dropped,
}

/// One direction. Packets and bytes are those on the wire, without the headers of UDP and below.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flow {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Large packets that were cut into several, or that several were merged into.
    pub large: u64,
}

/// Packets that went no further.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// No peer has the destination.
    pub no_route: u64,
    /// To many hosts, as IPv6 sends them on every interface: they are not carried.
    pub multicast: u64,
    /// They had passed as many routers as they may.
    pub expired: u64,
    /// No IP packets, or cut off.
    pub malformed: u64,
    /// The kernel did not send them.
    pub not_sent: u64,
    /// The kernel did not take them in: the interface is down.
    pub not_taken: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.sent.add(&other.sent);
        self.received.add(&other.received);
        let (sum, other) = (&mut self.dropped, &other.dropped);
        sum.no_route += other.no_route;
        sum.multicast += other.multicast;
        sum.expired += other.expired;
        sum.malformed += other.malformed;
        sum.not_sent += other.not_sent;
        sum.not_taken += other.not_taken;
    }
}

impl Flow {
    fn add(&mut self, other: &Flow) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.large += other.large;
    }
}

/// One thread's counts: others only look, so that the lock is free.
#[derive(Debug, Default)]
pub(crate) struct Shared(Mutex<Counts>);

impl Shared {
    /// Adds what one round has brought.
    pub(crate) fn add(&self, round: &Counts) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(round);
    }

    pub(crate) fn read(&self) -> Counts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
