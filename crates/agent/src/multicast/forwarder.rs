// SPDX-License-Identifier: Apache-2.0
//! The loop between pods and other nodes: takes what comes on either side, asks the relay what becomes of it, and
//! does that.

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
use tracing::{debug, info, warn};

use super::bridge::{self, Bridge, Lookout};
use super::counts::{Counts, Loss, add};
use super::members::ASK_EVERY;
use super::relay::{Inward, Outward, Peer, Relay, gateway};
use super::wire::PORT;
use crate::watched::watched;

/// What others should know is said again after this time.
const SAY_EVERY: Duration = Duration::from_secs(30);
/// And after a change once more, as datagrams get lost.
const SAY_AGAIN: Duration = Duration::from_secs(1);
/// Of each socket before others have their turn.
const AT_ONCE: usize = 64;

/// What the loop is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// This node has these subnets, and there are these peers and no others.
    Begin { subnets: Vec<IpNet>, peers: Vec<Peer> },
    /// There is this peer, in place of one of the same name.
    Set(Peer),
    /// A peer of this name has left.
    Remove(String),
}

/// Carries packets for many between the pods of this node and those of others, from the first
/// [`Command::Begin`] until nobody gives commands any more.
pub async fn run(
    mut commands: UnboundedReceiver<Command>,
    counts: Arc<Counts>,
) -> kernel::Result<()> {
    let mut next = commands.recv().await;
    while let Some(command) = next {
        next = match command {
            Command::Begin { subnets, peers } => {
                let mut station = Station::open(subnets, Arc::clone(&counts))?;
                station.set_peers(peers);
                station.work(&mut commands).await?
            }
            Command::Set(_) | Command::Remove(_) => commands.recv().await,
        };
    }
    Ok(())
}

fn told(ready: io::Result<()>) -> kernel::Result<()> {
    ready.map_err(|cause| kernel::Error::from_io("wait for", "multicast", &cause))
}

async fn heard(bridge: Option<&Bridge>) -> io::Result<()> {
    match bridge {
        Some(bridge) => bridge.ready().await,
        None => pending().await,
    }
}

async fn datagrams(socket: Option<&AsyncFd<UdpSocket>>) -> io::Result<()> {
    match socket {
        Some(socket) => {
            socket.readable().await?.clear_ready();
            Ok(())
        }
        None => pending().await,
    }
}

struct Station {
    subnets: Vec<IpNet>,
    relay: Relay,
    lookout: Lookout,
    bridge: Option<Bridge>,
    /// On the bridge's address of the family.
    v4: Option<AsyncFd<UdpSocket>>,
    v6: Option<AsyncFd<UdpSocket>>,
    counts: Arc<Counts>,
    buffer: Vec<u8>,
    /// When others are told of our pods' groups.
    say_at: Instant,
    /// When pods are asked.
    ask_at: Instant,
    /// There was more to be carried than had its turn.
    has_more: bool,
}

impl Station {
    fn open(subnets: Vec<IpNet>, counts: Arc<Counts>) -> kernel::Result<Self> {
        let now = Instant::now();
        let mut station = Self {
            lookout: Lookout::open(&subnets)?,
            relay: Relay::new(subnets.clone(), now),
            subnets,
            bridge: None,
            v4: None,
            v6: None,
            counts,
            buffer: bridge::buffer(),
            say_at: now + SAY_EVERY,
            ask_at: now,
            has_more: false,
        };
        station.find_bridge()?;
        Ok(station)
    }

