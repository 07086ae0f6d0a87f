// SPDX-License-Identifier: Apache-2.0
//! The tunnel of the udp backend: threads of this process that carry the packets of the TUN device.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;

use ipnet::{IpNet, Ipv4Net};
use kernel::{IfIndex, IfName};
use overlay::backend::Backend;
use overlay::plan::Network;
use text::ErrorChain;
use tunnel::{Config, Counts, Peer, Tunnel};

/// A running tunnel.
#[derive(Debug)]
pub(super) struct UdpTunnel {
    tunnel: Tunnel,
    listen: SocketAddrV4,
    index: IfIndex,
}

/// Returns the address that receives packets of other nodes; `None` for other backends.
pub(super) fn listen_address(network: &Network) -> Option<SocketAddrV4> {
    let port = network.backends().find_map(|backend| match backend {
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
        index_of: impl FnOnce() -> Result<IfIndex, String>,
    ) -> Result<Self, String> {
        let config = Config { device, listen: listen.into(), queues };
        let tunnel = Tunnel::start(&config).map_err(|error| ErrorChain(&error).to_string())?;
        Ok(Self { tunnel, listen, index: index_of()? })
    }

    /// Returns whether the tunnel works, has this device, and receives on this address.
    pub(super) fn serves(&self, index: IfIndex, listen: Option<SocketAddrV4>) -> bool {
        self.index == index && Some(self.listen) == listen && self.tunnel.failure().is_none()
    }

    pub(super) fn index(&self) -> IfIndex {
        self.index
    }

    /// Sets the peers of all subnets.
    pub(super) fn set_peers(&self, desired: &BTreeMap<Ipv4Net, SocketAddrV4>) {
        let peers: Vec<Peer> = desired.iter().map(peer).collect();
        let ignored = self.tunnel.set_peers(&peers);
        debug_assert!(ignored.is_empty(), "all peers are IPv4");
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
        let ignored = self.tunnel.change_peers(&gone, &set);
        debug_assert!(ignored.is_empty(), "all peers are IPv4");
    }

    pub(super) fn counts(&self) -> Counts {
        self.tunnel.counts()
    }
}

fn peer((subnet, via): (&Ipv4Net, &SocketAddrV4)) -> Peer {
    Peer { prefix: (*subnet).into(), via: (*via).into() }
}
