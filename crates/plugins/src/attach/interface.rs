// SPDX-License-Identifier: Apache-2.0
//! The container's interface: addresses, routes, and bringing it up.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cni::{Code, Error, Interface, IpConfig, Request};
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Link};
use kernel::route::{self, Route};
use kernel::{IfIndex, IfName, MacAddr, Netlink, Netns, netns, sysctl};

use crate::error::{self, Context};

/// Maximum time until IPv6 addresses are usable. Duplicate address detection takes one to two
/// seconds.
const IPV6_TIMEOUT: Duration = Duration::from_secs(10);

/// Duplicate address detection for IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dad {
    /// Off: IPAM assigns each address once.
    Skip,
    /// On, and ADD waits for the result.
    Wait,
}

/// When the interface announces its addresses by gratuitous ARP and neighbour advertisements. On a
/// bridge these go to every other container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArpAnnounce {
    /// Now, and each time the interface comes up again.
    Now,
    /// Only when the interface comes up again. For a MAC address that is derived from the IP
    /// address: the neighbours' caches are correct already.
    Later,
    Never,
}

/// How addresses are added to an interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AddressOptions {
    pub addresses: AddrOptions,
    pub dad: Dad,
    pub announce: ArpAnnounce,
}

/// The container's interface as an entry of a result.
pub(crate) fn to_result_interface(request: &Request, mac: Option<MacAddr>) -> Interface {
    Interface {
        name: request.ifname.clone(),
        mac: mac.map(|mac| mac.to_string()).unwrap_or_default(),
        sandbox: request.netns.clone(),
        ..Interface::default()
    }
}

/// Sets the interface's sysctls and opens a socket, entering the namespace once.
fn enter(
    ns: &Netns,
    ifname: IfName,
    ips: &[IpConfig],
    options: AddressOptions,
) -> Result<Netlink, Error> {
    ns.enter(|| {
        set_sysctls(ifname, ips, options)?;
        Netlink::open()
    })
    .and_then(|inside| inside)
    .context("prepare the container's namespace")
}

/// Does nothing without IPv6 addresses: opening a sysctl file takes longer the more containers
/// there are, because the kernel searches the entries of all namespaces.
fn set_sysctls(ifname: IfName, ips: &[IpConfig], options: AddressOptions) -> kernel::Result<()> {
    if !has_ipv6(ips) {
        return Ok(());
    }
    let ipv6 = |name: IfName, key: &str| format!("net/ipv6/conf/{name}/{key}");
    match options.dad {
        Dad::Skip => sysctl::write(&ipv6(ifname, "accept_dad"), "0")?,
        Dad::Wait => {
            sysctl::write(&ipv6(ifname, "enhanced_dad"), "1")?;
            sysctl::write(&ipv6(ifname, "accept_dad"), "1")?;
        }
    }
    if options.announce == ArpAnnounce::Now {
        sysctl::write(&ipv6(ifname, "ndisc_notify"), "1")?;
    }
    let loopback = "lo".parse().expect("lo is a valid name");
    sysctl::ensure(&ipv6(loopback, "disable_ipv6"), "0")?;
    sysctl::ensure(&ipv6(ifname, "disable_ipv6"), "0")?;
    // Keeps the addresses if the interface goes down and up again.
    sysctl::write(&ipv6(ifname, "keep_addr_on_down"), "1")
}

fn has_ipv6(ips: &[IpConfig]) -> bool {
    ips.iter().any(|ip| ip.address.addr().is_ipv6())
}

/// Finds an interface; an error if it does not exist.
pub(crate) fn find(pod: &Netlink, ifname: IfName) -> Result<Link, Error> {
    or_missing(link::by_name(pod, ifname), ifname)
}

