// SPDX-License-Identifier: Apache-2.0
//! The bridge on the host: creating it, its gateway addresses, and the state of its ports.

use std::time::{Duration, Instant};

use cni::{Code, Error, Interface};
use ipnet::IpNet;
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Detail, Kind, Link, NewLink, OperState};
use kernel::{IfName, MacAddr, Netlink, bridge_vlan};
use overlay::stale_bridge;

use super::conf::Bridge;
use super::gateway::{self, Change};
use super::vlan;
use crate::attach::undo::Undo;
use crate::error::Context;
use crate::host_sysctl;

/// Maximum time until a new port forwards frames. The kernel enables the port under the RTNL lock,
/// which other processes may hold for seconds, for example while a thousand containers are removed.
const PORT_TIMEOUT: Duration = Duration::from_secs(20);

const NO_VLAN_FILTERING: &str = "bridges of this kernel cannot filter VLANs, \
                                 keys \"vlan\" and \"vlanTrunk\" need it";

/// The bridge of a network, as it was found or created.
#[derive(Debug)]
pub(super) struct HostBridge<'a> {
    host: &'a Netlink,
    conf: &'a Bridge,
    /// The state before this ADD changed it.
    pub link: Link,
}

/// A gateway address that its interface lacks.
#[derive(Debug, Clone)]
pub(super) struct MissingAddress {
    address: IpNet,
    /// Conflicting addresses to remove.
    replaces: Vec<IpNet>,
}

impl<'a> HostBridge<'a> {
    /// Finds the bridge, or creates it. An interface of another kind under this name is an error.
    pub(super) fn ensure(
        host: &'a Netlink,
        conf: &'a Bridge,
        undo: &mut Undo<'a>,
    ) -> Result<Self, Error> {
        let link = match find(host, conf)? {
            Some(link) => link,
            None => create(host, conf, undo)?,
        };
        refuse_other_kind(&link)?;
        if needs_vlan_filtering(conf, &link) && !supports_vlan_filtering(host)? {
            return Err(Error::internal(NO_VLAN_FILTERING));
        }
        Ok(Self { host, conf, link })
    }

    /// Whether the bridge is still the one that was found: it may have been removed and created
    /// again.
    pub(super) fn is_current(&self) -> Result<bool, Error> {
        let now = find(self.host, self.conf)?;
        Ok(now.is_some_and(|now| now.index == self.link.index))
    }

    /// Brings the bridge up. This is not undone, because other containers may use the bridge at
    /// once. Therefore it comes after all checks of the bridge.
    pub(super) fn set_up(&self) -> Result<(), Error> {
        let (conf, link) = (self.conf, &self.link);
        // A router advertisement on the bridge must not configure addresses on the host.
        if link.accept_ra.is_some_and(|accepted| accepted != 0) {
            host_sysctl::ignore_router_advertisements(conf.name)?;
        }
        if !link.is_up() {
            host_sysctl::disable_dad(conf.name)?;
        }
        let mut changes = Vec::new();
        if needs_vlan_filtering(conf, link) {
            // All existing ports are in the default VLAN, so their traffic is not affected.
            changes.push(link::set_vlan_filtering(link.index, true));
        }
        if !link.is_up() {
            changes.push(link::set_up(link.index));
        }
        if conf.promisc && link.promiscuity == 0 {
            changes.push(link::set_promisc(link.index, true));
        }
        if changes.is_empty() {
            return Ok(());
        }
        self.host.apply(changes).context("set the bridge up")
    }

    /// Returns the gateway addresses that are missing on the bridge, or on the gateway of the VLAN.
    /// An address that conflicts with an existing one is an error unless the configuration forces
    /// it.
    pub(super) fn missing_gateways(
        &self,
        gateways: &[IpNet],
    ) -> Result<Vec<MissingAddress>, Error> {
        let of_vlan = self.conf.vlan_gateway.map(|gateway| vlan::gateway::find(self.host, gateway));
        let holder = of_vlan.transpose()?.unwrap_or_else(|| Some(self.link.clone()));
        missing_addresses(self.host, self.conf, holder.as_ref(), gateways)
    }

