// SPDX-License-Identifier: Apache-2.0
//! A running tunnel: its interface, sockets and threads, which all end with it.

use std::io::{self, PipeReader, PipeWriter};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{self, JoinHandle};

use ipnet::IpNet;
use kernel::socket::packet::IcmpSender;
use kernel::socket::udp_gso::GsoSocket;
use kernel::tun::{self, NewTun};
use kernel::{Family, IfName};

use crate::counts::{Counts, SharedCounts};
use crate::peers::{Peer, Peers};
use crate::receive::Receiver;
use crate::send::Sender;

/// `Result` with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// A tunnel could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The interface or a socket could not be opened.
    #[error("open the tunnel {device}")]
    Open {
        /// Name of the interface.
        device: IfName,
        /// Error of the kernel.
        #[source]
        cause: kernel::Error,
    },
    /// A thread or its stop pipe could not be created.
    #[error("start a thread of the tunnel {device}")]
    Thread {
        /// Name of the interface.
        device: IfName,
        /// Error of the system.
        #[source]
        cause: io::Error,
    },
}

/// Configuration of a tunnel.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the interface. The tunnel creates it down and without addresses, and removes it when
    /// it ends.
    pub device: IfName,
    /// Local UDP address for receiving and sending; flannel uses port 8285.
    pub listen: SocketAddr,
    /// Number of queues, with two threads each; one per CPU is enough.
    pub queues: usize,
}

/// A running tunnel. It stops when it is dropped.
#[derive(Debug)]
pub struct Tunnel {
    listen: SocketAddr,
    peers: SharedPeers,
    counts: Vec<Arc<SharedCounts>>,
    failure: Arc<Mutex<Option<String>>>,
    threads: Vec<JoinHandle<()>>,
    /// Write end of the stop pipe; closing it ends the threads.
    stop: Option<PipeWriter>,
}

impl Tunnel {
    /// Creates the interface, opens the sockets in the calling thread's namespace, and starts the
    /// threads.
    pub fn start(config: &Config) -> Result<Tunnel> {
        let device = config.device;
        let open = |cause| Error::Open { device, cause };
        let thread = |cause| Error::Thread { device, cause };
        let (stopped, stop) = io::pipe().map_err(thread)?;
        let new = NewTun { name: device, queues: config.queues.max(1), offload: true };
        let mut tunnel = Tunnel {
            listen: config.listen,
            peers: SharedPeers::default(),
            counts: Vec::new(),
            failure: Arc::default(),
            threads: Vec::new(),
            stop: Some(stop),
        };
        let stopped = Arc::new(stopped);
        for (at, queue) in tun::open_queues(&new).map_err(open)?.into_iter().enumerate() {
            let queue = Arc::new(queue);
            let socket = Arc::new(GsoSocket::open(config.listen).map_err(open)?);
            let sender = Sender {
                queue: Arc::clone(&queue),
                socket: Arc::clone(&socket),
                // A host without IPv6 has no ICMPv6 socket.
                icmp: Family::ALL.map(|family| IcmpSender::open(family).ok()),
                peers: tunnel.peers.clone(),
                counts: tunnel.new_counts(),
            };
            let receiver = Receiver { queue, socket, counts: tunnel.new_counts() };
            let mut start = |name, work: Work| tunnel.spawn(name, &stopped, work).map_err(thread);
            start(format!("tunnel-out-{at}"), Box::new(move |stop| sender.run(stop)))?;
            start(format!("tunnel-in-{at}"), Box::new(move |stop| receiver.run(stop)))?;
        }
        Ok(tunnel)
    }

    /// Replaces all peers at once, without delaying packets. Returns the peers that the socket
    /// cannot reach, because their address is of the other family; they are not added.
    #[must_use = "the returned peers are unreachable"]
    pub fn set_peers(&self, peers: &[Peer]) -> Vec<Peer> {
        let (reachable, unreachable): (Vec<&Peer>, Vec<&Peer>) =
            peers.iter().partition(|peer| self.is_reachable(peer));
        let new = reachable.into_iter().collect();
        let previous = std::mem::replace(&mut *self.peers.write(), new);
        // Freeing a large table takes time; the lock is already released.
        drop(previous);
        unreachable.into_iter().copied().collect()
    }

    /// Removes peers by prefix and adds or replaces others. The cost does not depend on the number
    /// of other peers. Returns unreachable peers as [`Tunnel::set_peers`] does.
    #[must_use = "the returned peers are unreachable"]
    pub fn change_peers(&self, gone: &[IpNet], set: &[Peer]) -> Vec<Peer> {
        let mut unreachable = Vec::new();
        let mut peers = self.peers.write();
        for prefix in gone {
            peers.remove(*prefix);
        }
        for peer in set {
            if self.is_reachable(peer) {
                peers.set(peer);
            } else {
                peers.remove(peer.prefix);
                unreachable.push(*peer);
            }
        }
        unreachable
    }

    /// Returns the counters since the start.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for counts in &self.counts {
            sum.add(&counts.read());
        }
        sum
    }

    /// Returns the error that stopped a thread, for example after the removal of the interface.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the threads and removes the interface; dropping the tunnel does the same.
    pub fn stop(self) {
        drop(self);
    }

    fn is_reachable(&self, peer: &Peer) -> bool {
        peer.via.is_ipv4() == self.listen.is_ipv4()
    }

    fn new_counts(&mut self) -> Arc<SharedCounts> {
        let counts = Arc::<SharedCounts>::default();
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
            // A panic was already reported by the thread.
            let _ = thread.join();
        }
    }
}

/// Main function of a thread; it returns when the pipe is closed.
type Work = Box<dyn FnOnce(&PipeReader) -> io::Result<()> + Send>;

/// The peers, shared with the sending threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedPeers(Arc<RwLock<Peers>>);

impl SharedPeers {
    /// Locks the peers for reading. Hold the guard for one round at most: changes wait for it.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Peers> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Peers> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