    /// Works until this node has other subnets, or nobody gives commands any more.
    async fn work(
        mut self,
        commands: &mut UnboundedReceiver<Command>,
    ) -> kernel::Result<Option<Command>> {
        loop {
            if self.has_more {
                tokio::task::yield_now().await;
            }
            let wake = self.wake();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Begin { subnets, peers }) if subnets == self.subnets => {
                        self.set_peers(peers);
                    }
                    Some(Command::Set(peer)) => self.set_peer(peer),
                    Some(Command::Remove(name)) => self.relay.remove_peer(&name),
                    other => return Ok(other),
                },
                ready = self.lookout.ready() => {
                    told(ready)?;
                    self.look()?;
                }
                ready = heard(self.bridge.as_ref()) => told(ready)?,
                ready = datagrams(self.v4.as_ref()) => told(ready)?,
                ready = datagrams(self.v6.as_ref()) => told(ready)?,
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            self.carry();
            self.on_time(Instant::now());
        }
    }

    /// When something is to be done even if nothing comes.
    fn wake(&self) -> Instant {
        if self.has_more {
            return Instant::now();
        }
        let ask_at = self.bridge.as_ref().map(|_| self.ask_at);
        let times = [Some(self.say_at), ask_at, self.relay.next_end()];
        times.into_iter().flatten().min().unwrap_or(self.say_at)
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

    fn look(&mut self) -> kernel::Result<()> {
        let known = self.bridge.as_ref().map(|bridge| bridge.index);
        if self.lookout.has_changed(known)? { self.find_bridge() } else { Ok(()) }
    }

    fn find_bridge(&mut self) -> kernel::Result<()> {
        let found = self.lookout.find()?;
        let known = self.bridge.as_ref().map(|bridge| bridge.index);
        if found.map(|(index, _)| index) == known {
            return self.open_carriers();
        }
        (self.v4, self.v6) = (None, None);
        self.bridge = match found.map(|(index, mac)| Bridge::open(index, mac)).transpose() {
            Ok(bridge) => bridge,
            // It has gone again, which is an event, too.
            Err(cause) if cause.is_not_found() => None,
            Err(cause) => return Err(cause),
        };
        self.relay.set_bridge(self.bridge.is_some());
        match &self.bridge {
            Some(bridge) => info!(bridge = %bridge.index, "multicast of pods is carried"),
            None => info!("no bridge of pods: no multicast is carried"),
        }
        if self.bridge.is_some() {
            self.ask();
        }
        self.open_carriers()
    }

    /// Opens the sockets to other nodes that there are not yet. Each needs its address on the bridge, which may
    /// come later, with an event.
    fn open_carriers(&mut self) -> kernel::Result<()> {
        let Some(index) = self.bridge.as_ref().map(|bridge| bridge.index) else { return Ok(()) };
        let mut has_new = false;
        for address in self.subnets.iter().filter_map(|subnet| gateway(*subnet)) {
            let carrier = if address.is_ipv4() { &mut self.v4 } else { &mut self.v6 };
            if carrier.is_some() {
                continue;
            }
            let socket = match multicast::fragmenting_udp(SocketAddr::new(address, PORT)) {
                Ok(socket) => socket,
                Err(cause) if cause.is_not_found() => continue,
                Err(cause) => return Err(cause),
            };
            multicast::ignore_interface(&socket, index)?;
            *carrier = Some(watched(socket)?);
            has_new = true;
        }
        for address in self.relay.addresses().into_iter().filter(|_| has_new) {
            self.greet(address);
        }
        Ok(())
    }

    /// Tells a node what it should know, and asks it for the same.
    fn greet(&self, address: IpAddr) {
        self.say_to(address);
        if let Some(question) = self.relay.question() {
            self.send(address, &question);
        }
    }

    fn on_time(&mut self, now: Instant) {
        if self.relay.expire(now) {
            self.say_all();
        }
        if self.say_at <= now {
            self.say_all();
            self.say_at = now + SAY_EVERY;
        }
        if self.bridge.is_some() && self.ask_at <= now {
            self.ask();
        }
        self.counts.groups.store(self.relay.groups() as u64, Ordering::Relaxed);
    }

    fn ask(&mut self) {
        self.ask_at = Instant::now() + ASK_EVERY;
        if let Some(Err(cause)) = self.bridge.as_ref().map(Bridge::ask) {
            debug!(%cause, "pods were not asked for their groups");
        }
    }

    fn say_all(&mut self) {
        self.say_at = Instant::now() + SAY_AGAIN;
        for address in self.relay.addresses() {
            self.say_to(address);
        }
    }

    fn say_to(&self, address: IpAddr) {
        if let Some(announcement) = self.relay.announcement() {
            self.send(address, &announcement);
        }
    }

    fn send(&self, to: IpAddr, datagram: &[u8]) -> bool {
        let socket = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        let Some(socket) = socket else { return false };
        match socket.get_ref().send_to(datagram, SocketAddr::new(to, PORT)) {
            Ok(_) => true,
            Err(cause) => {
                debug!(%to, %cause, "not sent");
                false
            }
        }
    }

    /// Carries what is there, of each side a part.
    fn carry(&mut self) {
        let outward = Family::ALL.map(|family| self.carry_outward(family));
        let inward = Family::ALL.map(|family| self.carry_inward(family));
        self.has_more = outward.contains(&true) || inward.contains(&true);
    }

    /// Whether there may be more.
    fn carry_outward(&mut self, family: Family) -> bool {
        for _ in 0..AT_ONCE {
            let Some(bridge) = &self.bridge else { return false };
            let heard = match bridge.receive(family, &mut self.buffer) {
                Ok(Some(heard)) => heard,
                Ok(None) => return false,
                // It is down; that it goes or comes back is an event.
                Err(_) => return false,
            };
            if heard.is_unsegmented {
                self.counts.lose(Loss::Uncut);
                continue;
            }
            let packet = &self.buffer[heard.packet];
            match self.relay.outward(packet, Instant::now(), &self.counts) {
                Outward::Nothing => {}
                Outward::Groups { have_changed, must_ask } => {
                    if have_changed {
                        self.say_all();
                    }
                    if must_ask {
                        self.ask();
                    }
                }
                Outward::Send { datagram, to } => {
                    let sent = to.iter().filter(|to| self.send(**to, &datagram)).count();
                    add(&self.counts.carried, 1);
                    add(&self.counts.sent, sent as u64);
                }
            }
        }
        true
    }

    /// Whether there may be more.
    fn carry_inward(&mut self, family: Family) -> bool {
        for _ in 0..AT_ONCE {
            let socket = if family == Family::V4 { &self.v4 } else { &self.v6 };
            let Some(socket) = socket else { return false };
            let (len, from) = match socket.get_ref().recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return false,
                // An error for something that was sent.
                Err(_) => continue,
            };
            let datagram = &self.buffer[..len];
            match self.relay.inward(from.ip(), datagram, Instant::now(), &self.counts) {
                Inward::Nothing => {}
                Inward::Answer(to) => self.say_to(to),
                Inward::Deliver { family, mac, packet } => {
                    let Some(bridge) = &self.bridge else { continue };
                    match bridge.send(family, mac, &packet) {
                        Ok(()) => add(&self.counts.delivered, 1),
                        Err(cause) => {
                            warn!(%cause, len = packet.len(), "a packet was not given to pods");
                            self.counts.lose(Loss::Refused);
                        }
                    }
                }
            }
        }
        true
    }
}
