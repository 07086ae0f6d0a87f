// SPDX-License-Identifier: Apache-2.0
//! A running tunnel: its interface, sockets and threads, which end with it.

use std::io::{self, PipeReader, PipeWriter};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{self, JoinHandle};

use ipnet::IpNet;
use kernel::socket::packet::IcmpSender;
use kernel::socket::udp_gso::GsoSocket;
use kernel::tun::{self, NewTun};
use kernel::{Family, IfName};

use crate::counts::{Counts, Shared};
use crate::inward::Inward;
use crate::outward::Outward;
use crate::peers::{Peer, Peers};

/// `Result` with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// A tunnel could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Interface or socket.
    #[error("open the tunnel {device}")]
    Open {
        /// The interface.
        device: IfName,
        /// What the kernel said.
        #[source]
        cause: kernel::Error,
    },
    /// A thread or what it needs.
    #[error("start a thread of the tunnel {device}")]
    Thread {
        /// The interface.
        device: IfName,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}

/// What a tunnel is made of.
#[derive(Debug, Clone)]
pub struct Config {
    /// The interface to be made: born down, without addresses, and gone when the tunnel ends.
    pub device: IfName,
    /// Where packets of other nodes come in, and from where ours go out: flannel's port is 8285.
    pub listen: SocketAddr,
    /// Flows carried at the same time, two threads each; one for each processor is enough.
    pub queues: usize,
}

/// Carries packets until it is dropped.
#[derive(Debug)]
pub struct Tunnel {
    listen: SocketAddr,
    peers: PeersInUse,
    counts: Vec<Arc<Shared>>,
    failure: Arc<Mutex<Option<String>>>,
    threads: Vec<JoinHandle<()>>,
    /// Closed to end the threads.
    stop: Option<PipeWriter>,
}

impl Tunnel {
    /// Makes the interface and opens the sockets in the calling thread's namespace, and begins to carry.
    pub fn start(config: &Config) -> Result<Tunnel> {
        let device = config.device;
        let open = |cause| Error::Open { device, cause };
        let thread = |cause| Error::Thread { device, cause };
        let (stopped, stop) = io::pipe().map_err(thread)?;
        let new = NewTun { name: device, queues: config.queues.max(1), offload: true };
        let mut tunnel = Tunnel {
            listen: config.listen,
            peers: PeersInUse::default(),
            counts: Vec::new(),
            failure: Arc::default(),
            threads: Vec::new(),
            stop: Some(stop),
        };
        let stopped = Arc::new(stopped);
        for (at, queue) in tun::carry(&new).map_err(open)?.into_iter().enumerate() {
            let queue = Arc::new(queue);
            let socket = Arc::new(GsoSocket::open(config.listen).map_err(open)?);
            let outward = Outward {
                queue: Arc::clone(&queue),
                socket: Arc::clone(&socket),
                // A host without IPv6 has no such messages.
                icmp: Family::ALL.map(|family| IcmpSender::open(family).ok()),
                peers: tunnel.peers.clone(),
                counts: tunnel.new_counts(),
            };
            let inward = Inward { queue, socket, counts: tunnel.new_counts() };
            let mut start = |name, work: Work| tunnel.spawn(name, &stopped, work).map_err(thread);
            start(format!("tunnel-out-{at}"), Box::new(move |stop| outward.run(stop)))?;
            start(format!("tunnel-in-{at}"), Box::new(move |stop| inward.run(stop)))?;
        }
        Ok(tunnel)
    }

    /// Replaces all peers at once; packets on their way are not held up. Those that the socket cannot
    /// reach, because their address is of the other family, are left out and returned.
    #[must_use = "those returned are not reached"]
    pub fn set_peers(&self, peers: &[Peer]) -> Vec<Peer> {
        let (good, bad): (Vec<&Peer>, Vec<&Peer>) =
            peers.iter().partition(|peer| self.is_reached(peer));
        let new = good.into_iter().collect();
        let before = std::mem::replace(&mut *self.peers.write(), new);
        // A large table takes its time to go, and nobody need wait for that.
        drop(before);
        bad.into_iter().copied().collect()
    }

    /// Removes those with these prefixes, and adds or replaces the others; it costs the same however many
    /// more there are. What the socket cannot reach is as in [`Tunnel::set_peers`].
    #[must_use = "those returned are not reached"]
    pub fn change_peers(&self, gone: &[IpNet], set: &[Peer]) -> Vec<Peer> {
        let mut bad = Vec::new();
        let mut peers = self.peers.write();
        for prefix in gone {
            peers.remove(*prefix);
        }
        for peer in set {
            if self.is_reached(peer) {
                peers.set(peer);
            } else {
                peers.remove(peer.prefix);
                bad.push(*peer);
            }
        }
        bad
    }

    /// What has been carried so far.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for counts in &self.counts {
            sum.add(&counts.read());
        }
        sum
    }

    /// Why it no longer carries anything, as when its interface was removed.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the threads and removes the interface, as dropping it does.
    pub fn stop(self) {
        drop(self);
    }

    fn is_reached(&self, peer: &Peer) -> bool {
        peer.via.is_ipv4() == self.listen.is_ipv4()
    }

    fn new_counts(&mut self) -> Arc<Shared> {
        let counts = Arc::<Shared>::default();
        self.counts.push(Arc::clone(&counts));
        counts
    }

    fn spawn(&mut self, name: String, stopped: &Arc<PipeReader>, work: Work) -> io::Result<()> {
        let (stopped, failure) = (Arc::clone(stopped), Arc::clone(&self.failure));
        let thread = thread::Builder::new().name(name).spawn(move || {
            if let Err(cause) = work(&stopped) {
                let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(cause.to_string());
            }
        })?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        drop(self.stop.take());
        for thread in self.threads.drain(..) {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}

/// What a thread does until it is told to stop.
type Work = Box<dyn FnOnce(&PipeReader) -> io::Result<()> + Send>;

/// The peers, which change while they are in use.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeersInUse(Arc<RwLock<Peers>>);

impl PeersInUse {
    /// To be held for one round at most: who changes them waits.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Peers> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Peers> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
