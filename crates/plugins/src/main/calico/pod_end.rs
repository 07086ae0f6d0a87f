// SPDX-License-Identifier: Apache-2.0
//! The pod's end of the pair. The pod reaches everything through the gateway 169.254.1.1, or through
//! the link-local address of the host end.
//!
//! Neither address needs to exist: permanent neighbours tell the pod the MAC address of the host end.
//! Calico relies on proxy ARP instead, which answers only if the host has a route to 169.254.1.1
//! through another interface, usually its default route.

use std::net::{IpAddr, Ipv4Addr};

use cni::{CniResult, Error, IpConfig};
use ipnet::IpNet;
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Link};
use kernel::neigh::{self, Neigh};
use kernel::route::{self, Route, RouteFilter};
use kernel::{Family, IfIndex, Netlink, Netns, sysctl};

use super::conf::Calico;
use super::host_end::{LINK_LOCAL, MAC, Pair};
use crate::attach::interface;
use crate::error::{Context, with_ifname};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// The gateway for a destination.
pub(crate) fn gateway(destination: IpAddr) -> IpAddr {
    match destination {
        IpAddr::V4(_) => GATEWAY.into(),
        IpAddr::V6(_) => LINK_LOCAL.into(),
    }
}

/// The gateways of these families, as permanent neighbours.
fn neighbours(index: IfIndex, families: &[Family]) -> impl Iterator<Item = Neigh> {
    let default = |family: &Family| gateway(route::default_dst(*family).addr());
    families.iter().map(move |family| Neigh::permanent(index, default(family), MAC))
}

fn families(ips: &[IpConfig]) -> Vec<Family> {
    let has = |family: &Family| ips.iter().any(|ip| Family::of(ip.address.addr()) == *family);
    Family::ALL.into_iter().filter(has).collect()
}

/// Adds addresses, neighbours and routes, and brings the interface up.
pub(super) fn configure(
    ns: &Netns,
    calico: &Calico,
    pair: &Pair,
    ips: &[IpConfig],
) -> Result<(), Error> {
    let doing = "configure the pod's interface";
    let families = families(ips);
    let inside = ns.enter(|| {
        set_sysctls(pair, calico.forwarding, &families)?;
        Netlink::open()
    });
    let inside = inside.and_then(|inside| inside).context(doing)?;
    let index = link::index_of(&inside, pair.container).context(doing)?;
    let mut requests = Vec::with_capacity(12);
    requests.extend(ips.iter().map(|ip| addr::add(index, ip.address, AddrOptions::default())));
    requests.push(link::set_up(index));
    requests.extend(neighbours(index, &families).map(|neighbour| neigh::replace(&neighbour)));
    requests.extend(routes(index, calico, &families).iter().map(route::add));
    inside
        .apply(requests)
        .map_err(|error| with_ifname(error, index, pair.container))
        .context(doing)?;
    match families.contains(&Family::V6) {
        true => interface::wait_for_ipv6(ns, &inside, index),
        false => Ok(()),
    }
}

fn set_sysctls(pair: &Pair, forwarding: bool, families: &[Family]) -> kernel::Result<()> {
    let value = if forwarding { "1" } else { "0" };
    if families.contains(&Family::V4) {
        // Inherited from the host, so it usually differs.
        sysctl::write("net/ipv4/ip_forward", value)?;
    }
    if families.contains(&Family::V6) {
        let name = pair.container;
        sysctl::write(&format!("net/ipv6/conf/{name}/accept_dad"), "0")?;
        for name in ["all", "default", "lo", name.as_str()] {
            sysctl::ensure(&format!("net/ipv6/conf/{name}/disable_ipv6"), "0")?;
        }
        // Keeps the addresses if the interface goes down and up again.
        sysctl::write(&format!("net/ipv6/conf/{name}/keep_addr_on_down"), "1")?;
        sysctl::ensure("net/ipv6/conf/all/forwarding", value)?;
    }
    Ok(())
}

/// The route to the gateway, and the routes through it.
fn routes(index: IfIndex, calico: &Calico, families: &[Family]) -> Vec<Route> {
    let mut routes = Vec::new();
    if families.contains(&Family::V4) {
        let direct = Route::new(IpNet::from(IpAddr::from(GATEWAY))).dev(index);
        routes.push(Route { scope: Some(route::SCOPE_LINK), ..direct });
    }
    let has_default = calico.ipam.routes.is_empty() || calico.ipam.include_default_routes;
    let default = families.iter().filter(|_| has_default);
    routes.extend(default.map(|family| Route::new(route::default_dst(*family)).dev(index)));
    let others = interface::routes(index, &[], &calico.ipam.routes);
    let others = others.into_iter().map(|route| Route { scope: None, ..route });
    routes.extend(others.filter(|route| families.contains(&Family::of(route.dst.addr()))));
    let direct = usize::from(families.contains(&Family::V4));
    for route in &mut routes[direct..] {
        route.gateway = Some(gateway(route.dst.addr()));
    }
    routes
}

/// The interface must be up and have its addresses, routes and neighbours. Pods that Calico
/// connected have no permanent neighbours.
pub(super) fn check(
    inside: &Netlink,
    container: &Link,
    calico: &Calico,
    result: &CniResult,
    has_neighbours: bool,
) -> Result<(), Error> {
    let name = container.name;
    if !container.is_up() {
        return Err(Error::internal(format!("Interface {name} is down")));
    }
    crate::attach::check::addresses(inside, container.index, &result.ips)?;
    let families = families(&result.ips);
    let filter = RouteFilter { oif: Some(container.index), ..RouteFilter::default() };
    let found = route::list(inside, filter).context("list routes")?;
    for expected in routes(container.index, calico, &families) {
        let is_match = |route: &Route| {
            (route.dst, route.gateway, route.table)
                == (expected.dst, expected.gateway, expected.table)
        };
        if !found.iter().any(is_match) {
            let via = expected.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
            let msg = format!("the pod has no route to {}{via} dev {name}", expected.dst);
            return Err(Error::internal(msg));
        }
    }
    for expected in neighbours(container.index, &families).filter(|_| has_neighbours) {
        let family = Family::of(expected.ip);
        let found =
            neigh::list(inside, family, Some(container.index)).context("list neighbours")?;
        if !found.contains(&expected) {
            let msg = format!("the pod has no permanent neighbour {} dev {name}", expected.ip);
            return Err(Error::internal(msg));
        }
    }
    Ok(())
}
