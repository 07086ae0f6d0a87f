// SPDX-License-Identifier: Apache-2.0
//! What becomes of each packet of a pod and of each datagram of another node. Knows no socket: it is given bytes
//! and says what to send where.
//!
//! Nothing that came from another node is sent on, so nothing goes round in circles.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use kernel::{Family, MacAddr};

use super::counts::{Counts, Loss};
use super::members::Members;
use super::packet::{self, Content, Many, Packet};
use super::rate::Rate;
use super::wire::{self, Message, Wants};

/// What a node wants counts for so long; it says so again three times in that.
const WANTS_STAY: Duration = Duration::from_secs(100);

/// Another node. Its agent sends from, and is reached at, the addresses that its pods have as their gateway: no
/// pod can use them, and what is sent there goes the way of all that pods send each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its pods' subnets.
    pub subnets: Vec<IpNet>,
}

/// The address that the pods of a subnet have as their gateway.
pub(crate) fn gateway(subnet: IpNet) -> Option<IpAddr> {
    let next = match subnet.network() {
        IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits().checked_add(1)?).into(),
        IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits().checked_add(1)?).into(),
    };
    subnet.contains(&next).then_some(next)
}

/// This node and all others.
#[derive(Debug)]
pub struct Relay {
    subnets: Vec<IpNet>,
    members: Members,
    has_bridge: bool,
    peers: HashMap<String, Known>,
    /// Peers by their subnets.
    by_subnet: HashMap<IpNet, String>,
    sending: Rate,
    receiving: Rate,
}

#[derive(Debug)]
struct Known {
    peer: Peer,
    /// Where it is reached, if by a family that this node has as well.
    address: Option<IpAddr>,
    wants: Option<(Wants, Instant)>,
}

/// What a packet of a pod leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outward {
    Nothing,
    /// The same datagram to all of these.
    Send {
        datagram: Vec<u8>,
        to: Vec<IpAddr>,
    },
    /// The groups of this node's pods are others now; the rest should be asked.
    Groups {
        have_changed: bool,
        must_ask: bool,
    },
}

/// What a datagram of another node leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inward {
    Nothing,
    /// For the pods.
    Deliver {
        family: Family,
        mac: MacAddr,
        packet: Vec<u8>,
    },
    /// Someone wants to know what our pods want.
    Answer(IpAddr),
}

impl Relay {
    /// A node with these subnets.
    pub fn new(subnets: Vec<IpNet>, now: Instant) -> Self {
        Self {
            subnets,
            members: Members::default(),
            has_bridge: false,
            peers: HashMap::new(),
            by_subnet: HashMap::new(),
            sending: Rate::new(now),
            receiving: Rate::new(now),
        }
    }

    /// A peer has come or changed; where it is reached, if it is news.
    pub fn set_peer(&mut self, peer: Peer) -> Option<IpAddr> {
        if self.peers.get(&peer.name).is_some_and(|known| known.peer == peer) {
            return None;
        }
        self.remove_peer(&peer.name);
        for subnet in &peer.subnets {
            self.by_subnet.insert(*subnet, peer.name.clone());
        }
        let is_common = |subnet: &&IpNet| self.subnet(Family::of(subnet.addr())).is_some();
        let address = peer.subnets.iter().find(is_common).and_then(|subnet| gateway(*subnet));
        self.peers.insert(peer.name.clone(), Known { peer, address, wants: None });
        address
    }

    /// Removes a peer. The cost does not depend on the number of peers.
    pub fn remove_peer(&mut self, name: &str) {
        let Some(known) = self.peers.remove(name) else { return };
        for subnet in &known.peer.subnets {
            // Another peer may have claimed the subnet since.
            if self.by_subnet.get(subnet).is_some_and(|owner| owner == name) {
                self.by_subnet.remove(subnet);
            }
        }
    }

    /// Forgets all peers but these.
    pub fn retain_peers(&mut self, peers: &[Peer]) {
        let stay: HashSet<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
        self.peers.retain(|name, _| stay.contains(name.as_str()));
        self.by_subnet.retain(|_, owner| stay.contains(owner.as_str()));
    }

