// SPDX-License-Identifier: Apache-2.0
//! What joins the nodes: a bridge in a namespace of its own, and a wire to each.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context, Result};
use ipnet::{IpNet, Ipv4Net};
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Kind, NewLink, Peer};
use kernel::{IfIndex, IfName, Netlink, Netns};

use crate::demo::run::Run;

/// The bridge.
pub const BRIDGE: &str = "underlay0";
/// The nodes' end of their wires.
pub const INTERFACE: &str = "eth0";
/// For examples, and routed nowhere (RFC 5737).
pub const NETWORK: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 0);
pub const PREFIX_LEN: u8 = 24;

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
}

fn name(text: &str) -> Result<IfName> {
    Ok(text.parse()?)
}
