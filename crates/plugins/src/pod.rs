// SPDX-License-Identifier: Apache-2.0
//! The container's side: its namespace, and an interface in it with addresses and routes.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cni::{Code, Error, IpConfig, Request};
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Link};
use kernel::route::{self, Route};
use kernel::{IfIndex, IfName, Netlink, Netns, sysctl};

use crate::fault::OrFault;

/// How long IPv6 duplicate detection may take where it is asked for.
const DAD_PATIENCE: Duration = Duration::from_secs(10);

/// Whether IPv6 addresses wait for duplicate detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dad {
    /// We give every address once, so nobody needs to ask.
    Skip,
    /// The network asks for it.
    Wait,
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
pub fn enter(ns: &Netns, ifname: IfName, ips: &[IpConfig], dad: Dad) -> Result<Netlink, Error> {
    ns.enter(|| {
        set_switches(ifname, ips, dad)?;
        Netlink::open()
    })
    .and_then(|inside| inside)
    .or_fault("prepare the container's namespace")
}

fn set_switches(ifname: IfName, ips: &[IpConfig], dad: Dad) -> kernel::Result<()> {
    let ipv6 = |name: IfName, key: &str| format!("net/ipv6/conf/{name}/{key}");
    // A kernel without IPv6 has none of these; an IPv6 address then fails by itself.
    let dad_set = match dad {
        Dad::Skip => sysctl::write(&ipv6(ifname, "accept_dad"), "0"),
        Dad::Wait => sysctl::write(&ipv6(ifname, "enhanced_dad"), "1")
            .and_then(|()| sysctl::write(&ipv6(ifname, "accept_dad"), "1")),
    };
    match dad_set {
        Err(error) if !error.is_not_found() => return Err(error),
        _ => {}
    }
    if ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
        let loopback = "lo".parse().expect("lo is a valid name");
        sysctl::ensure(&ipv6(loopback, "disable_ipv6"), "0")?;
        sysctl::ensure(&ipv6(ifname, "disable_ipv6"), "0")?;
        // Addresses survive when the interface is set down and up again.
        sysctl::write(&ipv6(ifname, "keep_addr_on_down"), "1")?;
    }
    Ok(())
}

/// The index of an interface that was just made: not by netlink, which would wait for the kernel's
/// one lock for all of this.
pub fn index(pod: &Netlink, ifname: IfName) -> Result<IfIndex, Error> {
    link::index_of(pod, ifname).or_fault("look for the container's interface")
}

/// Finds an interface that must be there.
pub fn find(pod: &Netlink, ifname: IfName) -> Result<Link, Error> {
    link::by_name(pod, ifname)
        .or_fault("look for the container's interface")?
        .ok_or_else(|| Error::internal(format!("interface {ifname} is not in the container")))
}

/// The requests that give the interface its addresses, bring it up and make its routes. The
/// neighbours hear of its addresses by gratuitous ARP.
pub fn requests(
    index: IfIndex,
    ips: &[IpConfig],
    addresses: AddrOptions,
    routes: &[Route],
) -> Vec<kernel::Request> {
    let mut requests = Vec::with_capacity(ips.len() + routes.len() + 2);
    requests.extend(ips.iter().map(|ip| addr::add(index, ip.address, addresses)));
    requests.push(link::set_inet_conf(index, &[(link::ARP_NOTIFY, 1)]));
    requests.push(link::set_up(index));
    requests.extend(routes.iter().map(route::create));
    requests
}

/// The routes of a result as the kernel's: without a gateway of its own a route goes by the first
/// gateway of its family, and without one of those straight out of the interface.
pub fn routes(index: IfIndex, ips: &[IpConfig], routes: &[cni::Route]) -> Vec<Route> {
    let wanted = |route: &cni::Route| {
        let same_family = |ip: &IpAddr| ip.is_ipv4() == route.dst.addr().is_ipv4();
        let first = ips.iter().filter_map(|ip| ip.gateway).find(|gateway| same_family(gateway));
        let number = |value: u32| Some(value).filter(|value| *value != 0);
        let mut made = Route::new(route.dst.trunc());
        made.gateway = route.gw.or(first);
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

/// Waits until no address of the interface is under duplicate detection any more.
pub fn wait_for_dad(ns: &Netns, pod: &Netlink, index: IfIndex) -> Result<(), Error> {
    let mut monitor = ns
        .enter(addr::monitor)
        .and_then(|monitor| monitor)
        .or_fault("watch the container's addresses")?;
    let deadline = Instant::now() + DAD_PATIENCE;
    let outcome = addr::wait_until_settled(pod, &mut monitor, index, deadline)
        .or_fault("wait for duplicate address detection")?;
    match outcome {
        addr::Settled::Yes => Ok(()),
        addr::Settled::Duplicate(address) => Err(Error::internal(format!(
            "IPv6 address {address} is in use by another host on this network"
        ))),
        addr::Settled::NotInTime => Err(Error::new(
            Code::TRY_LATER,
            format!("IPv6 addresses were still tentative after {} s", DAD_PATIENCE.as_secs()),
        )),
    }
}
