// SPDX-License-Identifier: Apache-2.0
//! The container's side: its namespace, and an interface in it with addresses and routes.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use cni::{Code, Error, Interface, IpConfig, Request};
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Link};
use kernel::route::{self, Route};
use kernel::{IfIndex, IfName, MacAddr, Netlink, Netns, netns, sysctl};

use crate::fault::{self, OrFault};

/// How long IPv6 addresses may take; with duplicate detection it is one to two seconds.
const IPV6_PATIENCE: Duration = Duration::from_secs(10);

/// Whether IPv6 addresses wait for duplicate detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dad {
    /// We give every address once, so nobody needs to ask.
    Skip,
    /// The network asks for it.
    Wait,
}

/// Whether neighbours are told of the interface's addresses by gratuitous ARP and neighbour
/// advertisements, which on a bridge go to every other container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announce {
    /// When it comes up, and whenever it does so again.
    Now,
    /// Only when it comes up again: its hardware address is the one that its addresses always have.
    Later,
    /// Never.
    Never,
}

/// How an interface gets its addresses.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Options of each address.
    pub addresses: AddrOptions,
    /// IPv6 duplicate detection.
    pub dad: Dad,
    /// Gratuitous ARP and neighbour advertisements.
    pub announce: Announce,
}

/// Opens the namespace that ADD and CHECK cannot do without.
pub fn open(request: &Request) -> Result<Netns, Error> {
    Netns::open(&request.netns).map_err(|cause| {
        let code = if cause.is_not_found() { Code::UNKNOWN_CONTAINER } else { Code::INTERNAL };
        Error::because(code, format!("failed to open netns {:?}", request.netns), &cause)
    })
}

/// Opens the namespace for DEL: one that is gone, or is no namespace any more, holds nothing.
pub fn open_if_there(request: &Request) -> Option<Netns> {
    if request.netns.is_empty() {
        return None;
    }
    Netns::open(&request.netns).ok()
}

/// The interface that the request names.
pub fn ifname(request: &Request) -> Result<IfName, Error> {
    request.ifname.parse().map_err(|cause| {
        Error::because(Code::BAD_ENVIRONMENT, "CNI_IFNAME", &cause as &kernel::IfNameError)
    })
}

/// The container's interface as a result tells it.
pub fn told(request: &Request, mac: Option<MacAddr>) -> Interface {
    Interface {
        name: request.ifname.clone(),
        mac: mac.map(|mac| mac.to_string()).unwrap_or_default(),
        sandbox: request.netns.clone(),
        ..Interface::default()
    }
}

/// Whether a `sandbox` of a result is the request's namespace, by whichever path: `/var/run` is often another name of
/// `/run`.
pub fn is_sandbox(request: &Request, sandbox: &str) -> bool {
    let identity = |path: &str| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    sandbox == request.netns
        || (!sandbox.is_empty()
            && identity(sandbox).is_some_and(|it| Some(it) == identity(&request.netns)))
}

/// The specification's error for a second ADD.
pub fn refuse_existing(request: &Request) -> Result<(), Error> {
    let inside = open(request)?.netlink().or_fault("open a socket in the container's namespace")?;
    let found = link::by_name(&inside, ifname(request)?).or_fault("look for the interface")?;
    found.map_or(Ok(()), |_| {
        let (ifname, netns) = (&request.ifname, &request.netns);
        let msg = format!("container interface {ifname:?} already exists in {netns}");
        Err(Error::internal(msg))
    })
}

/// Sets an interface's switches and opens a socket, in one visit to the namespace.
fn enter(ns: &Netns, ifname: IfName, ips: &[IpConfig], manner: Manner) -> Result<Netlink, Error> {
    ns.enter(|| {
        set_switches(ifname, ips, manner)?;
        Netlink::open()
    })
    .and_then(|inside| inside)
    .or_fault("prepare the container's namespace")
}

