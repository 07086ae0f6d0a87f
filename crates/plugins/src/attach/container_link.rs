// SPDX-License-Identifier: Apache-2.0
//! The plugins dummy, ipvlan, macvlan and vlan: their interface exists in the container's namespace
//! only, on top of another interface (its master) or of none. One message creates it there under
//! its final name. Nothing of it is on the host, so nothing can be left behind there.

use std::os::fd::AsFd;

use cni::{CniResult, Code, Error, IpConfig, Request};
use kernel::addr::AddrOptions;
use kernel::link::{self, Detail, IpvlanMode, Kind, Link, MacvlanMode, NewLink};
use kernel::route::{self, Route, RouteFilter};
use kernel::{Family, IfIndex, IfName, MacAddr, Netlink, Netns};
use serde::Deserialize;

use crate::attach::dns::DnsConf;
use crate::attach::interface::{self, AddressOptions, ArpAnnounce, Dad};
use crate::attach::undo::{Undo, or_undo};
use crate::attach::{check, ipam, names, netns, prev_result, veth};
use crate::error::Context;

/// The parsed configuration of the container's interface.
#[derive(Debug, Clone)]
pub(crate) struct ContainerLink {
    pub kind: Kind<'static>,
    pub master: Master,
    /// The master is in the container's namespace and not on the host.
    pub master_in_container: bool,
    /// `None` leaves the choice to the kernel.
    pub mtu: Option<u32>,
    pub mac: Mac,
    pub dad: Dad,
    /// Addresses of an earlier plugin of the list, instead of the IPAM plugin's.
    pub prev_result: Option<CniResult>,
    /// Overrides the DNS settings of the IPAM plugin.
    pub dns: DnsConf,
}

/// The source of the interface's MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mac {
    /// This address, or a random one.
    Own(Option<MacAddr>),
    /// The kernel copies the master's address.
    OfMaster,
}

/// The interface below the container's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Master {
    /// The interface has no master.
    None,
    Named(IfName),
    /// The interface of the default route.
    OfDefaultRoute,
    /// Known only during ADD, from the previous result.
    Unknown,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ContainerLinkConf {
    master: String,
    mtu: i64,
    link_in_container: bool,
    enabledad: bool,
    dns: DnsConf,
}

impl ContainerLink {
    /// Parses the keys that the plugins share. The default `master` is the interface of the default
    /// route.
    pub(crate) fn parse(request: &Request, kind: Kind<'static>, mac: Mac) -> Result<Self, Error> {
        let conf: ContainerLinkConf = request.conf()?;
        let master = Master::parse(&conf.master)?;
        let mtu = u32::try_from(conf.mtu).map_err(|_| {
            // The error names the largest allowed MTU if the master can be found by now.
            let socket = match conf.link_in_container {
                true => netns::open(request).ok().and_then(|ns| ns.netlink().ok()),
                false => Netlink::open().ok(),
            };
            let found = socket.and_then(|nl| master.find(&nl, conf.link_in_container).ok());
            invalid_mtu(conf.mtu, found.flatten().as_ref())
        })?;
        Ok(ContainerLink {
            kind,
            master,
            master_in_container: conf.link_in_container,
            mtu: Some(mtu).filter(|mtu| *mtu != 0),
            mac,
            dad: if conf.enabledad { Dad::Wait } else { Dad::Skip },
            prev_result: None,
            dns: conf.dns,
        })
    }

    /// Opens a socket in the master's namespace.
    fn socket(&self, ns: &Netns) -> Result<Netlink, Error> {
        let socket = if self.master_in_container { ns.netlink() } else { Netlink::open() };
        socket.context("open a netlink socket")
    }

    /// Returns the MTU, which must not exceed the master's: the master would drop longer packets.
    fn mtu_on(&self, master: &Link) -> Result<Option<u32>, Error> {
        let is_invalid = |mtu: &u32| !(veth::MIN_MTU..=master.mtu).contains(mtu);
        let Some(invalid) = self.mtu.filter(is_invalid) else { return Ok(self.mtu) };
        Err(invalid_mtu(invalid.into(), Some(master)))
    }
}

fn invalid_mtu(mtu: i64, master: Option<&Link>) -> Error {
    let (max, of) = match master {
        Some(master) => {
            (format!("({})", master.mtu), format!("{}, the MTU of {}", master.mtu, master.name))
        }
        None => (String::new(), "the MTU of the master".to_owned()),
    };
    let min = veth::MIN_MTU;
    Error::invalid_config(format!("invalid MTU {mtu}, must be [0, master MTU{max}]")).with_details(
        format!("key \"mtu\" is {mtu}, allowed are {min} to {of}, and 0 for the default"),
    )
}

