// SPDX-License-Identifier: Apache-2.0
//! The udp backend's program: who carries the packets of the TUN device.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use ipnet::Ipv4Net;
use kernel::{IfIndex, IfName};
use overlay::netconf::Backend;
use overlay::plan::Network;
use tunnel::{Config, Counts, Peer, Tunnel};

/// A running tunnel.
#[derive(Debug)]
pub(super) struct Carrier {
    tunnel: Tunnel,
    listen: SocketAddrV4,
    index: IfIndex,
    /// What it was told last.
    peers: BTreeMap<Ipv4Net, SocketAddrV4>,
}

/// Where packets of other nodes are expected; none for other backends.
pub(super) fn listen_of(network: &Network) -> Option<SocketAddrV4> {
    let Backend::Udp(conf) = &network.conf().backend else { return None };
    Some(SocketAddrV4::new(network.underlay().addresses.v4?, conf.port))
}

impl Carrier {
    /// Makes the device and begins.
    pub(super) fn start(
        device: IfName,
        listen: SocketAddrV4,
        queues: usize,
        index_of: impl FnOnce() -> Result<IfIndex, String>,
    ) -> Result<Self, String> {
        let config = Config { device, listen: listen.into(), queues };
        let tunnel = Tunnel::start(&config).map_err(|error| chain(&error))?;
        Ok(Self { tunnel, listen, index: index_of()?, peers: BTreeMap::new() })
    }

    /// Whether it carries this device's packets, from where it should.
    pub(super) fn carries(&self, index: IfIndex, listen: Option<SocketAddrV4>) -> bool {
        self.index == index && Some(self.listen) == listen && self.tunnel.failure().is_none()
    }

    pub(super) fn index(&self) -> IfIndex {
        self.index
    }

    /// Tells it where packets go, if that is anything new.
    pub(super) fn tell(&mut self, peers: &BTreeMap<Ipv4Net, SocketAddrV4>) {
        if self.peers == *peers {
            return;
        }
        let list: Vec<Peer> = peers
            .iter()
            .map(|(subnet, via)| Peer { prefix: (*subnet).into(), via: (*via).into() })
            .collect();
        let left_out = self.tunnel.set_peers(&list);
        debug_assert!(left_out.is_empty(), "all are of IPv4");
        self.peers.clone_from(peers);
    }

    pub(super) fn counts(&self) -> Counts {
        self.tunnel.counts()
    }
}

/// An error with its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
