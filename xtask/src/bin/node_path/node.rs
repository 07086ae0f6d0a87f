// SPDX-License-Identifier: Apache-2.0
//! Two nodes: namespaces that are connected by a veth pair.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use ipnet::{IpNet, Ipv4Net};
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Kind, NewLink, Peer};
use kernel::route::{self, Route};
use kernel::{IfName, Netns};

use super::Outcome;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) netns: Netns,
    pub(crate) number: u8,
}

impl Node {
    /// Address on the underlay.
    pub(crate) fn underlay(&self) -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, self.number)
    }

    /// Sets the address of a device, brings it up and adds routes through it.
    pub(crate) fn set_up(&self, device: IfName, prefix: IpNet, routes: &[IpNet]) -> Outcome {
        let nl = self.netns.netlink()?;
        let index = link::index_of(&nl, device)?;
        let mut requests =
            vec![addr::add(index, prefix, AddrOptions::default()), link::set_up(index)];
        requests.extend(routes.iter().map(|dst| route::create(&Route::new(*dst).dev(index))));
        Ok(nl.apply(requests)?)
    }
}

/// Creates nodes 1 and 2, connected by their `eth0`.
pub(crate) fn two() -> Outcome<[Node; 2]> {
    let node = |number| Outcome::Ok(Node { netns: Netns::new_anonymous()?, number });
    let nodes = [node(1)?, node(2)?];
    let [a, b] = &nodes;
    let eth0: IfName = "eth0".parse()?;
    let peer = Peer { name: eth0, mac: None, mtu: None, netns: Some(b.netns.as_fd()) };
    a.netns.netlink()?.apply([link::create(&NewLink::new(eth0, Kind::Veth(peer)))])?;
    for node in &nodes {
        node.set_up(eth0, Ipv4Net::new(node.underlay(), 24)?.into(), &[])?;
        let nl = node.netns.netlink()?;
        nl.apply([link::set_up(link::index_of(&nl, "lo".parse()?)?)])?;
    }
    Ok(nodes)
}