impl Master {
    /// Parses the key `master`.
    pub(crate) fn parse(master: &str) -> Result<Master, Error> {
        if master.is_empty() {
            return Ok(Master::OfDefaultRoute);
        }
        let name = master.parse().map_err(|cause: kernel::IfNameError| {
            Error::because(Code::INVALID_CONFIG, "key \"master\"", &cause)
        })?;
        Ok(Master::Named(name))
    }

    /// Finds the master; an error if it does not exist. `None` if there is no master, or if only
    /// ADD knows it.
    fn find(self, nl: &Netlink, in_container: bool) -> Result<Option<Link>, Error> {
        match self {
            Master::None | Master::Unknown => Ok(None),
            Master::Named(name) => {
                let found = link::by_name(nl, name).context("look for the master")?;
                found.map(Some).ok_or_else(|| {
                    let place = if in_container { " in the container" } else { "" };
                    let msg = format!("failed to lookup master \"{name}\": Link not found{place}");
                    Error::invalid_config(msg).with_details(format!("key \"master\" is \"{name}\""))
                })
            }
            Master::OfDefaultRoute => {
                let index = of_default_route(nl).context("look for the default route")?;
                let link = index.map(|index| link::by_index(nl, index)).transpose();
                let link = link.context("look for the master")?.flatten();
                link.map(Some).ok_or_else(|| {
                    Error::invalid_config("no default route interface found")
                        .with_details("set key \"master\"")
                })
            }
        }
    }
}

