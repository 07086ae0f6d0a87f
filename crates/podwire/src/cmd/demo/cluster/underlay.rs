// SPDX-License-Identifier: Apache-2.0
//! The network between the nodes: a bridge in its own namespace with a veth pair to each node.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ipnet::{IpNet, Ipv4Net};
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Kind, Link, NewLink, OperState, Peer};
use kernel::{IfIndex, IfName, Netlink, Netns};

use crate::cmd::demo::run::Run;

/// Name of the bridge.
pub(crate) const BRIDGE: &str = "underlay0";
/// Name of the underlay interface on each node.
pub(crate) const INTERFACE: &str = "eth0";
/// Documentation network that is routed nowhere (RFC 5737).
pub(crate) const NETWORK: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 0);
pub(crate) const PREFIX_LEN: u8 = 24;
/// Maximum wait for the carrier of a veth pair.
const LINK_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Underlay {
    pub(crate) path: PathBuf,
    pub(crate) netns: Netns,
    nl: Netlink,
    bridge: IfIndex,
}

impl Underlay {
    pub(crate) fn new(run: &Run) -> Result<Underlay> {
        let (path, netns) = run.namespace("underlay").context("create the underlay")?;
        let nl = netns.netlink()?;
        let name = name(BRIDGE)?;
        let kind = Kind::Bridge { vlan_filtering: None };
        nl.apply([link::create(&NewLink { up: true, ..NewLink::new(name, kind) })])?;
        let bridge = link::index_of(&nl, name)?;
        Ok(Underlay { path, netns, nl, bridge })
    }

    /// Connects a node with a veth pair and sets its address.
    pub(crate) fn connect(&self, node: &str, netns: &Netns, address: Ipv4Addr) -> Result<()> {
        let peer =
            Peer { name: name(INTERFACE)?, mac: None, mtu: None, netns: Some(netns.as_fd()) };
        let veth = NewLink::new(name(node)?, Kind::Veth(peer));
        self.nl.apply([link::create(&NewLink { up: true, master: Some(self.bridge), ..veth })])?;
        let nl = netns.netlink()?;
        let index = link::index_of(&nl, name(INTERFACE)?)?;
        let prefix = IpNet::from(Ipv4Net::new(address, PREFIX_LEN)?);
        Ok(nl.apply([
            addr::add(index, prefix, AddrOptions::default()),
            link::set_up(name("lo")?),
            link::set_up(index),
        ])?)
    }

    /// Waits for the carrier of both ends: the kernel reports it some time after the link is up. A
    /// neighbour request sent before is lost and repeated only after a second.
    pub(crate) fn wait_for_carrier(&self, node: &str, netns: &Netns) -> Result<()> {
        let has_carrier = wait_until_up(&self.netns, &self.nl, node)?
            && wait_until_up(netns, &netns.netlink()?, INTERFACE)?;
        ensure!(has_carrier, "no carrier on the link to {node}");
        Ok(())
    }
}

/// Returns whether the interface is up before the deadline.
fn wait_until_up(netns: &Netns, nl: &Netlink, interface: &str) -> Result<bool> {
    let mut monitor = netns.enter(link::monitor)??;
    let index = link::index_of(nl, name(interface)?)?;
    let is_up = |link: Option<&Link>| link.is_some_and(|link| link.operstate == OperState::Up);
    Ok(link::wait_until(nl, &mut monitor, index, Instant::now() + LINK_TIMEOUT, is_up)?)
}

fn name(text: &str) -> Result<IfName> {
    Ok(text.parse()?)
}
