// SPDX-License-Identifier: Apache-2.0
//! The host end of the veth pair: creation, sysctls, routes, removal.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;

use cni::{Attachment, Code, Error, IpConfig, Request};
use ipnet::{IpNet, Ipv6Net};
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Kind, Link, NewLink, Peer};
use kernel::route::{self, Route, RouteFilter};
use kernel::{Family, IfIndex, IfName, MacAddr, Netlink, Netns, sysctl};

use super::conf::Calico;
use super::names::{self, Owner};
use crate::attach::names::attachment_group;
use crate::attach::netns;
use crate::error::Context;
use crate::host_sysctl;

/// The MAC address of all host ends.
pub(super) const MAC: MacAddr = MacAddr([0xee; 6]);

/// The link-local address that belongs to this MAC address.
pub(super) const LINK_LOCAL: Ipv6Addr =
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee);

/// A pair that was created.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub host: IfName,
    pub container: IfName,
    pub container_mac: MacAddr,
}

/// Creates the pair, with the host end up unless `is_up` is false. A host end that an earlier
/// sandbox of the pod left is replaced.
pub(super) fn create(
    host: &Netlink,
    ns: &Netns,
    request: &Request,
    calico: &Calico,
    mtu: Option<u32>,
    is_up: bool,
) -> Result<Pair, Error> {
    let container = netns::ifname(request)?;
    let random = || MacAddr::random().context("choose a MAC address");
    let container_mac = calico.annotations.mac.map_or_else(random, Ok)?;
    let pair = Pair { host: calico.host_ifname, container, container_mac };
    let peer = Peer { name: container, mac: Some(container_mac), mtu, netns: Some(ns.as_fd()) };
    let new = NewLink {
        mtu,
        mac: Some(MAC),
        queues: Some(calico.queues),
        group: Some(attachment_group(&request.network, &request.attachment())),
        up: is_up,
        ..NewLink::new(pair.host, Kind::Veth(peer))
    };
    let created = match host.apply([link::create(&new)]) {
        Err(error) if error.already_exists() => {
            netns::refuse_existing(request)?;
            remove_stale_namesake(host, request, calico)?;
            host.apply([link::create(&new)])
        }
        other => other,
    };
    created.context("create veth pair").map(|()| pair)
}

/// Removes the interface with the name of the new host end.
fn remove_stale_namesake(host: &Netlink, request: &Request, calico: &Calico) -> Result<(), Error> {
    let name = calico.host_ifname;
    let doing = "remove the pod's earlier interface";
    let Some(found) = link::by_name(host, name).context(doing)? else { return Ok(()) };
    let taken = |hint: &str| {
        let by = found.alias.as_deref().unwrap_or("another program");
        Err(Error::internal(format!("interface {name} exists on the host, created by {by}"))
            .with_details(hint))
    };
    match names::owner(&found, &request.network, &request.attachment()) {
        _ if !found.is_kind("veth") => return taken("it is not a veth pair"),
        Owner::SameContainer => {
            return taken(
                "calico connects a container once: run DEL for its other interface first",
            );
        }
        // Outside Kubernetes the name has the first characters of the container's ID only.
        Owner::Other if calico.pod.is_none() => {
            return taken("the first 11 characters of container IDs must differ");
        }
        Owner::This | Owner::Other | Owner::Untagged => {}
    }
    link::remove_in_background(host, found.index).context(doing)
}