/// The interface of the first default route, IPv4 before IPv6. The kernel lists the routes of one
/// destination by metric, and cannot filter by destination.
fn of_default_route(nl: &Netlink) -> kernel::Result<Option<IfIndex>> {
    for family in Family::ALL {
        let table = Some(route::TABLE_MAIN);
        let filter = RouteFilter { family: Some(family), table, ..RouteFilter::default() };
        let routes = route::list(nl, filter)?;
        if let Some(index) = routes.iter().filter(|route| is_default(route)).find_map(|r| r.oif) {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// Excludes unreachable and blackhole routes, which IPv6 shows on the loopback interface.
fn is_default(route: &Route) -> bool {
    route.dst.prefix_len() == 0 && route.kind == route::KIND_UNICAST
}

/// ADD. The interface comes first: dhcp works through it, and creating it proves that this is not a
/// second ADD before an address is requested.
pub(crate) fn add(request: &Request, desired: &ContainerLink) -> Result<CniResult, Error> {
    let ipam_needs_interface = desired.prev_result.is_none() && ipam::needs_interface(request)?;
    if ipam_needs_interface {
        ipam::check_available(request)?;
    }
    let ns = netns::open(request)?;
    or_undo(|undo| build(request, desired, &ns, ipam_needs_interface, undo))
}

fn build<'a>(
    request: &'a Request,
    desired: &ContainerLink,
    ns: &'a Netns,
    ipam_needs_interface: bool,
    undo: &mut Undo<'a>,
) -> Result<CniResult, Error> {
    let (name, mac) = create(request, desired, ns)?;
    undo.push(move || rollback(ns, name));
    if ipam_needs_interface {
        interface::bring_up(ns, name, desired.dad)?;
    }
    let mut result = match &desired.prev_result {
        Some(result) => result.clone(),
        None => {
            let result = ipam::add_after_link(request)?;
            undo.push(move || drop(ipam::del(request)));
            result.unwrap_or_default()
        }
    };
    configure(desired, ns, name, &result)?;
    for ip in &mut result.ips {
        ip.interface = Some(0);
    }
    result.interfaces = vec![interface::to_result_interface(request, Some(mac))];
    desired.dns.override_in(&mut result);
    Ok(result)
}

/// Creates the interface and returns its MAC address. The address is known without reading it back:
/// it is the master's, or was chosen here.
fn create(
    request: &Request,
    desired: &ContainerLink,
    ns: &Netns,
) -> Result<(IfName, MacAddr), Error> {
    let name = netns::ifname(request)?;
    let nl = desired.socket(ns)?;
    let master = desired.master.find(&nl, desired.master_in_container)?;
    let mtu = master.as_ref().map_or(Ok(desired.mtu), |master| desired.mtu_on(master))?;
    let (mac, requested) = mac_address(desired, master.as_ref())?;
    let attachment = request.attachment();
    let new = NewLink {
        mtu,
        mac: requested,
        parent: master.map(|master| master.index),
        netns: (!desired.master_in_container).then(|| ns.as_fd()),
        group: Some(names::attachment_group(&request.network, &attachment)),
        ..NewLink::new(name, desired.kind)
    };
    let created = match nl.apply([link::create(&new)]) {
        Err(error) if error.already_exists() => {
            netns::refuse_existing(request)?;
            // The host has an interface of this name. Older kernels look up the name in the
            // sender's namespace unless the request has an index.
            let index = Some(names::attachment_index(&request.network, &attachment));
            nl.apply([link::create(&NewLink { index, ..new })])
        }
        other => other,
    };
    created.context(&format!("failed to create {}", desired.kind.name()))?;
    Ok((name, mac))
}

/// Returns the MAC address that the interface will have, and the one to pass to the kernel. An
/// address that was chosen here does not count as random for udev, whose rules would replace it.
fn mac_address(
    desired: &ContainerLink,
    master: Option<&Link>,
) -> Result<(MacAddr, Option<MacAddr>), Error> {
    let of_master = master.and_then(|master| master.mac);
    match (desired.mac, of_master) {
        (Mac::Own(Some(mac)), _) => Ok((mac, Some(mac))),
        (Mac::Own(None), _) => {
            let mac = MacAddr::random().context("choose a MAC address")?;
            Ok((mac, Some(mac)))
        }
        (Mac::OfMaster, Some(mac)) => Ok((mac, None)),
        (Mac::OfMaster, None) => {
            let name = master.map(|master| master.name.to_string()).unwrap_or_default();
            let msg = format!("master {name:?} has no MAC address of six bytes");
            Err(Error::invalid_config(msg))
        }
    }
}

fn configure(
    desired: &ContainerLink,
    ns: &Netns,
    name: IfName,
    result: &CniResult,
) -> Result<(), Error> {
    let has_neighbours = !matches!(desired.master, Master::None);
    // Another host or container may have had the address before.
    let announce = match has_neighbours && !result.ips.is_empty() {
        true => ArpAnnounce::Now,
        false => ArpAnnounce::Never,
    };
    let options = AddressOptions { addresses: AddrOptions::default(), dad: desired.dad, announce };
    interface::configure(ns, name, &result.ips, options, |index| {
        interface::routes(index, &result.ips, &result.routes)
    })
}

fn rollback(ns: &Netns, name: IfName) {
    // The error that caused the rollback is the one to report.
    let _ = ns.netlink().and_then(|inside| {
        let index = link::index_of(&inside, name)?;
        link::remove_in_background(&inside, index)
    });
}

/// DEL needs neither the master nor the previous result; without the namespace there is nothing to
/// remove. Addresses are released after the interface is gone, except that dhcp needs the
/// interface.
pub(crate) fn del(request: &Request, kind: &str) -> Result<(), Error> {
    ipam::del_with_interface(request, || remove(request, kind))
}

/// Removes the interface of this name and kind if it is in the attachment's group or in no group,
/// as the interfaces of the Go plugins are.
fn remove(request: &Request, kind: &str) -> Result<(), Error> {
    let ifname = netns::ifname(request)?;
    let Some(ns) = netns::open_if_exists(request) else { return Ok(()) };
    let group = names::attachment_group(&request.network, &request.attachment());
    ns.netlink()
        .and_then(|inside| match link::by_name(&inside, ifname)? {
            Some(link) if link.is_kind(kind) && [0, group].contains(&link.group) => {
                link::remove_in_background(&inside, link.index)
            }
            _ => Ok(()),
        })
        .context("remove the container's interface")
}

/// GC. The kernel removes interfaces with their namespace, so only addresses can be stale.
pub(crate) fn gc(request: &Request) -> Result<(), Error> {
    match request.valid_attachments()? {
        Some(_) => ipam::gc(request),
        None => Ok(()),
    }
}

/// STATUS.
pub(crate) fn status(request: &Request, desired: &ContainerLink) -> Result<(), Error> {
    let host = Netlink::open().context("open a netlink socket")?;
    let kind = desired.kind.name();
    if !link::is_supported(&host, kind).context("ask the kernel for its features")? {
        let msg = format!("this kernel has no {kind} interfaces");
        return Err(Error::new(Code::NOT_AVAILABLE, msg));
    }
    // Only ADD knows the container's namespace.
    if !desired.master_in_container {
        check_master_usable(desired, &host)?;
    }
    ipam::status(request)
}

fn check_master_usable(desired: &ContainerLink, host: &Netlink) -> Result<(), Error> {
    let found = desired.master.find(host, false);
    let master = found.map_err(|error| Error { code: Code::NOT_AVAILABLE, ..error })?;
    match master {
        // Interfaces of the other kinds come up even if the master is down.
        Some(master) if !master.is_up() && matches!(desired.kind, Kind::Vlan(_)) => {
            let msg = format!("master {} is down", master.name);
            Err(Error::new(Code::LIMITED, msg))
        }
        Some(master) => desired.mtu_on(&master).map(drop),
        None => Ok(()),
    }
}

/// CHECK.
pub(crate) fn check(request: &Request, desired: &ContainerLink) -> Result<(), Error> {
    ipam::check(request)?;
    let result = request.required_prev_result()?;
    let ns = netns::open(request)?;
    let inside = ns.netlink().context("open a socket in the container's namespace")?;
    let interface = check::container_interface(&result, request)?;
    let link = check::interface(&inside, interface, desired.kind.name())?;
    if !link.is_up() {
        return Err(Error::internal(format!("Interface {} is down", link.name)));
    }
    check_kind(&link, &desired.kind)?;
    check::mtu(&link, interface, desired.mtu, request.version)?;
    check_master(&link, desired, &desired.socket(&ns)?)?;
    let ips: Vec<IpConfig> = prev_result::addresses(&result, request).cloned().collect();
    check::addresses(&inside, link.index, &ips)?;
    check::routes(&inside, &result.routes)
}

fn check_kind(link: &Link, kind: &Kind) -> Result<(), Error> {
    let (mode, found, expected) = match (&link.detail, kind) {
        (Detail::Macvlan(found), Kind::Macvlan { mode, .. }) => {
            ("container macvlan mode", found.map(macvlan_mode), Some(macvlan_mode(*mode)))
        }
        (Detail::Ipvlan(found), Kind::Ipvlan(mode)) => {
            ("Container IPVlan mode", found.map(ipvlan_mode), Some(ipvlan_mode(*mode)))
        }
        (Detail::Vlan(found), Kind::Vlan(id)) if found != id => {
            let msg = format!("interface {} has VLAN {found}, expected {id}", link.name);
            return Err(Error::internal(msg));
        }
        _ => return Ok(()),
    };
    if found == expected {
        return Ok(());
    }
    let (found, expected) = (found.unwrap_or("another"), expected.unwrap_or_default());
    Err(Error::internal(format!("{mode} {found} does not match expected value: {expected}"))
        .with_details(format!("interface {}", link.name)))
}

/// The value of the key `mode`.
fn macvlan_mode(mode: MacvlanMode) -> &'static str {
    match mode {
        MacvlanMode::Private => "private",
        MacvlanMode::Vepa => "vepa",
        MacvlanMode::Bridge => "bridge",
        MacvlanMode::Passthru => "passthru",
    }
}

/// The value of the key `mode`.
fn ipvlan_mode(mode: IpvlanMode) -> &'static str {
    match mode {
        IpvlanMode::L2 => "l2",
        IpvlanMode::L3 => "l3",
        IpvlanMode::L3s => "l3s",
    }
}

