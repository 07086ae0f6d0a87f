// SPDX-License-Identifier: Apache-2.0
//! Decides what happens to each packet of a pod and to each datagram of another node. It has no sockets: it takes bytes
//! and returns what to send where.
//!
//! A packet from another node is delivered to local pods only, so that packets cannot loop.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use kernel::{Family, MacAddr};
use overlay::lease::Lease;

use super::counters::{Counters, DropReason};
use super::membership::Membership;
use super::packet::{self, Content, Destination, Packet};
use super::protocol::{self, Interest, Message};

/// Lifetime of a peer's announcement. Peers repeat it three times in that period.
const INTEREST_TIMEOUT: Duration = Duration::from_secs(100);

/// Another node. Its agent uses the gateway addresses of its pods: no pod can use them, and traffic to them takes the same
/// path as traffic between pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    /// Subnets of its pods.
    pub subnets: Vec<IpNet>,
}

impl Peer {
    pub(crate) fn new(name: &str, lease: &Lease) -> Self {
        Self { name: name.to_owned(), subnets: lease.subnets.iter().collect() }
    }
}

/// Returns the gateway address of a subnet's pods: the first address after the base address.
pub(crate) fn gateway(subnet: IpNet) -> Option<IpAddr> {
    let next = match subnet.network() {
        IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits().checked_add(1)?).into(),
        IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits().checked_add(1)?).into(),
    };
    subnet.contains(&next).then_some(next)
}

/// State of this node and its peers.
#[derive(Debug)]
pub(super) struct Relay {
    subnets: Vec<IpNet>,
    members: Membership,
    has_bridge: bool,
    peers: HashMap<String, Known>,
    /// Names of peers by subnet.
    by_subnet: HashMap<IpNet, String>,
    send_limit: RateLimit,
    receive_limit: RateLimit,
}

#[derive(Debug)]
struct Known {
    peer: Peer,
    /// Address of the peer's agent, if both nodes have a subnet of that family.
    address: Option<IpAddr>,
    /// The last announcement and its expiry.
    interest: Option<(Interest, Instant)>,
}

/// The consequence of a packet from a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FromPod {
    Nothing,
    /// Send this datagram to all of these addresses.
    Send {
        datagram: Vec<u8>,
        to: Vec<IpAddr>,
    },
    /// The pod has reported its groups.
    Groups {
        have_changed: bool,
        must_query: bool,
    },
}

/// The consequence of a datagram from another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FromPeer {
    Nothing,
    /// Deliver this packet to the pods.
    Deliver {
        family: Family,
        mac: MacAddr,
        packet: Vec<u8>,
    },
    /// Announce this node's groups to this address.
    Announce(IpAddr),
}

impl Relay {
    /// Creates the relay of a node with these subnets.
    pub(super) fn new(subnets: Vec<IpNet>, now: Instant) -> Self {
        Self {
            subnets,
            members: Membership::default(),
            has_bridge: false,
            peers: HashMap::new(),
            by_subnet: HashMap::new(),
            send_limit: RateLimit::new(now),
            receive_limit: RateLimit::new(now),
        }
    }

    /// Adds or replaces a peer. Returns the address of its agent if the peer is new or has changed.
    pub(super) fn set_peer(&mut self, peer: Peer) -> Option<IpAddr> {
        if self.peers.get(&peer.name).is_some_and(|known| known.peer == peer) {
            return None;
        }
        self.remove_peer(&peer.name);
        for subnet in &peer.subnets {
            self.by_subnet.insert(*subnet, peer.name.clone());
        }
        let is_common = |subnet: &&IpNet| self.subnet(Family::of(subnet.addr())).is_some();
        let address = peer.subnets.iter().find(is_common).and_then(|subnet| gateway(*subnet));
        self.peers.insert(peer.name.clone(), Known { peer, address, interest: None });
        address
    }

    /// Removes a peer. The cost does not depend on the number of peers.
    pub(super) fn remove_peer(&mut self, name: &str) {
        let Some(known) = self.peers.remove(name) else { return };
        for subnet in &known.peer.subnets {
            // Another peer may have claimed the subnet since.
            if self.by_subnet.get(subnet).is_some_and(|owner| owner == name) {
                self.by_subnet.remove(subnet);
            }
        }
    }

    /// Removes all peers except these.
    pub(super) fn retain_peers(&mut self, peers: &[Peer]) {
        let retained: HashSet<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
        self.peers.retain(|name, _| retained.contains(name.as_str()));
        self.by_subnet.retain(|_, owner| retained.contains(owner.as_str()));
    }

