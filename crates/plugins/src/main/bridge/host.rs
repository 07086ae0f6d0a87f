// SPDX-License-Identifier: Apache-2.0
//! The host's side: the bridge itself, its addresses, and the state of a port.

use std::time::{Duration, Instant};

use cni::{Code, Error};
use ipam::stale_bridge;
use ipnet::IpNet;
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Detail, Kind, Link, NewLink, OperState};
use kernel::{IfName, MacAddr, Netlink, bridge_vlan};

use super::conf::Bridge;
use super::gateway::{self, Change};
use crate::fault::OrFault;
use crate::forwarding;
use crate::undo::Undo;

/// How long the kernel may take to let frames through a new port. It does so under its one lock for links,
/// which others hold for seconds where they remove a thousand containers.
const PORT_PATIENCE: Duration = Duration::from_secs(20);

/// Whether the bridge is still the one that was found.
pub fn is_same(host: &Netlink, bridge: &Bridge, found: &Link) -> Result<bool, Error> {
    find(host, bridge).map(|now| now.is_some_and(|now| now.index == found.index))
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
    if must_begin_to_filter(bridge, &link) && !can_filter(host)? {
        return Err(Error::internal(CANNOT_FILTER));
    }
    Ok(link)
}

const CANNOT_FILTER: &str = "bridges of this kernel cannot filter VLANs, \
                             keys \"vlan\" and \"vlanTrunk\" need it";

fn must_begin_to_filter(bridge: &Bridge, link: &Link) -> bool {
    bridge.vlans.is_some() && link.detail != Detail::Bridge { vlan_filtering: true }
}

fn can_filter(host: &Netlink) -> Result<bool, Error> {
    bridge_vlan::is_supported(host).or_fault("ask the kernel for its features")
}

/// Sets the bridge up. Not taken back, since others may count on it by then, and so not done
/// before everything about the bridge is known to be right.
pub fn bring_up(host: &Netlink, bridge: &Bridge, link: &Link) -> Result<(), Error> {
    // A router's announcement on the bridge must not give the host addresses.
    if link.accept_ra.is_some_and(|accepted| accepted != 0) {
        forwarding::ignore_routers(bridge.name)?;
    }
    if !link.is_up() {
        forwarding::try_no_addresses(bridge.name)?;
    }
    let mut changes = Vec::new();
    if must_begin_to_filter(bridge, link) {
        // Its ports are in one VLAN, the default, and go on as before.
        changes.push(link::set_vlan_filtering(link.index, true));
    }
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
    let name = link.name.as_str();
    Err(Error::invalid_config(format!("{name:?} already exists but is not a bridge"))
        .with_details(format!("key \"bridge\" is {name:?}, which is {kind}")))
}

