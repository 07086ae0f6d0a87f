// SPDX-License-Identifier: Apache-2.0
//! The gateway of a VLAN: a pair of interfaces on the host, of which one is a port in that VLAN and the
//! other, called `<bridge>.<vlan>`, holds the address. It goes when the last port of the VLAN has gone.

use cni::{Error, Interface};
use ipnet::IpNet;
use kernel::bridge_vlan::{self, Vlans as Range};
use kernel::link::{self, Kind, Link, NewLink, Peer};
use kernel::{IfName, IfNameError, MacAddr, Netlink, Netns};

use super::super::conf::Bridge;
use super::super::host;
use super::port;
use crate::fault::OrFault;
use crate::identity;

/// Which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gateway {
    /// The name of its interface.
    pub name: IfName,
    /// The VLAN.
    pub vlan: u16,
}

impl Gateway {
    /// The gateway of a VLAN on a bridge.
    pub fn of(bridge: IfName, vlan: u16) -> Result<Gateway, IfNameError> {
        let name = format!("{bridge}.{vlan}").parse()?;
        Ok(Gateway { name, vlan })
    }

    /// The name of its port, by which we know that we made it.
    fn port(self) -> IfName {
        identity::gateway_port(self.name)
    }
}

/// Makes the gateway where it is missing and gives it these addresses. What is told of it in the result
/// comes back.
pub fn provide(
    host: &Netlink,
    bridge: &Bridge,
    gateway: Gateway,
    on: &Link,
    addresses: &[IpNet],
) -> Result<Interface, Error> {
    // Another DEL must not take it away between our look and our address; our own port is there by
    // now, so that one that comes later leaves it.
    let _lock = lock()?;
    let keeps_default = bridge.vlans.as_ref().is_some_and(|vlans| vlans.keeps_default);
    let link = match find(host, gateway)? {
        Some(link) => repaired(host, gateway, on, keeps_default, link)?,
        None => create(host, gateway, on, keeps_default, addresses)?,
    };
    let missing = host::missing_addresses(host, bridge, Some(&link), addresses)?;
    host::give_addresses(host, &link, &missing)?;
    let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    Ok(Interface { name: gateway.name.to_string(), mac, ..Interface::default() })
}

/// The gateway's interface, if it is there.
pub fn find(host: &Netlink, gateway: Gateway) -> Result<Option<Link>, Error> {
    link::by_name(host, gateway.name).or_fault("look for the VLAN's gateway")
}

/// Removes the gateway if no port is in its VLAN but its own. One that others made is left alone.
pub fn remove_if_unused(host: &Netlink, gateway: Gateway) -> Result<(), Error> {
    if find(host, gateway)?.is_none() {
        return Ok(());
    }
    let _lock = lock()?;
    let Some(link) = find(host, gateway)? else { return Ok(()) };
    let Some(own) = own_port(host, gateway, &link)? else { return Ok(()) };
    if let Some(bridge) = own.master {
        let ports = bridge_vlan::ports(host, bridge, gateway.vlan);
        let ports = ports.or_fault("list the ports of a VLAN")?;
        if ports.iter().any(|port| *port != own.index) {
            return Ok(());
        }
    }
    link::remove_in_background(host, link.index).or_fault("remove the VLAN's gateway")
}

/// CHECK: the gateway must be there, and its port on the bridge and in the VLAN.
pub fn check(host: &Netlink, gateway: Gateway, bridge: &Link) -> Result<Link, Error> {
    let Gateway { name, vlan } = gateway;
    let link = find(host, gateway)?.ok_or_else(|| {
        Error::internal(format!("interface {name}, gateway of VLAN {vlan}, is missing"))
    })?;
    if !link.is_up() {
        return Err(Error::internal(format!("interface {name}, gateway of VLAN {vlan}, is down")));
    }
    let Some(port) = peer(host, &link)? else { return Ok(link) };
    if port.master != Some(bridge.index) || !port.is_up() {
        let msg = format!("interface {name} is not connected with bridge {}", bridge.name);
        return Err(Error::internal(msg));
    }
    if !is_in_vlan(host, gateway, &port)? {
        let msg = format!("interface {name} is not in VLAN {vlan}: its port {} is not", port.name);
        return Err(Error::internal(msg));
    }
    Ok(link)
}

fn lock() -> Result<kernel::netns::Lock, Error> {
    let held = Netns::current().and_then(|ns| ns.lock("gateways"));
    held.or_fault("wait for others who change a VLAN's gateway")
}

/// The gateway's hardware address follows from its IP address, so that what containers remember of it is
/// true for one that is made anew. The port's is high, so that a bridge without one of its own does
/// not take it.
fn create(
    host: &Netlink,
    gateway: Gateway,
    on: &Link,
    keeps_default: bool,
    addresses: &[IpNet],
) -> Result<Link, Error> {
    let mut port_mac = MacAddr::random().or_fault("choose a hardware address")?;
    port_mac.0[0] = 0xfe;
    let mtu = Some(on.mtu);
    let first = addresses.iter().map(IpNet::addr).min_by_key(|address| address.is_ipv6());
    let mac = first.map(identity::mac_of);
    let peer = Peer { name: gateway.name, mac, mtu, netns: None };
    let mut new = NewLink::new(gateway.port(), Kind::Veth(peer));
    (new.mtu, new.mac, new.master, new.up) = (mtu, Some(port_mac), Some(on.index), true);
    host.apply([link::create(&new)]).or_fault("create the VLAN's gateway")?;
    let link = find(host, gateway)?
        .ok_or_else(|| Error::internal(format!("interface {} has disappeared", gateway.name)))?;
    repaired(host, gateway, on, keeps_default, link)
}

/// One of ours that a process which was killed has left half-made, or that has lost its bridge, is made
/// whole. One that others made is taken as it is.
fn repaired(
    host: &Netlink,
    gateway: Gateway,
    on: &Link,
    keeps_default: bool,
    link: Link,
) -> Result<Link, Error> {
    let Some(own) = own_port(host, gateway, &link)? else { return Ok(link) };
    let mut changes = Vec::new();
    if own.master != Some(on.index) {
        changes.push(link::set_master(own.index, on.index));
    }
    for end in [&own, &link] {
        changes.extend((!end.is_up()).then(|| link::set_up(end.index)));
    }
    host.apply(changes).or_fault("set the VLAN's gateway up")?;
    if !is_in_vlan(host, gateway, &own)? {
        port::set(host, own.index, &[Range::native(gateway.vlan)], keeps_default)?;
    }
    Ok(link)
}

fn is_in_vlan(host: &Netlink, gateway: Gateway, port: &Link) -> Result<bool, Error> {
    let found = bridge_vlan::list(host, port.index);
    // A port without a bridge has none.
    match found {
        Err(error) if error.errno == kernel::Errno::INVAL => Ok(false),
        other => other
            .or_fault("list VLANs of the gateway's port")
            .map(|found| port::covers(&found, &Range::native(gateway.vlan))),
    }
}

fn own_port(host: &Netlink, gateway: Gateway, link: &Link) -> Result<Option<Link>, Error> {
    Ok(peer(host, link)?.filter(|port| port.name == gateway.port()))
}

/// The other end of a pair, where that is on the host too.
fn peer(host: &Netlink, link: &Link) -> Result<Option<Link>, Error> {
    let index = link.link.filter(|_| link.is_kind("veth") && link.link_netnsid.is_none());
    let found = index.map(|index| link::by_index(host, index)).transpose();
    found.map(Option::flatten).or_fault("look for the port of the VLAN's gateway")
}
