// SPDX-License-Identifier: Apache-2.0
//! What CHECK has in common: is what the result says still so? Later plugins of a list may have
//! added to it; only what is missing or different is a fault.

use cni::{CniResult, Error, Interface, IpConfig, Request, Version};
use ipnet::IpNet;
use kernel::link::Link;
use kernel::route::{self, RouteFilter};
use kernel::{IfIndex, Netlink, addr, link};

use crate::fault::OrFault;
use crate::pod;

/// The container's interface in a result.
pub fn container_interface<'a>(
    result: &'a CniResult,
    request: &Request,
) -> Result<&'a Interface, Error> {
    result
        .interfaces
        .iter()
        .find(|one| one.name == request.ifname && pod::is_sandbox(request, &one.sandbox))
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

/// An interface must be there, of this kind, with the hardware address that the result tells.
pub fn interface(nl: &Netlink, interface: &Interface, kind: &str) -> Result<Link, Error> {
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

/// The same for one of any kind.
pub fn any_interface(nl: &Netlink, interface: &Interface) -> Result<Link, Error> {
    let name = &interface.name;
    let wanted = name.parse().map_err(|cause: kernel::IfNameError| {
        Error::because(cni::Code::INVALID_CONFIG, "prevResult", &cause)
    })?;
    let link = link::by_name(nl, wanted).or_fault("look for an interface")?.ok_or_else(|| {
        let what = match interface.sandbox.as_str() {
            "" => "Interface name",
            _ => "Container Interface name in prevResult:",
        };
        Error::internal(format!("{what} {name} not found"))
            .with_details(format!("interface {name} does not exist"))
    })?;
    let found = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    if !interface.mac.is_empty() && !interface.mac.eq_ignore_ascii_case(&found) {
        let wanted = &interface.mac;
        let msg = format!("Interface {name} Mac {wanted} doesn't match container Mac: {found}");
        return Err(Error::internal(msg));
    }
    Ok(link)
}

/// The MTU must be as configured. A plugin further down the list that has changed it says so in the
/// result; before 1.1.0 it cannot, and then any MTU may be right.
pub fn mtu(
    link: &Link,
    interface: &Interface,
    wanted: Option<u32>,
    version: Version,
) -> Result<(), Error> {
    let told = Some(interface.mtu).filter(|mtu| *mtu != 0);
    let wanted = wanted.filter(|_| version >= Version::V1_1_0);
    match told.or(wanted).filter(|mtu| *mtu != link.mtu) {
        Some(mtu) => {
            let (name, found) = (link.name, link.mtu);
            Err(Error::internal(format!("interface {name} has MTU {found}, expected {mtu}")))
        }
        None => Ok(()),
    }
}

/// Every address of the result that is the container's must be on the interface, and a route to its
/// network must be there.
pub fn addresses(pod: &Netlink, index: IfIndex, ips: &[IpConfig]) -> Result<(), Error> {
    let found = addr::list(pod, Some(index)).or_fault("list addresses")?;
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
        // The kernel keeps routes to single addresses of its own in another table.
        let is_single = network.prefix_len() == network.max_prefix_len();
        if !is_single && !routes.iter().any(|route| route.dst == network) {
            return Err(no_route(&network.to_string()));
        }
    }
    Ok(())
}

/// Every route of the result must be there; one that names a gateway, with that gateway.
pub fn routes(pod: &Netlink, wanted: &[cni::Route]) -> Result<(), Error> {
    let routes = all_routes(pod)?;
    for want in wanted {
        let fits = |route: &route::Route| {
            // The unspecified address is how some say that there is no gateway.
            let gateway = want.gw.filter(|gw| !gw.is_unspecified());
            route.dst == want.dst.trunc()
                && (gateway.is_none() || route.gateway == gateway)
                && want.table.is_none_or(|table| route.table == table)
        };
        if !routes.iter().any(fits) {
            return Err(no_route(&shown(want)));
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

/// Of every table but the kernel's own: sbr and vrf move routes out of the main one.
fn all_routes(pod: &Netlink) -> Result<Vec<route::Route>, Error> {
    let mut routes = route::list(pod, RouteFilter::default()).or_fault("list routes")?;
    routes.retain(|route| route.table != route::TABLE_LOCAL);
    Ok(routes)
}