/// Nothing for containers without IPv6 addresses of ours: the kernel looks for these files among those
/// of all namespaces, which takes longer the more containers there are.
fn set_switches(ifname: IfName, ips: &[IpConfig], manner: Manner) -> kernel::Result<()> {
    if !has_ipv6(ips) {
        return Ok(());
    }
    let ipv6 = |name: IfName, key: &str| format!("net/ipv6/conf/{name}/{key}");
    match manner.dad {
        Dad::Skip => sysctl::write(&ipv6(ifname, "accept_dad"), "0")?,
        Dad::Wait => {
            sysctl::write(&ipv6(ifname, "enhanced_dad"), "1")?;
            sysctl::write(&ipv6(ifname, "accept_dad"), "1")?;
        }
    }
    if manner.announce == Announce::Now {
        sysctl::write(&ipv6(ifname, "ndisc_notify"), "1")?;
    }
    let loopback = "lo".parse().expect("lo is a valid name");
    sysctl::ensure(&ipv6(loopback, "disable_ipv6"), "0")?;
    sysctl::ensure(&ipv6(ifname, "disable_ipv6"), "0")?;
    // Addresses survive when the interface is set down and up again.
    sysctl::write(&ipv6(ifname, "keep_addr_on_down"), "1")
}

fn has_ipv6(ips: &[IpConfig]) -> bool {
    ips.iter().any(|ip| ip.address.addr().is_ipv6())
}

/// Finds an interface that must be there.
pub fn find(pod: &Netlink, ifname: IfName) -> Result<Link, Error> {
    or_missing(link::by_name(pod, ifname), ifname)
}

/// The same from outside. The host has a number for a namespace that it has a veth pair with, and to
/// ask by that is quicker than to go there.
pub fn find_from(host: &Netlink, ns: &Netns, ifname: IfName) -> Result<Link, Error> {
    let number = netns::number_of(host, ns).or_fault("look for the container's interface")?;
    match number {
        Some(number) => or_missing(link::by_name_in(host, number, ifname), ifname),
        None => find(&ns.netlink().or_fault("open a socket in the container's namespace")?, ifname),
    }
}

fn or_missing(found: kernel::Result<Option<Link>>, ifname: IfName) -> Result<Link, Error> {
    found.or_fault("look for the container's interface")?.ok_or_else(|| {
        let msg = format!("Cannot find container link {ifname}");
        Error::internal(msg).with_details(format!("interface {ifname} is not in the container"))
    })
}

/// Brings an interface up that has no addresses yet, so that they can be asked for through it.
pub fn bring_up(ns: &Netns, ifname: IfName, dad: Dad) -> Result<(), Error> {
    let doing = "bring the container's interface up";
    let switch = format!("net/ipv6/conf/{ifname}/accept_dad");
    let inside = ns.enter(|| {
        match dad {
            Dad::Wait => {}
            // The link-local address is to be there at once. Without IPv6 there is no such switch.
            Dad::Skip => match sysctl::write(&switch, "0") {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            },
        }
        Netlink::open()
    });
    let inside = inside.and_then(|inside| inside).or_fault(doing)?;
    let index = link::index_of(&inside, ifname).or_fault(doing)?;
    inside.apply([link::set_up(index)]).or_fault(doing)
}

/// Gives the interface its addresses, brings it up and makes its routes.
pub fn configure(
    ns: &Netns,
    ifname: IfName,
    ips: &[IpConfig],
    manner: Manner,
    routes: impl FnOnce(IfIndex) -> Vec<Route>,
) -> Result<(), Error> {
    let up = give_addresses(ns, ifname, ips, manner)?;
    up.add_routes(&routes(up.index))
}

/// A container's interface that is up, with its addresses.
#[derive(Debug)]
pub struct Up {
    inside: Netlink,
    name: IfName,
    pub index: IfIndex,
}

impl Up {
    pub fn add_routes(&self, routes: &[Route]) -> Result<(), Error> {
        let added = self.inside.apply(routes.iter().map(route::create));
        added.map_err(|error| {
            let error = fault::named(error, self.index, self.name);
            let is_unreachable = error.is_unreachable();
            let error = fault::because(CONFIGURING, &error);
            if !is_unreachable {
                return error;
            }
            let hint = "a gateway must lie in the network of one of the addresses: look at \
                        \"gateway\" and \"routes\" under key \"ipam\"";
            error.with_details(hint)
        })
    }

    pub fn remove_routes(&self, routes: &[Route]) -> Result<(), Error> {
        let removed = self.inside.apply(routes.iter().map(route::remove));
        removed.map_err(|error| {
            fault::because(CONFIGURING, &fault::named(error, self.index, self.name))
        })
    }
}

const CONFIGURING: &str = "configure the container's interface";

