// SPDX-License-Identifier: Apache-2.0
//! The tunnel of the udp backend: threads of this process that carry the packets of the TUN device.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::{IpNet, Ipv4Net};
use kernel::{IfIndex, IfName};
use overlay::backend::Backend;
use overlay::plan::AnyNetwork;
use text::ErrorChain;
use tunnel::{Config, Counts, Peer, Tunnel};

/// The running tunnel, if there is one. Clones share it, so that other threads can read its counters.
#[derive(Debug, Clone, Default)]
pub struct UdpTunnelSlot(Arc<Mutex<Option<Tunnel>>>);

impl UdpTunnelSlot {
    /// Returns the counters since the start of the tunnel.
    pub fn counts(&self) -> Option<Counts> {
        self.lock().as_ref().map(Tunnel::counts)
    }

    /// A panic elsewhere cannot leave the tunnel half changed.
    fn lock(&self) -> MutexGuard<'_, Option<Tunnel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running tunnel. Dropping it removes its device.
#[derive(Debug)]
pub(super) struct UdpTunnel {
    slot: UdpTunnelSlot,
    listen: SocketAddrV4,
    index: IfIndex,
}

/// Returns the address that receives packets of other nodes; `None` for other backends.
pub(super) fn listen_address(network: &AnyNetwork) -> Option<SocketAddrV4> {
    let port = network.subnets()?.backends().find_map(|backend| match backend {
        Backend::Udp(conf) => Some(conf.port),
        _ => None,
    });
    Some(SocketAddrV4::new(network.underlay().addresses.v4?, port?))
}

impl UdpTunnel {
    /// Creates the device and starts the tunnel.
    pub(super) fn start(
        device: IfName,
        listen: SocketAddrV4,
        queues: usize,
        slot: &UdpTunnelSlot,
        index_of: impl FnOnce() -> Result<IfIndex, String>,
    ) -> Result<Self, String> {
        let config = Config { device, listen: listen.into(), queues };
        let tunnel = Tunnel::start(&config).map_err(|error| ErrorChain(&error).to_string())?;
        let index = index_of()?;
        *slot.lock() = Some(tunnel);
        Ok(Self { slot: slot.clone(), listen, index })
    }

    /// Returns whether the tunnel works, has this device, and receives on this address.
    pub(super) fn serves(&self, index: IfIndex, listen: Option<SocketAddrV4>) -> bool {
        let works = self.slot.lock().as_ref().is_some_and(|tunnel| tunnel.failure().is_none());
        self.index == index && Some(self.listen) == listen && works
    }

    pub(super) fn index(&self) -> IfIndex {
        self.index
    }

    /// Sets the peers of all subnets.
    pub(super) fn set_peers(&self, desired: &BTreeMap<Ipv4Net, SocketAddrV4>) {
        let peers: Vec<Peer> = desired.iter().map(peer).collect();
        if let Some(tunnel) = &*self.slot.lock() {
            let ignored = tunnel.set_peers(&peers);
            debug_assert!(ignored.is_empty(), "all peers are IPv4");
        }
    }

    /// Sets or removes the peers of these subnets only.
    pub(super) fn change_peers(
        &self,
        subnets: &BTreeSet<Ipv4Net>,
        desired: &BTreeMap<Ipv4Net, SocketAddrV4>,
    ) {
        let set: Vec<Peer> =
            subnets.iter().filter_map(|subnet| desired.get_key_value(subnet)).map(peer).collect();
        let is_gone = |subnet: &&Ipv4Net| !desired.contains_key(subnet);
        let gone: Vec<IpNet> = subnets.iter().filter(is_gone).map(|net| (*net).into()).collect();
        if let Some(tunnel) = &*self.slot.lock() {
            let ignored = tunnel.change_peers(&gone, &set);
            debug_assert!(ignored.is_empty(), "all peers are IPv4");
        }
    }
}

impl Drop for UdpTunnel {
    fn drop(&mut self) {
        let tunnel = self.slot.lock().take();
        // Waits for its threads, without the lock.
        drop(tunnel);
    }
}

fn peer((subnet, via): (&Ipv4Net, &SocketAddrV4)) -> Peer {
    Peer { prefix: (*subnet).into(), via: (*via).into() }
}
