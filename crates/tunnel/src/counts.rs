// SPDX-License-Identifier: Apache-2.0
//! Counters of packets that were forwarded or dropped.

use std::sync::{Mutex, PoisonError};

/// Counters since the start of the tunnel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// From the interface to other nodes.
    pub sent: Flow,
    /// From other nodes to the interface.
    pub received: Flow,
    /// Packets that were dropped.
    pub dropped: Dropped,
}

/// Counters of one direction. Packets and bytes are counted as on the wire, without the outer UDP
/// and IP headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flow {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Number of GSO packets that were segmented or merged.
    pub large: u64,
}

/// Numbers of dropped packets by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// No peer has the destination.
    pub no_route: u64,
    /// The destination is a multicast group, which the tunnel does not forward. IPv6 sends some on
    /// every interface.
    pub multicast: u64,
    /// The TTL expired.
    pub expired: u64,
    /// Not an IP packet, or truncated.
    pub malformed: u64,
    /// The kernel rejected the datagram.
    pub not_sent: u64,
    /// The kernel rejected the received packet: the interface is down.
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

/// Counters of one thread. Other threads only read them, so the lock is rarely contended.
#[derive(Debug, Default)]
pub(crate) struct SharedCounts(Mutex<Counts>);

impl SharedCounts {
    /// Adds the counters of one round.
    pub(crate) fn add(&self, round: &Counts) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(round);
    }

    pub(crate) fn read(&self) -> Counts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