/// As [`find`], over a socket on the host. The host has a numeric ID for a namespace that it shares
/// a veth pair with; a query by ID is faster than entering the namespace.
pub(crate) fn find_from(host: &Netlink, ns: &Netns, ifname: IfName) -> Result<Link, Error> {
    let number = netns::id_of(host, ns).context("look for the container's interface")?;
    match number {
        Some(number) => or_missing(link::by_name_in(host, number, ifname), ifname),
        None => find(&ns.netlink().context("open a socket in the container's namespace")?, ifname),
    }
}

fn or_missing(found: kernel::Result<Option<Link>>, ifname: IfName) -> Result<Link, Error> {
    found.context("look for the container's interface")?.ok_or_else(|| {
        let msg = format!("Cannot find container link {ifname}");
        Error::internal(msg).with_details(format!("interface {ifname} is not in the container"))
    })
}

/// Brings up an interface without addresses, so that DHCP can use it.
pub(crate) fn bring_up(ns: &Netns, ifname: IfName, dad: Dad) -> Result<(), Error> {
    let doing = "bring the container's interface up";
    let accept_dad = format!("net/ipv6/conf/{ifname}/accept_dad");
    let inside = ns.enter(|| {
        match dad {
            Dad::Wait => {}
            // Makes the link-local address usable at once. Without IPv6 this file does not exist.
            Dad::Skip => match sysctl::write(&accept_dad, "0") {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            },
        }
        Netlink::open()
    });
    let inside = inside.and_then(|inside| inside).context(doing)?;
    let index = link::index_of(&inside, ifname).context(doing)?;
    inside.apply([link::set_up(index)]).context(doing)
}

/// Adds the addresses, brings the interface up and adds the routes.
pub(crate) fn configure(
    ns: &Netns,
    ifname: IfName,
    ips: &[IpConfig],
    options: AddressOptions,
    routes: impl FnOnce(IfIndex) -> Vec<Route>,
) -> Result<(), Error> {
    let interface = add_addresses(ns, ifname, ips, options)?;
    interface.add_routes(&routes(interface.index))
}

/// The container's interface after its addresses were added and it was brought up.
#[derive(Debug)]
pub(crate) struct ConfiguredInterface {
    inside: Netlink,
    name: IfName,
    pub index: IfIndex,
}

impl ConfiguredInterface {
    pub(crate) fn add_routes(&self, routes: &[Route]) -> Result<(), Error> {
        let added = self.inside.apply(routes.iter().map(route::create));
        added.map_err(|error| {
            let error = error::with_ifname(error, self.index, self.name);
            let is_unreachable = error.is_unreachable();
            let error = error::because(CONFIGURING, &error);
            if !is_unreachable {
                return error;
            }
            let hint = "a gateway must lie in the network of one of the addresses: look at \
                        \"gateway\" and \"routes\" under key \"ipam\"";
            error.with_details(hint)
        })
    }

    pub(crate) fn remove_routes(&self, routes: &[Route]) -> Result<(), Error> {
        let removed = self.inside.apply(routes.iter().map(route::remove));
        removed.map_err(|error| {
            error::because(CONFIGURING, &error::with_ifname(error, self.index, self.name))
        })
    }
}

const CONFIGURING: &str = "configure the container's interface";

/// The first half of [`configure`]. After that the kernel processes the new carrier in the
/// background and holds the RTNL lock meanwhile. Adding routes waits for the lock, so callers do
/// other work in between.
pub(crate) fn add_addresses(
    ns: &Netns,
    ifname: IfName,
    ips: &[IpConfig],
    options: AddressOptions,
) -> Result<ConfiguredInterface, Error> {
    let inside = enter(ns, ifname, ips, options)?;
    // By ioctl: a netlink request would wait for the RTNL lock.
    let index = link::index_of(&inside, ifname).context("look for the container's interface")?;
    let notify = [(link::ARP_NOTIFY, 1)];
    let mut requests = Vec::with_capacity(8);
    requests.extend(ips.iter().map(|ip| addr::add(index, ip.address, options.addresses)));
    match options.announce {
        ArpAnnounce::Now => {
            requests.extend([link::set_inet_conf(index, &notify), link::set_up(index)]);
        }
        ArpAnnounce::Later => requests.push(link::set_up_with_inet_conf(index, &notify)),
        ArpAnnounce::Never => requests.push(link::set_up(index)),
    }
    inside.apply(requests).context(CONFIGURING)?;
    if has_ipv6(ips) {
        // The kernel refuses routes with a source address that is still tentative.
        wait_for_ipv6(ns, &inside, index)?;
    }
    Ok(ConfiguredInterface { inside, name: ifname, index })
}