    /// Where all peers are reached.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.peers.values().filter_map(|known| known.address).collect()
    }

    /// Pods have a bridge, or have none; who is on it is not known yet.
    pub fn set_bridge(&mut self, has_bridge: bool) {
        self.has_bridge = has_bridge;
        self.members = Members::default();
    }

    /// What others should know of our pods.
    pub fn announcement(&self) -> Option<Vec<u8>> {
        let wants = Wants {
            has_pods: self.has_bridge,
            all: self.members.is_full(),
            groups: self.members.groups(),
        };
        Some(wire::write(*self.subnets.first()?, &Message::Wants(wants)))
    }

    /// What asks others for the same.
    pub fn question(&self) -> Option<Vec<u8>> {
        Some(wire::write(*self.subnets.first()?, &Message::Question))
    }

    /// Forgets who has been silent for too long; whether others should know.
    pub fn expire(&mut self, now: Instant) -> bool {
        self.members.expire(now)
    }

    /// When someone will have been silent for too long.
    pub fn next_end(&self) -> Option<Instant> {
        self.members.next_end()
    }

    /// How many groups pods are in.
    pub fn groups(&self) -> usize {
        self.members.len()
    }

    /// A pod has sent this.
    pub fn outward(&mut self, bytes: &[u8], now: Instant, counts: &Counts) -> Outward {
        let Some(packet) = Packet::read(bytes, self.subnet(Family::V4)) else {
            return Outward::Nothing;
        };
        if let Content::Reports(reports) = &packet.content {
            let (mut have_changed, mut must_ask) = (false, false);
            for report in reports {
                let noted = self.members.note(packet.source, *report, now);
                have_changed |= noted.has_changed;
                must_ask |= noted.must_ask;
            }
            return Outward::Groups { have_changed, must_ask };
        }
        if !packet.is_carried(&self.subnets) {
            return Outward::Nothing;
        }
        let to = self.interested(packet.to, now);
        let of_family = packet::family(bytes).and_then(|family| self.subnet(family));
        let Some(subnet) = of_family.filter(|_| !to.is_empty()) else { return Outward::Nothing };
        if !self.sending.take(to.len() as u32, now) {
            counts.lose(Loss::Rate);
            return Outward::Nothing;
        }
        Outward::Send { datagram: wire::write(subnet, &Message::Packet(bytes)), to }
    }

    fn interested(&self, to: Many, now: Instant) -> Vec<IpAddr> {
        let wants = |known: &&Known| match (&known.wants, to) {
            (Some((_, until)), _) if *until < now => false,
            (Some((wants, _)), Many::All(_)) => wants.has_pods,
            (Some((wants, _)), Many::Group(group)) => wants.has(group),
            (None, _) => false,
        };
        self.peers.values().filter(wants).filter_map(|known| known.address).collect()
    }

    /// Another node's agent has sent this, from this address.
    pub fn inward(
        &mut self,
        from: IpAddr,
        datagram: &[u8],
        now: Instant,
        counts: &Counts,
    ) -> Inward {
        let refuse = |why| {
            counts.lose(why);
            Inward::Nothing
        };
        let Some((subnet, message)) = wire::read(datagram) else { return refuse(Loss::Unknown) };
        let Some(known) = self.by_subnet.get(&subnet).and_then(|name| self.peers.get_mut(name))
        else {
            return refuse(Loss::Stranger);
        };
        let is_gateway = |subnet: &IpNet| gateway(*subnet) == Some(from);
        if !known.peer.subnets.iter().any(is_gateway) {
            return refuse(Loss::Forged);
        }
        match message {
            Message::Wants(wants) => {
                known.wants = Some((wants, now + WANTS_STAY));
                Inward::Nothing
            }
            Message::Question => known.address.map_or(Inward::Nothing, Inward::Answer),
            Message::Packet(_) if !self.receiving.take(1, now) => refuse(Loss::Rate),
            Message::Packet(bytes) => {
                let subnets = known.peer.subnets.clone();
                self.deliver(subnet, &subnets, bytes).unwrap_or_else(|| refuse(Loss::Forged))
            }
        }
    }

    /// None if it cannot be from a pod of that node.
    fn deliver(&self, subnet: IpNet, subnets: &[IpNet], bytes: &[u8]) -> Option<Inward> {
        let packet =
            Packet::read(bytes, Some(subnet)).filter(|packet| packet.is_carried(subnets))?;
        let family = packet::family(bytes)?;
        let is_wanted = match packet.to {
            Many::All(_) => self.has_bridge,
            Many::Group(group) => self.has_bridge && self.members.has(group),
        };
        if !is_wanted {
            return Some(Inward::Nothing);
        }
        let mut bytes = bytes.to_vec();
        packet::translate(&mut bytes, Some(subnet), self.subnet(Family::V4));
        Some(Inward::Deliver { family, mac: packet.to.mac(), packet: bytes })
    }

    fn subnet(&self, family: Family) -> Option<IpNet> {
        self.subnets.iter().copied().find(|subnet| Family::of(subnet.addr()) == family)
    }
}

#[cfg(test)]
mod tests;
