// SPDX-License-Identifier: Apache-2.0
//! Forwards packets between the pods' bridge and other nodes. The relay decides about each packet; this module does the
//! input and output.

use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use kernel::Family;
use kernel::socket::multicast;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedReceiver;
use tracing::{debug, info};

use super::Command;
use super::bridge::{self, Bridge, BridgeWatcher};
use super::counters::{Counters, DropReason, add};
use super::membership::QUERY_INTERVAL;
use super::protocol::PORT;
use super::relay::{FromPeer, FromPod, Peer, Relay, gateway};
use crate::async_fd::register;

/// Interval between announcements of this node's groups.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(30);
/// Delay before a change is announced a second time, because datagrams get lost.
const REPEAT_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of packets taken from one socket before the others get their turn.
const BATCH: usize = 64;

/// Forwards packets from the first [`Command::SetNetwork`] until the command channel is closed.
pub(super) async fn run(
    mut commands: UnboundedReceiver<Command>,
    counters: Arc<Counters>,
) -> kernel::Result<()> {
    let mut next = commands.recv().await;
    while let Some(command) = next {
        next = match command {
            Command::SetNetwork { subnets, peers } => {
                let mut forwarder = Forwarder::open(subnets, Arc::clone(&counters))?;
                forwarder.set_peers(peers);
                forwarder.forward(&mut commands).await?
            }
            Command::SetPeer(_) | Command::RemovePeer(_) => commands.recv().await,
        };
    }
    Ok(())
}

fn readiness(ready: io::Result<()>) -> kernel::Result<()> {
    ready.map_err(|cause| kernel::Error::from_io("wait for", "multicast packets", &cause))
}

/// Waits for a packet from a pod. Never returns without a bridge.
async fn pod_packet(bridge: Option<&Bridge>) -> io::Result<()> {
    match bridge {
        Some(bridge) => bridge.ready().await,
        None => pending().await,
    }
}

/// Waits for a datagram from another node. Never returns without a socket.
async fn datagram(socket: Option<&AsyncFd<UdpSocket>>) -> io::Result<()> {
    match socket {
        Some(socket) => {
            socket.readable().await?.clear_ready();
            Ok(())
        }
        None => pending().await,
    }
}

struct Forwarder {
    subnets: Vec<IpNet>,
    relay: Relay,
    watcher: BridgeWatcher,
    bridge: Option<Bridge>,
    /// Sockets to other nodes, bound to the bridge's address of each family.
    v4: Option<AsyncFd<UdpSocket>>,
    v6: Option<AsyncFd<UdpSocket>>,
    counters: Arc<Counters>,
    buffer: Vec<u8>,
    announce_at: Instant,
    query_at: Instant,
    /// Whether packets may be waiting after the last batch.
    has_more: bool,
}

impl Forwarder {
    fn open(subnets: Vec<IpNet>, counters: Arc<Counters>) -> kernel::Result<Self> {
        let now = Instant::now();
        let mut forwarder = Self {
            watcher: BridgeWatcher::open(&subnets)?,
            relay: Relay::new(subnets.clone(), now),
            subnets,
            bridge: None,
            v4: None,
            v6: None,
            counters,
            buffer: bridge::buffer(),
            announce_at: now + ANNOUNCE_INTERVAL,
            query_at: now,
            has_more: false,
        };
        forwarder.find_bridge()?;
        Ok(forwarder)
    }

