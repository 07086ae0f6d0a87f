// SPDX-License-Identifier: Apache-2.0
//! The udp backend's program: who carries the packets of the TUN device.

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

/// Where packets of other nodes are expected; none for other backends.
pub(super) fn listen_of(network: &Network) -> Option<SocketAddrV4> {
    let port = network.backends().find_map(|backend| match backend {
        Backend::Udp(conf) => Some(conf.port),
        _ => None,
    });
    Some(SocketAddrV4::new(network.underlay().addresses.v4?, port?))
}

impl UdpTunnel {
    /// Makes the device and begins.
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

    /// Whether it carries this device's packets, from where it should.
    pub(super) fn carries(&self, index: IfIndex, listen: Option<SocketAddrV4>) -> bool {
        self.index == index && Some(self.listen) == listen && self.tunnel.failure().is_none()
    }

    pub(super) fn index(&self) -> IfIndex {
        self.index
    }

    /// Tells it where all packets go.
    pub(super) fn tell(&self, wanted: &BTreeMap<Ipv4Net, SocketAddrV4>) {
        let peers: Vec<Peer> = wanted.iter().map(peer).collect();
        let left_out = self.tunnel.set_peers(&peers);
        debug_assert!(left_out.is_empty(), "all are of IPv4");
    }

    /// Tells it where packets for these subnets go now.
    pub(super) fn tell_of(
        &self,
        subnets: &BTreeSet<Ipv4Net>,
        wanted: &BTreeMap<Ipv4Net, SocketAddrV4>,
    ) {
        let set: Vec<Peer> =
            subnets.iter().filter_map(|subnet| wanted.get_key_value(subnet)).map(peer).collect();
        let is_gone = |subnet: &&Ipv4Net| !wanted.contains_key(subnet);
        let gone: Vec<IpNet> = subnets.iter().filter(is_gone).map(|net| (*net).into()).collect();
        let left_out = self.tunnel.change_peers(&gone, &set);
        debug_assert!(left_out.is_empty(), "all are of IPv4");
    }

    pub(super) fn counts(&self) -> Counts {
        self.tunnel.counts()
    }
}

fn peer((subnet, via): (&Ipv4Net, &SocketAddrV4)) -> Peer {
    Peer { prefix: (*subnet).into(), via: (*via).into() }
}