    /// Returns the addresses of all peers' agents.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.peers.values().filter_map(|known| known.address).collect()
    }

    /// Sets whether the node has a pod bridge, and forgets all memberships.
    pub(super) fn set_bridge(&mut self, has_bridge: bool) {
        self.has_bridge = has_bridge;
        self.members = Membership::default();
    }

    /// Encodes the announcement of this node's groups.
    pub(super) fn announcement(&self) -> Option<Vec<u8>> {
        let interest = Interest {
            has_pods: self.has_bridge,
            all: self.members.is_full(),
            groups: self.members.groups(),
        };
        Some(protocol::encode(*self.subnets.first()?, &Message::Interest(interest)))
    }

    /// Encodes the query for a peer's groups.
    pub(super) fn query(&self) -> Option<Vec<u8>> {
        Some(protocol::encode(*self.subnets.first()?, &Message::Query))
    }

    /// Removes expired memberships. Returns whether the node's groups have changed.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        self.members.expire(now)
    }

    /// When the next membership may expire.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.members.next_expiry()
    }

    /// Number of groups that local pods have joined.
    pub(super) fn groups(&self) -> usize {
        self.members.len()
    }

    /// Handles a packet of a pod.
    pub(super) fn handle_pod_packet(
        &mut self,
        bytes: &[u8],
        now: Instant,
        counters: &Counters,
    ) -> FromPod {
        let Some(packet) = Packet::parse(bytes, self.subnet(Family::V4)) else {
            return FromPod::Nothing;
        };
        if let Content::Reports(reports) = &packet.content {
            let (mut have_changed, mut must_query) = (false, false);
            for report in reports {
                let effect = self.members.apply(packet.source, *report, now);
                have_changed |= effect.has_changed;
                must_query |= effect.must_query;
            }
            return FromPod::Groups { have_changed, must_query };
        }
        if !packet.is_forwarded(&self.subnets) {
            return FromPod::Nothing;
        }
        let to = self.interested(packet.to, now);
        let of_family = packet::family(bytes).and_then(|family| self.subnet(family));
        let Some(subnet) = of_family.filter(|_| !to.is_empty()) else { return FromPod::Nothing };
        if !self.send_limit.take(to.len() as u32, now) {
            counters.count_drop(DropReason::Rate);
            return FromPod::Nothing;
        }
        FromPod::Send { datagram: protocol::encode(subnet, &Message::Packet(bytes)), to }
    }

    fn interested(&self, to: Destination, now: Instant) -> Vec<IpAddr> {
        let is_interested = |known: &&Known| match (&known.interest, to) {
            (Some((_, until)), _) if *until < now => false,
            (Some((interest, _)), Destination::All(_)) => interest.has_pods,
            (Some((interest, _)), Destination::Group(group)) => interest.includes(group),
            (None, _) => false,
        };
        self.peers.values().filter(is_interested).filter_map(|known| known.address).collect()
    }

    /// Handles a datagram of another node.
    pub(super) fn handle_datagram(
        &mut self,
        from: IpAddr,
        datagram: &[u8],
        now: Instant,
        counters: &Counters,
    ) -> FromPeer {
        let reject = |reason| {
            counters.count_drop(reason);
            FromPeer::Nothing
        };
        let Some((subnet, message)) = protocol::decode(datagram) else {
            return reject(DropReason::Unknown);
        };
        let Some(known) = self.by_subnet.get(&subnet).and_then(|name| self.peers.get_mut(name))
        else {
            return reject(DropReason::Stranger);
        };
        let is_gateway = |subnet: &IpNet| gateway(*subnet) == Some(from);
        if !known.peer.subnets.iter().any(is_gateway) {
            return reject(DropReason::Forged);
        }
        match message {
            Message::Interest(interest) => {
                known.interest = Some((interest, now + INTEREST_TIMEOUT));
                FromPeer::Nothing
            }
            Message::Query => known.address.map_or(FromPeer::Nothing, FromPeer::Announce),
            Message::Packet(_) if !self.receive_limit.take(1, now) => reject(DropReason::Rate),
            Message::Packet(bytes) => {
                let subnets = known.peer.subnets.clone();
                self.deliver(subnet, &subnets, bytes).unwrap_or_else(|| reject(DropReason::Forged))
            }
        }
    }

    /// Returns `None` if the packet cannot come from a pod of that node.
    fn deliver(&self, subnet: IpNet, subnets: &[IpNet], bytes: &[u8]) -> Option<FromPeer> {
        let packet =
            Packet::parse(bytes, Some(subnet)).filter(|packet| packet.is_forwarded(subnets))?;
        let family = packet::family(bytes)?;
        let has_receiver = match packet.to {
            Destination::All(_) => self.has_bridge,
            Destination::Group(group) => self.has_bridge && self.members.has(group),
        };
        if !has_receiver {
            return Some(FromPeer::Nothing);
        }
        let mut bytes = bytes.to_vec();
        packet::translate(&mut bytes, Some(subnet), self.subnet(Family::V4));
        Some(FromPeer::Deliver { family, mac: packet.to.mac(), packet: bytes })
    }

    fn subnet(&self, family: Family) -> Option<IpNet> {
        self.subnets.iter().copied().find(|subnet| Family::of(subnet.addr()) == family)
    }
}

/// Sustained limit of packets per second, so that a pod that floods the network does not starve the others.
const PER_SECOND: u32 = 20_000;
/// Packets that may pass at once.
const BURST: u32 = 5_000;

/// A token bucket.
#[derive(Debug)]
struct RateLimit {
    tokens: f64,
    updated: Instant,
}

impl RateLimit {
    fn new(now: Instant) -> Self {
        Self { tokens: f64::from(BURST), updated: now }
    }

    /// Takes tokens for `count` packets. Returns `false` if there are not enough.
    fn take(&mut self, count: u32, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
        self.tokens = (self.tokens + passed * f64::from(PER_SECOND)).min(f64::from(BURST));
        // A packet for more peers than the burst passes if the bucket is full.
        if self.tokens < f64::from(count.min(BURST)) {
            return false;
        }
        self.tokens -= f64::from(count);
        true
    }
}

#[cfg(test)]
mod tests;