    /// Forwards until this node has other subnets, or the command channel is closed. Returns the next command.
    async fn forward(
        mut self,
        commands: &mut UnboundedReceiver<Command>,
    ) -> kernel::Result<Option<Command>> {
        loop {
            if self.has_more {
                tokio::task::yield_now().await;
            }
            let wake = self.next_deadline();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::SetNetwork { subnets, peers }) if subnets == self.subnets => {
                        self.set_peers(peers);
                    }
                    Some(Command::SetPeer(peer)) => self.set_peer(peer),
                    Some(Command::RemovePeer(name)) => self.relay.remove_peer(&name),
                    other => return Ok(other),
                },
                ready = self.watcher.ready() => {
                    readiness(ready)?;
                    self.handle_link_events()?;
                }
                ready = pod_packet(self.bridge.as_ref()) => readiness(ready)?,
                ready = datagram(self.v4.as_ref()) => readiness(ready)?,
                ready = datagram(self.v6.as_ref()) => readiness(ready)?,
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            self.forward_batch();
            self.handle_timers(Instant::now());
        }
    }

    /// When the loop must wake even if nothing arrives.
    fn next_deadline(&self) -> Instant {
        if self.has_more {
            return Instant::now();
        }
        let query_at = self.bridge.as_ref().map(|_| self.query_at);
        let times = [Some(self.announce_at), query_at, self.relay.next_expiry()];
        times.into_iter().flatten().min().unwrap_or(self.announce_at)
    }

    fn set_peers(&mut self, peers: Vec<Peer>) {
        self.relay.retain_peers(&peers);
        for peer in peers {
            self.set_peer(peer);
        }
    }

    fn set_peer(&mut self, peer: Peer) {
        if let Some(address) = self.relay.set_peer(peer) {
            self.greet(address);
        }
    }

    fn handle_link_events(&mut self) -> kernel::Result<()> {
        let known = self.bridge.as_ref().map(|bridge| bridge.index);
        if self.watcher.has_changed(known)? { self.find_bridge() } else { Ok(()) }
    }

    fn find_bridge(&mut self) -> kernel::Result<()> {
        let found = self.watcher.find()?;
        let known = self.bridge.as_ref().map(|bridge| bridge.index);
        if found.map(|(index, _)| index) == known {
            return self.open_sockets();
        }
        (self.v4, self.v6) = (None, None);
        self.bridge = match found.map(|(index, mac)| Bridge::open(index, mac)).transpose() {
            Ok(bridge) => bridge,
            // The bridge has been removed meanwhile, which causes another event.
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        self.relay.set_bridge(self.bridge.is_some());
        match &self.bridge {
            Some(bridge) => {
                info!(bridge = %bridge.index, "multicast forwarding started");
                self.query();
            }
            None => info!("multicast forwarding stopped, no pod bridge"),
        }
        self.open_sockets()
    }

    /// Opens the missing sockets to other nodes. Each needs its address on the bridge. An address that is added later
    /// causes an event.
    fn open_sockets(&mut self) -> kernel::Result<()> {
        let Some(index) = self.bridge.as_ref().map(|bridge| bridge.index) else { return Ok(()) };
        let mut has_new = false;
        for address in self.subnets.iter().filter_map(|subnet| gateway(*subnet)) {
            let slot = if address.is_ipv4() { &mut self.v4 } else { &mut self.v6 };
            if slot.is_some() {
                continue;
            }
            let socket = match multicast::fragmenting_udp(SocketAddr::new(address, PORT)) {
                Ok(socket) => socket,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            };
            multicast::ignore_interface(&socket, index)?;
            *slot = Some(register(socket)?);
            has_new = true;
        }
        if has_new {
            for address in self.relay.addresses() {
                self.greet(address);
            }
        }
        Ok(())
    }

    /// Announces this node's groups to a peer, and asks for the peer's groups.
    fn greet(&self, address: IpAddr) {
        self.announce_to(address);
        if let Some(query) = self.relay.query() {
            self.send(address, &query);
        }
    }

    fn handle_timers(&mut self, now: Instant) {
        if self.relay.expire(now) {
            self.announce();
        }
        if self.announce_at <= now {
            self.announce();
            self.announce_at = now + ANNOUNCE_INTERVAL;
        }
        if self.bridge.is_some() && self.query_at <= now {
            self.query();
        }
        self.counters.groups.store(self.relay.groups() as u64, Ordering::Relaxed);
    }

    /// Asks the pods for their groups.
    fn query(&mut self) {
        self.query_at = Instant::now() + QUERY_INTERVAL;
        if let Some(Err(error)) = self.bridge.as_ref().map(Bridge::query) {
            debug!(%error, "group query not sent");
        }
    }

    fn announce(&mut self) {
        self.announce_at = Instant::now() + REPEAT_DELAY;
        for address in self.relay.addresses() {
            self.announce_to(address);
        }
    }

    fn announce_to(&self, address: IpAddr) {
        if let Some(announcement) = self.relay.announcement() {
            self.send(address, &announcement);
        }
    }

    fn send(&self, to: IpAddr, datagram: &[u8]) -> bool {
        let socket = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        let Some(socket) = socket else { return false };
        match socket.get_ref().send_to(datagram, SocketAddr::new(to, PORT)) {
            Ok(_) => true,
            Err(error) => {
                debug!(%to, %error, "multicast send failed");
                false
            }
        }
    }

    /// Forwards one batch of packets from each socket.
    fn forward_batch(&mut self) {
        let from_pods = Family::ALL.map(|family| self.forward_from_pods(family));
        let from_peers = Family::ALL.map(|family| self.forward_from_peers(family));
        self.has_more = from_pods.contains(&true) || from_peers.contains(&true);
    }

    /// Returns whether more packets may be waiting.
    fn forward_from_pods(&mut self, family: Family) -> bool {
        for _ in 0..BATCH {
            let Some(bridge) = &self.bridge else { return false };
            let received = match bridge.receive(family, &mut self.buffer) {
                Ok(Some(received)) => received,
                // On an error the bridge is down. An event tells when it is up again.
                Ok(None) | Err(_) => return false,
            };
            if received.is_unsegmented {
                self.counters.count_drop(DropReason::Uncut);
                continue;
            }
            let packet = &self.buffer[received.packet];
            match self.relay.handle_pod_packet(packet, Instant::now(), &self.counters) {
                FromPod::Nothing => {}
                FromPod::Groups { have_changed, must_query } => {
                    if have_changed {
                        self.announce();
                    }
                    if must_query {
                        self.query();
                    }
                }
                FromPod::Send { datagram, to } => {
                    let sent = to.iter().filter(|to| self.send(**to, &datagram)).count();
                    add(&self.counters.carried, 1);
                    add(&self.counters.sent, sent as u64);
                }
            }
        }
        true
    }

    /// Returns whether more datagrams may be waiting.
    fn forward_from_peers(&mut self, family: Family) -> bool {
        for _ in 0..BATCH {
            let socket = if family == Family::V4 { &self.v4 } else { &self.v6 };
            let Some(socket) = socket else { return false };
            let (len, from) = match socket.get_ref().recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return false,
                // An ICMP error for a datagram that was sent earlier.
                Err(_) => continue,
            };
            let datagram = &self.buffer[..len];
            match self.relay.handle_datagram(from.ip(), datagram, Instant::now(), &self.counters) {
                FromPeer::Nothing => {}
                FromPeer::Announce(to) => self.announce_to(to),
                FromPeer::Deliver { family, mac, packet } => {
                    let Some(bridge) = &self.bridge else { continue };
                    match bridge.send(family, mac, &packet) {
                        Ok(()) => add(&self.counters.delivered, 1),
                        Err(error) => {
                            debug!(%error, len = packet.len(), "multicast delivery failed");
                            self.counters.count_drop(DropReason::Refused);
                        }
                    }
                }
            }
        }
        true
    }
}