    /// Adds the missing gateway addresses to the bridge. In a VLAN, ensures the gateway of the VLAN
    /// instead and returns its entry for the result.
    pub(super) fn add_gateways(
        &self,
        gateways: &[IpNet],
        missing: &[MissingAddress],
    ) -> Result<Option<Interface>, Error> {
        let (host, conf) = (self.host, self.conf);
        match conf.vlan_gateway.filter(|_| !gateways.is_empty()) {
            Some(gateway) => {
                vlan::gateway::ensure(host, conf, gateway, &self.link, gateways).map(Some)
            }
            None => add_addresses(host, &self.link, missing).map(|()| None),
        }
    }

    /// The bridge's MAC address after the port with this address was added. A bridge that another
    /// program created has the lowest address of its ports: it changes with the first port or with
    /// a lower address only.
    pub(super) fn mac_with_port(&self, port: MacAddr) -> Result<Option<MacAddr>, Error> {
        if self.link.has_carrier() && self.link.mac.is_some_and(|mac| mac < port) {
            return Ok(self.link.mac);
        }
        self.mac()
    }

    /// Reads the bridge's current MAC address.
    pub(super) fn mac(&self) -> Result<Option<MacAddr>, Error> {
        find_existing(self.host, self.conf).map(|bridge| bridge.mac)
    }

    /// Waits until the port forwards frames. A kernel task enables it shortly after both ends of
    /// the pair are up.
    pub(super) fn wait_port_forwarding(&self, name: IfName) -> Result<(), Error> {
        let doing = "watch the bridge's port";
        let is_forwarding = |link: &Link| link.operstate == OperState::Up;
        if is_forwarding(&self.find_port(name)?) {
            return Ok(());
        }
        let mut monitor = link::monitor().context(doing)?;
        let link = self.find_port(name)?;
        let deadline = Instant::now() + PORT_TIMEOUT;
        let is_up = link::wait_until(self.host, &mut monitor, link.index, deadline, |link| {
            link.is_some_and(is_forwarding)
        });
        if is_up.context(doing)? {
            return Ok(());
        }
        Err(Error::internal(format!("bridge port in error state: {name} does not come up")))
    }

    fn find_port(&self, name: IfName) -> Result<Link, Error> {
        match link::by_name(self.host, name).context("look at the bridge's port")? {
            None => Err(Error::internal(format!("interface {name} has disappeared"))),
            // The other ADD saw the bridge empty just before this port was added.
            Some(link) if link.master != Some(self.link.index) => {
                let msg = format!("an ADD that failed has removed bridge {}", self.link.name);
                Err(Error::new(Code::TRY_LATER, msg))
            }
            Some(link) => Ok(link),
        }
    }
}

fn find(host: &Netlink, conf: &Bridge) -> Result<Option<Link>, Error> {
    link::by_name(host, conf.name).context("look for the bridge")
}

fn find_existing(host: &Netlink, conf: &Bridge) -> Result<Link, Error> {
    let found = find(host, conf)?;
    found.ok_or_else(|| Error::internal(format!("bridge {} has disappeared", conf.name)))
}

fn needs_vlan_filtering(conf: &Bridge, link: &Link) -> bool {
    conf.vlans.is_some() && link.detail != Detail::Bridge { vlan_filtering: true }
}

fn supports_vlan_filtering(host: &Netlink) -> Result<bool, Error> {
    bridge_vlan::is_supported(host).context("ask the kernel for its features")
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

/// A bridge keeps a MAC address that was set. Otherwise the kernel changes the address whenever a
/// port with a lower one is added or removed, and containers lose their gateway for a while.
fn create<'a>(host: &'a Netlink, conf: &'a Bridge, undo: &mut Undo<'a>) -> Result<Link, Error> {
    let vlan_filtering = conf.vlans.as_ref().map(|_| true);
    let mut new = NewLink::new(conf.name, Kind::Bridge { vlan_filtering });
    new.mtu = conf.mtu;
    new.mac = Some(MacAddr::random().context("choose a MAC address")?);
    match host.apply([link::create(&new)]) {
        Ok(()) => undo.push(move || remove_if_empty(host, conf.name)),
        // Another ADD was faster.
        Err(error) if error.already_exists() => {}
        Err(error) if error.is_unsupported() && vlan_filtering.is_some() => {
            return Err(error).context(NO_VLAN_FILTERING);
        }
        Err(error) => return Err(error).context("create the bridge"),
    }
    find_existing(host, conf)
}