/// Sets Calico's sysctls, tags the host end, and makes it lead to the pod. The pod's end is still
/// down: the host end gets no IPv6 address before duplicate address detection is off, and all
/// changes precede the kernel's work for the new carrier, which holds the RTNL lock.
pub(super) fn configure(
    host: &Netlink,
    request: &Request,
    calico: &Calico,
    name: IfName,
    ips: &[IpConfig],
) -> Result<(), Error> {
    let has = |family| ips.iter().any(|ip| Family::of(ip.address.addr()) == family);
    set_sysctls(name, calico, has).context("set up the host's interface")?;
    host_sysctl::ignore_router_advertisements(name)?;
    let doing = "route to the pod";
    let index = link::index_of(host, name).context(doing)?;
    let tag = names::tag(&request.network, &request.attachment());
    let mut requests = vec![link::set_alias(index, &tag)];
    if has(Family::V4) {
        let entries = [(link::FORWARDING, 1), (link::PROXY_ARP, 1), (link::ROUTE_LOCALNET, 1)];
        requests.push(link::set_inet_conf(index, &entries));
    }
    if has(Family::V6) {
        // The kernel would add the address a moment after the carrier appears, and could not send
        // neighbour solicitations to the pod before.
        let address = Ipv6Net::new(LINK_LOCAL, 64).expect("64 is a valid prefix length");
        let options = AddrOptions { nodad: true, ..AddrOptions::default() };
        requests.push(addr::replace(index, address.into(), options));
    }
    let routes = requests.len();
    requests.extend(ips.iter().map(|ip| route::add(&to_pod(index, ip.address))));
    for (at, result) in host.apply_each(requests).into_iter().enumerate() {
        match result {
            Err(error) if error.already_exists() && at >= routes => {
                accept_existing(host, index, name, ips[at - routes].address)?;
            }
            other => other.context(doing)?,
        }
    }
    Ok(())
}

/// The sysctls that netlink cannot set.
fn set_sysctls(name: IfName, calico: &Calico, has: impl Fn(Family) -> bool) -> kernel::Result<()> {
    if has(Family::V4) {
        sysctl::write(&format!("net/ipv4/neigh/{name}/proxy_delay"), "0")?;
        if calico.annotations.allows_other_sources {
            sysctl::write(&format!("net/ipv4/conf/{name}/rp_filter"), "0")?;
        }
    }
    if has(Family::V6) {
        let path = |key| format!("net/ipv6/conf/{name}/{key}");
        sysctl::write(&path("accept_dad"), "0")?;
        sysctl::write(&path("proxy_ndp"), "1")?;
        // Usually inherited. A write would wait for the RTNL lock.
        sysctl::ensure(&path("disable_ipv6"), "0")?;
        sysctl::ensure(&path("forwarding"), "1")?;
    }
    Ok(())
}

fn to_pod(index: IfIndex, address: IpNet) -> Route {
    Route { scope: Some(route::SCOPE_LINK), ..Route::new(address).dev(index) }
}

/// The route of another program through the same interface is as good. A route through another
/// interface is an error that names the interface.
fn accept_existing(
    host: &Netlink,
    index: IfIndex,
    name: IfName,
    address: IpNet,
) -> Result<(), Error> {
    let doing = "look at the route to the pod";
    let filter = RouteFilter {
        family: Some(Family::of(address.addr())),
        table: Some(route::TABLE_MAIN),
        ..RouteFilter::default()
    };
    let routes = route::list(host, filter).context(doing)?;
    let mut existing = routes.iter().filter(|route| route.dst == address).peekable();
    if existing.peek().is_none_or(|route| route.oif == Some(index)) {
        return Ok(());
    }
    let other = existing.find_map(|route| route.oif).map(|oif| link::name_of(host, oif));
    let other = other.transpose().context(doing)?.flatten();
    let other = other.map_or("no interface".to_owned(), |other| format!("interface {other}"));
    let msg = format!("the host already routes {address} to {other}, not to {name}");
    let hint = "another pod has this address, or an interface was left behind";
    Err(Error::internal(msg).with_details(hint))
}

