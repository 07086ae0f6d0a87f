// SPDX-License-Identifier: Apache-2.0
//! Parts of CHECK that several plugins share: compare the kernel with the result. Later plugins of
//! the list may have added objects; only missing or different objects are errors.

use cni::{CniResult, Error, Interface, IpConfig, Request, Version};
use ipnet::IpNet;
use kernel::link::Link;
use kernel::route::{self, RouteFilter};
use kernel::{IfIndex, Netlink, addr, link};

use crate::attach::netns;
use crate::error::Context;

/// The container's interface in a result.
pub(crate) fn container_interface<'a>(
    result: &'a CniResult,
    request: &Request,
) -> Result<&'a Interface, Error> {
    result
        .interfaces
        .iter()
        .find(|one| one.name == request.ifname && netns::is_sandbox(request, &one.sandbox))
        .ok_or_else(|| {
            let (ifname, netns) = (&request.ifname, &request.netns);
            let named = result.interfaces.iter().find(|interface| interface.name == *ifname);
            let sandbox = named.map_or("", |interface| interface.sandbox.as_str());
            Error::internal(format!(
                "Sandbox in prevResult {sandbox} doesn't match configured netns: {netns}"
            ))
            .with_details(format!("prevResult has no interface {ifname:?} in sandbox {netns:?}"))
        })
}

/// The interface must exist, have this kind, and have the MAC address of the result.
pub(crate) fn interface(nl: &Netlink, interface: &Interface, kind: &str) -> Result<Link, Error> {
    let link = any_interface(nl, interface)?;
    if link.is_kind(kind) {
        return Ok(link);
    }
    let (name, found) = (link.name, link.kind.as_deref().unwrap_or("a device"));
    let msg = match kind {
        "bridge" => format!("Interface {name} does not have link type of bridge"),
        _ => format!("Error: Container interface {name} not of type {kind}"),
    };
    Err(Error::internal(msg).with_details(format!("interface {name} is {found}")))
}

/// As [`interface`], for an interface of any kind.
pub(crate) fn any_interface(nl: &Netlink, interface: &Interface) -> Result<Link, Error> {
    let name = &interface.name;
    let ifname = name.parse().map_err(|cause: kernel::IfNameError| {
        Error::because(cni::Code::INVALID_CONFIG, "prevResult", &cause)
    })?;
    let link = link::by_name(nl, ifname).context("look for an interface")?.ok_or_else(|| {
        let what = match interface.sandbox.as_str() {
            "" => "Interface name",
            _ => "Container Interface name in prevResult:",
        };
        Error::internal(format!("{what} {name} not found"))
            .with_details(format!("interface {name} does not exist"))
    })?;
    let found = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    if !interface.mac.is_empty() && !interface.mac.eq_ignore_ascii_case(&found) {
        let expected = &interface.mac;
        let msg = format!("Interface {name} Mac {expected} doesn't match container Mac: {found}");
        return Err(Error::internal(msg));
    }
    Ok(link)
}

/// The MTU must be as configured, unless a later plugin of the list has changed it. Since version
/// 1.1.0 such a plugin reports the MTU in the result; in older versions any MTU is accepted.
pub(crate) fn mtu(
    link: &Link,
    interface: &Interface,
    configured: Option<u32>,
    version: Version,
) -> Result<(), Error> {
    let reported = Some(interface.mtu).filter(|mtu| *mtu != 0);
    let configured = configured.filter(|_| version >= Version::V1_1_0);
    match reported.or(configured).filter(|mtu| *mtu != link.mtu) {
        Some(mtu) => {
            let (name, found) = (link.name, link.mtu);
            Err(Error::internal(format!("interface {name} has MTU {found}, expected {mtu}")))
        }
        None => Ok(()),
    }
}

/// Each of these addresses must be on the interface, with a route to its network.
pub(crate) fn addresses(pod: &Netlink, index: IfIndex, ips: &[IpConfig]) -> Result<(), Error> {
    let found = addr::list(pod, Some(index)).context("list addresses")?;
    let routes = all_routes(pod)?;
    for ip in ips {
        if !found.iter().any(|address| address.prefix == ip.address) {
            let link = link::by_index(pod, index).ok().flatten();
            let name = link.map_or(index.to_string(), |link| link.name.to_string());
            let msg = format!("Failed to match addr {} on interface {name}", ip.address);
            let details = format!("address {} is missing on the container's interface", ip.address);
            return Err(Error::internal(msg).with_details(details));
        }
        let network = ip.address.trunc();
        // The route to a /32 or /128 address is in the local table, which `all_routes` leaves out.
        let is_single = network.prefix_len() == network.max_prefix_len();
        if !is_single && !routes.iter().any(|route| route.dst == network) {
            return Err(no_route(&network.to_string()));
        }
    }
    Ok(())
}

/// Each of these routes must exist, with its gateway if it has one.
pub(crate) fn routes(pod: &Netlink, expected: &[cni::Route]) -> Result<(), Error> {
    let routes = all_routes(pod)?;
    for wanted in expected {
        let is_match = |route: &route::Route| {
            // Some plugins write the unspecified address for "no gateway".
            let gateway = wanted.gw.filter(|gw| !gw.is_unspecified());
            route.dst == wanted.dst.trunc()
                && (gateway.is_none() || route.gateway == gateway)
                && wanted.table.is_none_or(|table| route.table == table)
        };
        if !routes.iter().any(is_match) {
            return Err(no_route(&shown(wanted)));
        }
    }
    Ok(())
}

fn no_route(route: &str) -> Error {
    Error::internal(format!("Expected Route {route} not found in routing table"))
        .with_details(format!("route to {route} is missing in the container"))
}

fn shown(route: &cni::Route) -> String {
    let gateway = route.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
    format!("{}{gateway}", IpNet::trunc(&route.dst))
}

/// The routes of all tables except the local table: sbr and vrf move routes out of the main table.
fn all_routes(pod: &Netlink) -> Result<Vec<route::Route>, Error> {
    let mut routes = route::list(pod, RouteFilter::default()).context("list routes")?;
    routes.retain(|route| route.table != route::TABLE_LOCAL);
    Ok(routes)
}