/// Checks a master that the configuration names; the default route may have moved since ADD. If the
/// master has the same kind, the kernel puts the new interface on the master's own master.
fn check_master(link: &Link, desired: &ContainerLink, nl: &Netlink) -> Result<(), Error> {
    let Master::Named(name) = desired.master else { return Ok(()) };
    let missing = |error: Error| Error { code: Code::INTERNAL, ..error };
    let found = desired.master.find(nl, desired.master_in_container).map_err(missing)?;
    let Some(master) = found else { return Ok(()) };
    let is_same_kind = master.is_kind(desired.kind.name());
    let of_master = master.link.filter(|_| is_same_kind);
    let is_on = link.link == Some(master.index) || (link.link.is_some() && link.link == of_master);
    if is_on && link.link_netnsid.is_none() == desired.master_in_container {
        return Ok(());
    }
    Err(Error::internal(format!("interface {} is not on master {name}", link.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_is_parsed() {
        assert_eq!(Master::parse(""), Ok(Master::OfDefaultRoute));
        let named = Master::Named("eth0.5".parse().expect("a name"));
        assert_eq!(Master::parse("eth0.5"), Ok(named));
        let error = Master::parse("a/b").expect_err("not an interface name");
        assert_eq!(error.code, Code::INVALID_CONFIG);
        assert!(error.msg.contains("\"master\"") && error.msg.contains("\"a/b\""), "{}", error.msg);
    }

    #[test]
    fn is_default_excludes_blackhole() {
        let check = |dst: &str, kind: u8, expected: bool| {
            let route = Route { kind, ..Route::new(dst.parse().expect("a network")) };
            assert_eq!(is_default(&route), expected, "{dst} {kind}");
        };
        check("0.0.0.0/0", route::KIND_UNICAST, true);
        check("::/0", route::KIND_UNICAST, true);
        check("::/0", route::KIND_BLACKHOLE, false);
        check("10.0.0.0/8", route::KIND_UNICAST, false);
    }
}
