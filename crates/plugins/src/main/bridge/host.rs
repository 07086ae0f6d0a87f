// SPDX-License-Identifier: Apache-2.0
//! The host's side: the bridge itself, its addresses, and the state of a port.

use std::time::{Duration, Instant};

use cni::{Code, Error};
use ipnet::IpNet;
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Kind, Link, NewLink, OperState};
use kernel::{IfName, MacAddr, Netlink, sysctl};

use super::conf::Bridge;
use super::gateway::{self, Change};
use crate::fault::OrFault;
use crate::undo::Undo;

/// How long the kernel may take to let frames through a new port.
const PORT_PATIENCE: Duration = Duration::from_secs(5);

pub fn exists(host: &Netlink, bridge: &Bridge) -> Result<bool, Error> {
    find(host, bridge).map(|found| found.is_some())
}

fn find(host: &Netlink, bridge: &Bridge) -> Result<Option<Link>, Error> {
    link::by_name(host, bridge.name).or_fault("look for the bridge")
}

/// Finds the bridge, or makes it where it is missing; one that is there must be a bridge.
pub fn ensure_bridge<'a>(
    host: &'a Netlink,
    bridge: &'a Bridge,
    undo: &mut Undo<'a>,
) -> Result<Link, Error> {
    let link = match find(host, bridge)? {
        Some(link) => link,
        None => create_bridge(host, bridge, undo)?,
    };
    refuse_other_kind(&link)?;
    Ok(link)
}

/// Sets the bridge up. Not taken back, since others may count on it by then, and so not done
/// before everything about the bridge is known to be right.
pub fn bring_up(host: &Netlink, bridge: &Bridge, link: &Link) -> Result<(), Error> {
    // A router's announcement on the bridge must not give the host addresses.
    if link.accept_ra.is_some_and(|accepted| accepted != 0) {
        sysctl::write(&format!("net/ipv6/conf/{}/accept_ra", bridge.name), "0")
            .or_fault("set the bridge up")?;
    }
    let mut changes = Vec::new();
    if !link.is_up() {
        changes.push(link::set_up(link.index));
    }
    if bridge.promisc && link.promiscuity == 0 {
        changes.push(link::set_promisc(link.index, true));
    }
    if changes.is_empty() {
        return Ok(());
    }
    host.apply(changes).or_fault("set the bridge up")
}

fn refuse_other_kind(link: &Link) -> Result<(), Error> {
    if link.is_kind("bridge") {
        return Ok(());
    }
    let kind = link.kind.as_deref().unwrap_or("a device");
    let msg = format!(
        "key \"bridge\" is {:?}, which already exists but is {kind}, not a bridge",
        link.name.as_str()
    );
    Err(Error::invalid_config(msg))
}

/// A bridge with a hardware address of our choice keeps it; otherwise the kernel changes it
/// whenever a port with a lower one comes or goes, and containers lose their gateway for a while.
fn create_bridge<'a>(
    host: &'a Netlink,
    bridge: &'a Bridge,
    undo: &mut Undo<'a>,
) -> Result<Link, Error> {
    let mut new = NewLink::new(bridge.name, Kind::Bridge { vlan_filtering: None });
    new.mtu = bridge.mtu;
    new.mac = Some(MacAddr::random().or_fault("choose a hardware address")?);
    match host.apply([link::create(&new)]) {
        Ok(()) => undo.push(move || remove_if_empty(host, bridge.name)),
        // Another ADD was quicker.
        Err(error) if error.is_exists() => {}
        Err(error) => return Err(error).or_fault("create the bridge"),
    }
    find_made(host, bridge)
}

/// The bridge's hardware address now that it has this port. One that others made has the lowest of its
/// ports' addresses, so it can only have changed with its first port or with a lower one.
pub fn mac_with_port(
    host: &Netlink,
    bridge: &Bridge,
    before: &Link,
    port: MacAddr,
) -> Result<Option<MacAddr>, Error> {
    if before.has_carrier() && before.mac.is_some_and(|mac| mac < port) {
        return Ok(before.mac);
    }
    find_made(host, bridge).map(|bridge| bridge.mac)
}