/// The first half of [`configure`]. The kernel then sees to the new carrier in the background, and holds
/// its one lock for that; routes wait for it, so that other work is best done in between.
pub fn give_addresses(
    ns: &Netns,
    ifname: IfName,
    ips: &[IpConfig],
    manner: Manner,
) -> Result<Up, Error> {
    let inside = enter(ns, ifname, ips, manner)?;
    // Not by netlink, which would wait for the kernel's one lock for all of this.
    let index = link::index_of(&inside, ifname).or_fault("look for the container's interface")?;
    let notify = [(link::ARP_NOTIFY, 1)];
    let mut requests = Vec::with_capacity(8);
    requests.extend(ips.iter().map(|ip| addr::add(index, ip.address, manner.addresses)));
    match manner.announce {
        Announce::Now => {
            requests.extend([link::set_inet_conf(index, &notify), link::set_up(index)]);
        }
        Announce::Later => requests.push(link::set_up_with_inet_conf(index, &notify)),
        Announce::Never => requests.push(link::set_up(index)),
    }
    inside.apply(requests).or_fault(CONFIGURING)?;
    if has_ipv6(ips) {
        // Before the routes, which refuse a source address that is still tentative.
        wait_for_ipv6(ns, &inside, index)?;
    }
    Ok(Up { inside, name: ifname, index })
}

/// The routes of a result as the kernel's: without a gateway of its own a route goes by the first
/// gateway of its family, and without one of those, or by its scope, straight out of the interface.
pub fn routes(index: IfIndex, ips: &[IpConfig], routes: &[cni::Route]) -> Vec<Route> {
    let wanted = |route: &cni::Route| {
        let same_family = |ip: &IpAddr| ip.is_ipv4() == route.dst.addr().is_ipv4();
        let first = ips.iter().filter_map(|ip| ip.gateway).find(|gateway| same_family(gateway));
        let number = |value: u32| Some(value).filter(|value| *value != 0);
        let mut made = Route::new(route.dst.trunc());
        // The kernel refuses it a gateway. IPv6 has no scopes.
        let is_direct = route.dst.addr().is_ipv4()
            && route.scope.is_some_and(|scope| scope >= route::SCOPE_LINK);
        made.gateway = route.gw.or(first.filter(|_| !is_direct));
        made.oif = Some(index);
        made.scope = Some(route.scope.unwrap_or(route::SCOPE_UNIVERSE));
        made.table = route.table.unwrap_or(made.table);
        made.priority = number(route.priority);
        made.mtu = number(route.mtu);
        made.advmss = number(route.advmss);
        made
    };
    routes.iter().map(wanted).collect()
}

/// Waits until the interface's IPv6 addresses answer. Even without duplicate detection an address is
/// tentative until a task of the kernel's has joined its multicast group; a neighbour that asks for it
/// before goes unheard, and asks again only a second later. Where nothing is plugged in there is nobody
/// to ask or to answer: the kernel goes on by itself when that changes.
fn wait_for_ipv6(ns: &Netns, pod: &Netlink, index: IfIndex) -> Result<(), Error> {
    let doing = "wait for the container's IPv6 addresses";
    let found = addr::list(pod, Some(index)).or_fault(doing)?;
    if found.iter().all(|address| address.flags & addr::IFA_F_TENTATIVE == 0) {
        return Ok(());
    }
    let link = link::by_index(pod, index).or_fault(doing)?;
    if link.is_some_and(|link| !link.has_carrier()) {
        return Ok(());
    }
    let mut monitor = ns.enter(addr::monitor).and_then(|monitor| monitor).or_fault(doing)?;
    let deadline = Instant::now() + IPV6_PATIENCE;
    match addr::wait_until_settled(pod, &mut monitor, index, deadline).or_fault(doing)? {
        addr::Settled::Yes => Ok(()),
        addr::Settled::Duplicate(address) => Err(Error::internal(format!(
            "IPv6 address {address} is in use by another host on this network"
        ))),
        // Without a carrier there is nobody to ask, and the kernel asks when there is one.
        addr::Settled::NotInTime if !has_carrier(pod, index)? => Ok(()),
        addr::Settled::NotInTime => {
            let seconds = IPV6_PATIENCE.as_secs();
            let msg = format!("IPv6 addresses were still tentative after {seconds} s");
            Err(Error::new(Code::TRY_LATER, msg))
        }
    }
}

fn has_carrier(pod: &Netlink, index: IfIndex) -> Result<bool, Error> {
    let link = link::by_index(pod, index).or_fault("look at the container's interface")?;
    Ok(link.is_some_and(|link| link.has_carrier()))
}