/// Removes the attachment's pair. An interface of a newer sandbox of the same pod is kept. An
/// interface that Calico created is found in the namespace, as Calico does.
pub(super) fn remove(request: &Request) -> Result<(), Error> {
    let host = Netlink::open().context("open a netlink socket")?;
    let attachment = request.attachment();
    let mut names: Vec<IfName> = Vec::new();
    // Invalid CNI_ARGS must not keep the interface from being removed.
    let pod = names::pod(request).unwrap_or_default();
    names.extend(names::host_ifname(request, pod.as_ref()));
    let result = request.prev_result().ok().flatten().unwrap_or_default();
    let on_host = result.interfaces.iter().filter(|one| one.sandbox.is_empty());
    names.extend(on_host.filter_map(|one| one.name.parse::<IfName>().ok()));
    names.dedup();
    let doing = "remove the pod's interface";
    for name in names {
        let found = link::by_name(&host, name).context(doing)?;
        let owner = |link: &Link| names::owner(link, &request.network, &attachment);
        if let Some(link) = found.filter(|link| owner(link) == Owner::This) {
            return link::remove_in_background(&host, link.index).context(doing);
        }
    }
    let Some(ns) = netns::open_if_exists(request) else { return Ok(()) };
    remove_inside(&host, &ns, request).context(doing)
}

fn remove_inside(host: &Netlink, ns: &Netns, request: &Request) -> kernel::Result<()> {
    let Ok(ifname) = request.ifname.parse::<IfName>() else { return Ok(()) };
    let inside = ns.netlink()?;
    let Some(link) = link::by_name(&inside, ifname)? else { return Ok(()) };
    let peer = link.link.map(|peer| link::by_index(host, peer)).transpose()?.flatten();
    let is_own = |peer: Link| {
        let owner = names::owner(&peer, &request.network, &request.attachment());
        let is_calico = peer.name.as_str().starts_with(&names::prefix())
            || peer.name.as_str().starts_with(names::PREFIX);
        owner == Owner::This || owner == Owner::Untagged && is_calico
    };
    if !link.is_kind("veth") || !peer.is_some_and(is_own) {
        return Ok(());
    }
    link::remove_in_background(&inside, link.index)
}

/// Removes the pairs of a network that belong to none of these attachments.
pub(super) fn remove_stale(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let host = Netlink::open().context("open a netlink socket")?;
    let links = link::list_of_kind(&host, "veth").context("list the host's interfaces")?;
    let prefix = names::prefix();
    let is_valid = |link: &Link| {
        valid.iter().any(|attachment| names::owner(link, network, attachment) == Owner::This)
    };
    let is_stale = |link: &&Link| names::is_of_network(link, network, &prefix) && !is_valid(link);
    let removals: Vec<_> =
        links.iter().filter(is_stale).map(|link| link::remove(link.index)).collect();
    let failures = host.apply_each(removals).into_iter().filter_map(Result::err);
    let failures = failures
        .filter(|error| !error.is_not_found())
        .map(|cause| Error::because(Code::INTERNAL, "remove a stale interface", &cause));
    Error::join(failures.collect())
}

/// The host end must be up, lead to the pod, and forward its packets.
pub(super) fn check(
    host: &Netlink,
    expected: &cni::Interface,
    container: &Link,
    ips: &[IpConfig],
) -> Result<Link, Error> {
    let link = crate::attach::check::interface(host, expected, "veth")?;
    let name = link.name;
    if link.link != Some(container.index) || !link.is_up() {
        return Err(Error::internal(format!("{name} is down or not the pod's other end")));
    }
    if link.mac != Some(MAC) {
        let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        return Err(Error::internal(format!("{name} has MAC address {mac}, expected {MAC}")));
    }
    for ip in ips {
        let address = ip.address.addr();
        let route = route::lookup(host, address).context("look up the pod's route")?;
        if route.and_then(|route| route.oif) != Some(link.index) {
            return Err(Error::internal(format!("the host does not route {address} to {name}")));
        }
        let family = if matches!(address, IpAddr::V4(_)) { "ipv4" } else { "ipv6" };
        let path = format!("net/{family}/conf/{name}/forwarding");
        if sysctl::read(&path).context("read a sysctl")? != "1" {
            return Err(Error::internal(format!("{path} is not 1")));
        }
    }
    Ok(link)
}