fn find_made(host: &Netlink, bridge: &Bridge) -> Result<Link, Error> {
    let made = find(host, bridge)?;
    made.ok_or_else(|| Error::internal(format!("bridge {} has disappeared", bridge.name)))
}

fn remove_if_empty(host: &Netlink, name: IfName) {
    let Ok(Some(link)) = link::by_name(host, name) else { return };
    if link::list_of_master(host, link.index).is_ok_and(|ports| ports.is_empty()) {
        // The failure that led here is the one to tell.
        let _ = host.apply([link::remove(link.index)]);
    }
}

/// Gives the bridge the containers' gateway addresses.
pub fn ensure_addresses<'a>(
    host: &'a Netlink,
    bridge: &Bridge,
    found: &Link,
    wanted: &[IpNet],
    undo: &mut Undo<'a>,
) -> Result<(), Error> {
    if wanted.is_empty() {
        return Ok(());
    }
    let index = found.index;
    let present = addr::list(host, Some(index)).or_fault("list the bridge's addresses")?;
    let mut present: Vec<IpNet> = present.iter().map(|address| address.prefix).collect();
    for address in wanted.iter().copied() {
        let mut changes = Vec::new();
        match gateway::compare(address, &present) {
            Change::Nothing => continue,
            Change::Add => {}
            Change::Conflict(other) if bridge.force_address => {
                changes.push(addr::remove(index, other));
                present.retain(|one| *one != other);
            }
            Change::Conflict(other) => return Err(conflict(bridge, address, other)),
        }
        // Nobody else on this bridge may hold the gateway's address, so it needs no detection.
        changes.push(addr::add(
            index,
            address,
            AddrOptions { nodad: true, ..AddrOptions::default() },
        ));
        // Setting the address that it has pins it; see `create_bridge`.
        changes.extend(found.mac.map(|mac| link::set_mac(index, mac)));
        match host.apply(changes) {
            Ok(()) => undo.push(move || drop(host.apply([addr::remove(index, address)]))),
            // Another ADD was quicker.
            Err(error) if error.is_exists() => {}
            Err(error) => return Err(error).or_fault("give the bridge its address"),
        }
        present.push(address);
    }
    Ok(())
}

fn conflict(bridge: &Bridge, wanted: IpNet, other: IpNet) -> Error {
    let name = bridge.name.as_str();
    Error::invalid_config(format!("{name:?} already has an IP address different from {wanted}"))
        .with_details(format!("it has {other}; \"forceAddress\": true replaces it"))
}

/// The kernel opens a port a moment after both ends of the pair are up, in a task of its own.
pub fn wait_for_port(host: &Netlink, name: IfName) -> Result<(), Error> {
    let is_open = |link: &Link| link.operstate == OperState::Up;
    let find = || link::by_name(host, name).or_fault("look at the bridge's port");
    match find()? {
        Some(link) if is_open(&link) => return Ok(()),
        Some(_) => {}
        None => return Err(Error::internal(format!("interface {name} has disappeared"))),
    }
    let mut monitor = link::monitor().or_fault("watch the bridge's port")?;
    let Some(link) = find()? else {
        return Err(Error::internal(format!("interface {name} has disappeared")));
    };
    let deadline = Instant::now() + PORT_PATIENCE;
    let is_up = link::wait_until(host, &mut monitor, link.index, deadline, |link| {
        link.is_some_and(is_open)
    })
    .or_fault("watch the bridge's port")?;
    if is_up {
        return Ok(());
    }
    Err(Error::internal(format!("bridge port {name} is in error state: it does not come up")))
}

/// STATUS: could an ADD make or use the bridge?
pub fn check_usable(bridge: &Bridge) -> Result<(), Error> {
    let host = Netlink::open().or_fault("open a netlink socket")?;
    let not_available = |msg: String| Error::new(Code::NOT_AVAILABLE, msg);
    if let Some(link) = find(&host, bridge)? {
        return refuse_other_kind(&link).map_err(|error| not_available(error.msg));
    }
    for kind in ["bridge", "veth"] {
        if !link::is_supported(&host, kind).or_fault("ask the kernel for its features")? {
            return Err(not_available(format!("this kernel has no {kind} interfaces")));
        }
    }
    Ok(())
}