/// A bridge with a hardware address of our choice keeps it; otherwise the kernel changes it
/// whenever a port with a lower one comes or goes, and containers lose their gateway for a while.
fn create_bridge<'a>(
    host: &'a Netlink,
    bridge: &'a Bridge,
    undo: &mut Undo<'a>,
) -> Result<Link, Error> {
    let vlan_filtering = bridge.vlans.as_ref().map(|_| true);
    let mut new = NewLink::new(bridge.name, Kind::Bridge { vlan_filtering });
    new.mtu = bridge.mtu;
    new.mac = Some(MacAddr::random().or_fault("choose a hardware address")?);
    match host.apply([link::create(&new)]) {
        Ok(()) => undo.push(move || remove_if_empty(host, bridge.name)),
        // Another ADD was quicker.
        Err(error) if error.already_exists() => {}
        Err(error) if error.is_unsupported() && vlan_filtering.is_some() => {
            return Err(error).or_fault(CANNOT_FILTER);
        }
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
    mac(host, bridge)
}

/// The bridge's hardware address as it is.
pub fn mac(host: &Netlink, bridge: &Bridge) -> Result<Option<MacAddr>, Error> {
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

/// An address that the gateway lacks: the bridge, or what holds the addresses of a VLAN.
#[derive(Debug, Clone)]
pub struct Missing {
    address: IpNet,
    /// What it replaces.
    instead_of: Vec<IpNet>,
}

/// Which of the containers' gateway addresses their holder lacks, if it is there at all; an error where
/// one is in the way.
pub fn missing_addresses(
    host: &Netlink,
    bridge: &Bridge,
    holder: Option<&Link>,
    wanted: &[IpNet],
) -> Result<Vec<Missing>, Error> {
    let mut missing = Vec::new();
    if wanted.is_empty() {
        return Ok(missing);
    }
    let present = holder.map(|link| addr::list(host, Some(link.index))).transpose();
    let present = present.or_fault("list the gateway's addresses")?.unwrap_or_default();
    let mut present: Vec<IpNet> = present.iter().map(|address| address.prefix).collect();
    for address in wanted.iter().copied() {
        let instead_of = match gateway::compare(address, &present) {
            Change::Nothing => continue,
            Change::Add => Vec::new(),
            Change::Conflict(others) if bridge.force_address => others,
            Change::Conflict(others) => return Err(conflict(bridge, address, &others)),
        };
        present.retain(|other| !instead_of.contains(other));
        present.push(address);
        missing.push(Missing { address, instead_of });
    }
    Ok(missing)
}

/// Gives the bridge, or the gateway of a VLAN, the addresses that it lacks.
pub fn give_addresses(host: &Netlink, found: &Link, missing: &[Missing]) -> Result<(), Error> {
    let (index, doing) = (found.index, "give the gateway its address");
    for Missing { address, instead_of } in missing {
        let mut changes: Vec<_> =
            instead_of.iter().map(|other| addr::remove(index, *other)).collect();
        // Nobody else on this bridge may hold the gateway's address, so it needs no detection.
        let options = AddrOptions { nodad: true, ..AddrOptions::default() };
        changes.push(addr::add(index, *address, options));
        // Setting the address that it has pins it; see `create_bridge`.
        changes.extend(found.mac.map(|mac| link::set_mac(index, mac)));
        // Another ADD may have been quicker with either.
        let is_done = |error: &kernel::Error| error.already_exists() || error.is_not_found();
        let refused = host.apply_each(changes).into_iter().filter_map(Result::err);
        refused.filter(|error| !is_done(error)).try_for_each(Err).or_fault(doing)?;
    }
    Ok(())
}

fn conflict(bridge: &Bridge, wanted: IpNet, others: &[IpNet]) -> Error {
    let others: Vec<String> = others.iter().map(IpNet::to_string).collect();
    let holder = bridge.vlan_gateway.map_or(bridge.name, |gateway| gateway.name);
    let name = holder.as_str();
    Error::invalid_config(format!("{name:?} already has an IP address different from {wanted}"))
        .with_details(format!("it has {}; {}", others.join(", "), stale_bridge::hint(name)))
}

/// The kernel opens a port a moment after both ends of the pair are up, in a task of its own.
pub fn wait_for_port(host: &Netlink, bridge: &Link, name: IfName) -> Result<(), Error> {
    let is_open = |link: &Link| link.operstate == OperState::Up;
    let find = || find_port(host, bridge, name);
    if is_open(&find()?) {
        return Ok(());
    }
    let mut monitor = link::monitor().or_fault("watch the bridge's port")?;
    let link = find()?;
    let deadline = Instant::now() + PORT_PATIENCE;
    let is_up = link::wait_until(host, &mut monitor, link.index, deadline, |link| {
        link.is_some_and(is_open)
    })
    .or_fault("watch the bridge's port")?;
    if is_up {
        return Ok(());
    }
    Err(Error::internal(format!("bridge port in error state: {name} does not come up")))
}

fn find_port(host: &Netlink, bridge: &Link, name: IfName) -> Result<Link, Error> {
    match link::by_name(host, name).or_fault("look at the bridge's port")? {
        None => Err(Error::internal(format!("interface {name} has disappeared"))),
        // It found the bridge empty a moment before this port came.
        Some(link) if link.master != Some(bridge.index) => {
            let msg = format!("an ADD that failed has taken bridge {} away", bridge.name);
            Err(Error::new(Code::TRY_LATER, msg))
        }
        Some(link) => Ok(link),
    }
}

/// STATUS: could an ADD make or use the bridge?
pub fn check_usable(bridge: &Bridge) -> Result<(), Error> {
    let host = Netlink::open().or_fault("open a netlink socket")?;
    let not_available = |msg: String| Error::new(Code::NOT_AVAILABLE, msg);
    let found = find(&host, bridge)?;
    if let Some(link) = &found {
        refuse_other_kind(link).map_err(|error| not_available(error.msg))?;
        if !must_begin_to_filter(bridge, link) {
            return Ok(());
        }
    }
    for kind in ["bridge", "veth"] {
        if !link::is_supported(&host, kind).or_fault("ask the kernel for its features")? {
            return Err(not_available(format!("this kernel has no {kind} interfaces")));
        }
    }
    if bridge.vlans.is_some() && !can_filter(&host)? {
        return Err(not_available(CANNOT_FILTER.to_owned()));
    }
    Ok(())
}