fn remove_if_empty(host: &Netlink, name: IfName) {
    let Ok(Some(link)) = link::by_name(host, name) else { return };
    if link::list_of_master(host, link.index).is_ok_and(|ports| ports.is_empty()) {
        // The error that caused the rollback is the one to report.
        let _ = host.apply([link::remove(link.index)]);
    }
}

/// Compares the desired gateway addresses with those of their interface, if it exists.
pub(super) fn missing_addresses(
    host: &Netlink,
    conf: &Bridge,
    holder: Option<&Link>,
    desired: &[IpNet],
) -> Result<Vec<MissingAddress>, Error> {
    let mut missing = Vec::new();
    if desired.is_empty() {
        return Ok(missing);
    }
    let present = holder.map(|link| addr::list(host, Some(link.index))).transpose();
    let present = present.context("list the gateway's addresses")?.unwrap_or_default();
    let mut present: Vec<IpNet> = present.iter().map(|address| address.prefix).collect();
    for address in desired.iter().copied() {
        let replaces = match gateway::compare(address, &present) {
            Change::Nothing => continue,
            Change::Add => Vec::new(),
            Change::Conflict(others) if conf.force_address => others,
            Change::Conflict(others) => return Err(conflict(conf, address, &others)),
        };
        present.retain(|other| !replaces.contains(other));
        present.push(address);
        missing.push(MissingAddress { address, replaces });
    }
    Ok(missing)
}

/// Adds the missing gateway addresses to the bridge or to the gateway of a VLAN.
pub(super) fn add_addresses(
    host: &Netlink,
    holder: &Link,
    missing: &[MissingAddress],
) -> Result<(), Error> {
    let (index, doing) = (holder.index, "give the gateway its address");
    for MissingAddress { address, replaces } in missing {
        let mut changes: Vec<_> =
            replaces.iter().map(|other| addr::remove(index, *other)).collect();
        // The gateway address is unique on this bridge, so duplicate address detection is not
        // needed.
        let options = AddrOptions { nodad: true, ..AddrOptions::default() };
        changes.push(addr::add(index, *address, options));
        // Setting the current MAC address pins it, see `create`.
        changes.extend(holder.mac.map(|mac| link::set_mac(index, mac)));
        // Another ADD may have made the same changes meanwhile.
        let is_done = |error: &kernel::Error| error.already_exists() || error.is_not_found();
        let refused = host.apply_each(changes).into_iter().filter_map(Result::err);
        refused.filter(|error| !is_done(error)).try_for_each(Err).context(doing)?;
    }
    Ok(())
}

fn conflict(conf: &Bridge, desired: IpNet, others: &[IpNet]) -> Error {
    let others: Vec<String> = others.iter().map(IpNet::to_string).collect();
    let holder = conf.vlan_gateway.map_or(conf.name, |gateway| gateway.name);
    let name = holder.as_str();
    Error::invalid_config(format!("{name:?} already has an IP address different from {desired}"))
        .with_details(format!("it has {}; {}", others.join(", "), stale_bridge::hint(name)))
}

/// STATUS: whether an ADD could use or create the bridge.
pub(super) fn check_usable(conf: &Bridge) -> Result<(), Error> {
    let host = Netlink::open().context("open a netlink socket")?;
    let not_available = |msg: String| Error::new(Code::NOT_AVAILABLE, msg);
    let found = find(&host, conf)?;
    if let Some(link) = &found {
        refuse_other_kind(link).map_err(|error| not_available(error.msg))?;
        if !needs_vlan_filtering(conf, link) {
            return Ok(());
        }
    }
    for kind in ["bridge", "veth"] {
        if !link::is_supported(&host, kind).context("ask the kernel for its features")? {
            return Err(not_available(format!("this kernel has no {kind} interfaces")));
        }
    }
    if conf.vlans.is_some() && !supports_vlan_filtering(&host)? {
        return Err(not_available(NO_VLAN_FILTERING.to_owned()));
    }
    Ok(())
}
