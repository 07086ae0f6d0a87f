// SPDX-License-Identifier: Apache-2.0
//! Multicast and broadcast between pods of different nodes. Each agent listens on its own pods' bridge, learns from IGMP
//! and MLD reports which groups the pods have joined, and announces them to other agents. It sends a copy of each packet
//! to every node with a receiver. The copies travel over the pod network, so every backend carries, and can encrypt,
//! them. All nodes together act as one link: the hop count and the source address of a packet do not change.

mod bridge;
mod counters;
mod forwarder;
mod igmp;
mod membership;
mod packet;
mod protocol;
mod relay;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use ipnet::IpNet;
use overlay::lease::Lease;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

pub use self::counters::{Counters, DropReason};
pub use self::protocol::PORT;
pub use self::relay::Peer;
pub(crate) use self::relay::gateway;

use crate::supervisor::Heartbeat;

/// A command to the multicast controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Sets this node's subnets and all peers. Forwarding starts with the first of these.
    SetNetwork { subnets: Vec<IpNet>, peers: Vec<Peer> },
    /// Adds a peer, or replaces the one of the same name.
    SetPeer(Peer),
    /// Removes the peer of this name.
    RemovePeer(String),
}

/// Sends commands to the multicast controller, if there is one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Handle(Option<UnboundedSender<Command>>);

impl Handle {
    /// Creates a handle and the receiver for [`Multicast::new`].
    pub(crate) fn channel() -> (Handle, UnboundedReceiver<Command>) {
        let (commands, receiver) = unbounded_channel();
        (Handle(Some(commands)), receiver)
    }

    pub(crate) fn set_network<'a>(
        &self,
        subnets: impl Iterator<Item = IpNet>,
        peers: impl Iterator<Item = (&'a str, &'a Lease)>,
    ) {
        self.send(|| Command::SetNetwork {
            subnets: subnets.collect(),
            peers: peers.map(|(name, lease)| Peer::new(name, lease)).collect(),
        });
    }

    pub(crate) fn set_peer(&self, name: &str, lease: &Lease) {
        self.send(|| Command::SetPeer(Peer::new(name, lease)));
    }

    pub(crate) fn remove_peer(&self, name: &str) {
        self.send(|| Command::RemovePeer(name.to_owned()));
    }

    fn send(&self, command: impl FnOnce() -> Command) {
        if let Some(commands) = &self.0 {
            // The receiver is gone only while the agent shuts down.
            let _ = commands.send(command());
        }
    }
}

/// Why forwarding stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    #[error("start the multicast thread")]
    Thread(#[source] io::Error),
    #[error("the multicast thread panicked")]
    Panicked,
}

/// The multicast controller. It forwards packets on a thread of its own, so that a burst of packets does not delay the
/// agent's other work.
#[derive(Debug)]
pub struct Multicast {
    commands: UnboundedReceiver<Command>,
    counters: Arc<Counters>,
    /// Empty until the first [`Command::SetNetwork`].
    subnets: Vec<IpNet>,
    peers: HashMap<String, Peer>,
}

impl Multicast {
    pub fn new(commands: UnboundedReceiver<Command>, counters: Arc<Counters>) -> Self {
        Self { commands, counters, subnets: Vec::new(), peers: HashMap::new() }
    }

    /// Forwards packets until the command channel is closed. After an error, or if it was dropped, it can be called
    /// again: it keeps the subnets and peers, and starts a new thread.
    pub async fn run(&mut self, heartbeat: &Heartbeat) -> Result<(), Error> {
        let mut thread = None;
        if !self.subnets.is_empty() {
            thread = Some(self.start()?);
        }
        loop {
            heartbeat.beat();
            let ended = async {
                match &mut thread {
                    Some(Thread { ended, .. }) => ended.await,
                    None => std::future::pending().await,
                }
            };
            let command = tokio::select! {
                ended = ended => return ended.unwrap_or(Err(Error::Panicked)),
                command = self.commands.recv() => command,
                () = heartbeat.tick() => continue,
            };
            let Some(command) = command else {
                return match thread {
                    Some(thread) => thread.stop().await,
                    None => Ok(()),
                };
            };
            self.remember(&command);
            match &thread {
                // If the thread has just ended, the next iteration returns its error.
                Some(Thread { commands, .. }) => drop(commands.send(command)),
                None if self.subnets.is_empty() => {}
                None => thread = Some(self.start()?),
            }
        }
    }

    /// Keeps what a new thread must know.
    fn remember(&mut self, command: &Command) {
        match command {
            Command::SetNetwork { subnets, peers } => {
                self.subnets.clone_from(subnets);
                self.peers = peers.iter().map(|peer| (peer.name.clone(), peer.clone())).collect();
            }
            Command::SetPeer(peer) => drop(self.peers.insert(peer.name.clone(), peer.clone())),
            Command::RemovePeer(name) => drop(self.peers.remove(name)),
        }
    }

    /// Starts the thread, in the network namespace of the caller.
    fn start(&self) -> Result<Thread, Error> {
        let (commands, receiver) = unbounded_channel();
        let (report, ended) = oneshot::channel();
        let subnets = self.subnets.clone();
        let peers = self.peers.values().cloned().collect();
        // The receiver exists, so that the channel is open.
        let _ = commands.send(Command::SetNetwork { subnets, peers });
        let counters = Arc::clone(&self.counters);
        let forward = move || {
            let runtime = Builder::new_current_thread().enable_all().build().map_err(Error::Thread);
            let result = runtime
                .and_then(|runtime| Ok(runtime.block_on(forwarder::run(receiver, counters))?));
            // The receiver is gone if the controller was dropped.
            let _ = report.send(result);
        };
        let thread = std::thread::Builder::new().name("multicast".to_owned());
        thread.spawn(forward).map_err(Error::Thread)?;
        Ok(Thread { commands, ended })
    }
}

/// The forwarding thread. It ends when this is dropped.
struct Thread {
    commands: UnboundedSender<Command>,
    ended: oneshot::Receiver<Result<(), Error>>,
}

impl Thread {
    /// Stops the thread and waits until it has closed its sockets.
    async fn stop(self) -> Result<(), Error> {
        drop(self.commands);
        self.ended.await.unwrap_or(Err(Error::Panicked))
    }
}
