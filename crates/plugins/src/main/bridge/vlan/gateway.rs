// SPDX-License-Identifier: Apache-2.0
//! The gateway of a VLAN: a veth pair on the host. One end is a bridge port in that VLAN; the other
//! end, `<bridge>.<vlan>`, has the gateway address. The pair is removed with the last container
//! port of the VLAN.

use cni::{Error, Interface};
use ipnet::IpNet;
use kernel::bridge_vlan::{self, Vlans as Range};
use kernel::link::{self, Kind, Link, NewLink, Peer};
use kernel::{IfName, IfNameError, MacAddr, Netlink, Netns};

use super::super::conf::Bridge;
use super::super::host_bridge;
use super::port;
use crate::attach::names;
use crate::error::Context;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gateway {
    /// The name of the interface with the address.
    pub name: IfName,
    pub vlan: u16,
}

impl Gateway {
    pub(crate) fn of(bridge: IfName, vlan: u16) -> Result<Gateway, IfNameError> {
        let name = format!("{bridge}.{vlan}").parse()?;
        Ok(Gateway { name, vlan })
    }

    /// The name of the bridge port. It identifies a gateway that this plugin created.
    fn port(self) -> IfName {
        names::gateway_port(self.name)
    }
}

/// Creates the gateway if it is missing, adds the addresses, and returns its entry for the result.
pub(crate) fn ensure(
    host: &Netlink,
    bridge: &Bridge,
    gateway: Gateway,
    bridge_link: &Link,
    addresses: &[IpNet],
) -> Result<Interface, Error> {
    // Keeps a DEL from removing the gateway between the lookup and the new address. A later DEL
    // keeps it because the container's own port exists by now.
    let _lock = lock()?;
    let keeps_default = bridge.vlans.as_ref().is_some_and(|vlans| vlans.keeps_default);
    let link = match find(host, gateway)? {
        Some(link) => repair(host, gateway, bridge_link, keeps_default, link)?,
        None => create(host, gateway, bridge_link, keeps_default, addresses)?,
    };
    let missing = host_bridge::missing_addresses(host, bridge, Some(&link), addresses)?;
    host_bridge::add_addresses(host, &link, &missing)?;
    let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    Ok(Interface { name: gateway.name.to_string(), mac, ..Interface::default() })
}

/// Finds the interface with the gateway address.
pub(crate) fn find(host: &Netlink, gateway: Gateway) -> Result<Option<Link>, Error> {
    link::by_name(host, gateway.name).context("look for the VLAN's gateway")
}

/// Removes the gateway if the VLAN has no other port. A gateway of another program is kept.
pub(crate) fn remove_if_unused(host: &Netlink, gateway: Gateway) -> Result<(), Error> {
    if find(host, gateway)?.is_none() {
        return Ok(());
    }
    let _lock = lock()?;
    let Some(link) = find(host, gateway)? else { return Ok(()) };
    let Some(own) = own_port(host, gateway, &link)? else { return Ok(()) };
    if let Some(bridge) = own.master {
        let ports = bridge_vlan::ports(host, bridge, gateway.vlan);
        let ports = ports.context("list the ports of a VLAN")?;
        if ports.iter().any(|port| *port != own.index) {
            return Ok(());
        }
    }
    link::remove_in_background(host, link.index).context("remove the VLAN's gateway")
}

/// CHECK: the gateway must exist, and its port must be on the bridge and in the VLAN.
pub(crate) fn check(host: &Netlink, gateway: Gateway, bridge: &Link) -> Result<Link, Error> {
    let Gateway { name, vlan } = gateway;
    let link = find(host, gateway)?.ok_or_else(|| {
        Error::internal(format!("interface {name}, gateway of VLAN {vlan}, is missing"))
    })?;
    if !link.is_up() {
        return Err(Error::internal(format!("interface {name}, gateway of VLAN {vlan}, is down")));
    }
    let Some(port) = peer(host, &link)? else { return Ok(link) };
    if port.master != Some(bridge.index) || !port.is_up() {
        let msg = format!("interface {name} is not connected to bridge {}", bridge.name);
        return Err(Error::internal(msg));
    }
    if !is_in_vlan(host, gateway, &port)? {
        let msg = format!(
            "interface {name} is not in VLAN {vlan}: its port {} is not in that VLAN",
            port.name
        );
        return Err(Error::internal(msg));
    }
    Ok(link)
}

