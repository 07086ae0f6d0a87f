// SPDX-License-Identifier: Apache-2.0
//! What joins the nodes: a bridge in a namespace of its own, and a wire to each.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ipnet::{IpNet, Ipv4Net};
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Kind, Link, NewLink, OperState, Peer};
use kernel::{IfIndex, IfName, Netlink, Netns};

use crate::demo::run::Run;

/// The bridge.
pub const BRIDGE: &str = "underlay0";
/// The nodes' end of their wires.
pub const INTERFACE: &str = "eth0";
/// For examples, and routed nowhere (RFC 5737).
pub const NETWORK: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 0);
pub const PREFIX_LEN: u8 = 24;
const PATIENCE: Duration = Duration::from_secs(30);

/// The bridge and its namespace.
#[derive(Debug)]
pub struct Underlay {
    pub path: PathBuf,
    pub netns: Netns,
    nl: Netlink,
    bridge: IfIndex,
}

impl Underlay {
    pub fn new(run: &Run) -> Result<Underlay> {
        let (path, netns) = run.namespace("underlay").context("make the underlay")?;
        let nl = netns.netlink()?;
        let name = name(BRIDGE)?;
        let kind = Kind::Bridge { vlan_filtering: None };
        nl.apply([link::create(&NewLink { up: true, ..NewLink::new(name, kind) })])?;
        let bridge = link::index_of(&nl, name)?;
        Ok(Underlay { path, netns, nl, bridge })
    }

    /// Lays a wire to a node, and gives its end an address.
    pub fn connect(&self, node: &str, netns: &Netns, address: Ipv4Addr) -> Result<()> {
        let peer =
            Peer { name: name(INTERFACE)?, mac: None, mtu: None, netns: Some(netns.as_fd()) };
        let wire = NewLink::new(name(node)?, Kind::Veth(peer));
        self.nl.apply([link::create(&NewLink { up: true, master: Some(self.bridge), ..wire })])?;
        let nl = netns.netlink()?;
        let index = link::index_of(&nl, name(INTERFACE)?)?;
        let prefix = IpNet::from(Ipv4Net::new(address, PREFIX_LEN)?);
        Ok(nl.apply([
            addr::add(index, prefix, AddrOptions::default()),
            link::set_up(name("lo")?),
            link::set_up(index),
        ])?)
    }

    /// The kernel opens both ends of a wire a moment after they are up. What a node asks its
    /// neighbours before is lost, and asked again only after a second.
    pub fn wait_until_open(&self, node: &str, netns: &Netns) -> Result<()> {
        let is_open = wait_until_up(&self.netns, &self.nl, node)?
            && wait_until_up(netns, &netns.netlink()?, INTERFACE)?;
        ensure!(is_open, "the wire to {node} stays down");
        Ok(())
    }
}

/// False where it does not come up.
fn wait_until_up(netns: &Netns, nl: &Netlink, interface: &str) -> Result<bool> {
    let mut monitor = netns.enter(link::monitor)??;
    let index = link::index_of(nl, name(interface)?)?;
    let is_up = |link: Option<&Link>| link.is_some_and(|link| link.operstate == OperState::Up);
    Ok(link::wait_until(nl, &mut monitor, index, Instant::now() + PATIENCE, is_up)?)
}

fn name(text: &str) -> Result<IfName> {
    Ok(text.parse()?)
}