/// Converts the routes of a result. A route without a gateway uses the first gateway of its family.
/// If there is none, or the route has link scope, it goes straight out of the interface.
pub(crate) fn routes(index: IfIndex, ips: &[IpConfig], routes: &[cni::Route]) -> Vec<Route> {
    let convert = |route: &cni::Route| {
        let same_family = |ip: &IpAddr| ip.is_ipv4() == route.dst.addr().is_ipv4();
        let first = ips.iter().filter_map(|ip| ip.gateway).find(|gateway| same_family(gateway));
        let number = |value: u32| Some(value).filter(|value| *value != 0);
        let mut converted = Route::new(route.dst.trunc());
        // The kernel refuses a gateway for such a route. IPv6 has no scopes.
        let is_link_scope = route.dst.addr().is_ipv4()
            && route.scope.is_some_and(|scope| scope >= route::SCOPE_LINK);
        converted.gateway = route.gw.or(first.filter(|_| !is_link_scope));
        converted.oif = Some(index);
        converted.scope = Some(route.scope.unwrap_or(route::SCOPE_UNIVERSE));
        converted.table = route.table.unwrap_or(converted.table);
        converted.priority = number(route.priority);
        converted.mtu = number(route.mtu);
        converted.advmss = number(route.advmss);
        converted
    };
    routes.iter().map(convert).collect()
}

/// Waits until the IPv6 addresses of the interface are usable. Even without duplicate address
/// detection an address is tentative until a kernel task has joined its multicast group. A
/// neighbour solicitation that arrives before is lost, and the neighbour retries only after a
/// second. Without a carrier there is nothing to wait for: the kernel finishes when the carrier
/// appears.
pub(crate) fn wait_for_ipv6(ns: &Netns, pod: &Netlink, index: IfIndex) -> Result<(), Error> {
    let doing = "wait for the container's IPv6 addresses";
    let found = addr::list(pod, Some(index)).context(doing)?;
    if found.iter().all(|address| address.flags & addr::IFA_F_TENTATIVE == 0) {
        return Ok(());
    }
    let link = link::by_index(pod, index).context(doing)?;
    if link.is_some_and(|link| !link.has_carrier()) {
        return Ok(());
    }
    let mut monitor = ns.enter(addr::monitor).and_then(|monitor| monitor).context(doing)?;
    let deadline = Instant::now() + IPV6_TIMEOUT;
    match addr::wait_for_dad(pod, &mut monitor, index, deadline).context(doing)? {
        addr::DadResult::Done => Ok(()),
        addr::DadResult::Duplicate(address) => Err(Error::internal(format!(
            "IPv6 address {address} is in use by another host on this network"
        ))),
        // The carrier was lost meanwhile.
        addr::DadResult::Timeout if !has_carrier(pod, index)? => Ok(()),
        addr::DadResult::Timeout => {
            let seconds = IPV6_TIMEOUT.as_secs();
            let msg = format!("IPv6 addresses were still tentative after {seconds} s");
            Err(Error::new(Code::TRY_LATER, msg))
        }
    }
}

fn has_carrier(pod: &Netlink, index: IfIndex) -> Result<bool, Error> {
    let link = link::by_index(pod, index).context("look at the container's interface")?;
    Ok(link.is_some_and(|link| link.has_carrier()))
}