fn lock() -> Result<kernel::netns::Lock, Error> {
    let held = Netns::current().and_then(|ns| ns.lock("gateways"));
    held.context("lock the VLAN gateways")
}

/// The gateway's MAC address is derived from its IP address, so that the containers' neighbour
/// caches stay correct when the gateway is re-created. The port's MAC address is high, so that a
/// bridge without its own address does not take it.
fn create(
    host: &Netlink,
    gateway: Gateway,
    bridge_link: &Link,
    keeps_default: bool,
    addresses: &[IpNet],
) -> Result<Link, Error> {
    let mut port_mac = MacAddr::random().context("choose a MAC address")?;
    port_mac.0[0] = 0xfe;
    let mtu = Some(bridge_link.mtu);
    let first = addresses.iter().map(IpNet::addr).min_by_key(|address| address.is_ipv6());
    let mac = first.map(names::mac_of);
    let peer = Peer { name: gateway.name, mac, mtu, netns: None };
    let mut new = NewLink::new(gateway.port(), Kind::Veth(peer));
    (new.mtu, new.mac, new.master, new.up) = (mtu, Some(port_mac), Some(bridge_link.index), true);
    host.apply([link::create(&new)]).context("create the VLAN's gateway")?;
    let link = find(host, gateway)?
        .ok_or_else(|| Error::internal(format!("interface {} has disappeared", gateway.name)))?;
    repair(host, gateway, bridge_link, keeps_default, link)
}

/// Completes a gateway that a killed process left incomplete or that lost its bridge. A gateway of
/// another program is used as it is.
fn repair(
    host: &Netlink,
    gateway: Gateway,
    bridge_link: &Link,
    keeps_default: bool,
    link: Link,
) -> Result<Link, Error> {
    let Some(own) = own_port(host, gateway, &link)? else { return Ok(link) };
    let mut changes = Vec::new();
    if own.master != Some(bridge_link.index) {
        changes.push(link::set_master(own.index, bridge_link.index));
    }
    for end in [&own, &link] {
        changes.extend((!end.is_up()).then(|| link::set_up(end.index)));
    }
    host.apply(changes).context("set the VLAN's gateway up")?;
    if !is_in_vlan(host, gateway, &own)? {
        port::set(host, own.index, &[Range::native(gateway.vlan)], keeps_default)?;
    }
    Ok(link)
}

fn is_in_vlan(host: &Netlink, gateway: Gateway, port: &Link) -> Result<bool, Error> {
    let found = bridge_vlan::list(host, port.index);
    // The kernel reports EINVAL for a port without a bridge.
    match found {
        Err(error) if error.errno == kernel::Errno::INVAL => Ok(false),
        other => other
            .context("list VLANs of the gateway's port")
            .map(|found| port::covers(&found, &Range::native(gateway.vlan))),
    }
}

fn own_port(host: &Netlink, gateway: Gateway, link: &Link) -> Result<Option<Link>, Error> {
    Ok(peer(host, link)?.filter(|port| port.name == gateway.port()))
}

/// The other end of a veth pair, if it is on the host.
fn peer(host: &Netlink, link: &Link) -> Result<Option<Link>, Error> {
    let index = link.link.filter(|_| link.is_kind("veth") && link.link_netnsid.is_none());
    let found = index.map(|index| link::by_index(host, index)).transpose();
    found.map(Option::flatten).context("look for the port of the VLAN's gateway")
}
