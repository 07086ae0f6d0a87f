// SPDX-License-Identifier: Apache-2.0
//! `portmap`: maps ports of the host to ports of a container. Each mapping is an element of an
//! nf_tables map (see `tables`). The element is tagged with its owner: DEL needs only the
//! attachment's name, and never removes a mapping that another container has now.

mod conditions;
pub(crate) mod conf;
mod plan;
mod tables;

use std::net::IpAddr;

use cni::{CniResult, Code, Error, Plugin, Request, Version};
use ipnet::IpNet;
use kernel::nft::Nft;
use kernel::{Family, IfName, Netlink, conntrack, iptables_legacy, link, route, sysctl};

use self::conf::{Backend, HostPort, Portmap, Verbatim};
use self::plan::{Plan, Pod, addresses, host_port, overlap, udp_connections};
use self::tables::FEATURE;
use crate::attach::prev_result;
use crate::compat::portmap_iptables::{self as by_iptables, DesiredRules};
use crate::compat::{go_nft, iptables};
use crate::error::Context;
use crate::nftables::{self, Conflict, ElementError, ElementStore, IndexEntry, Owner};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "portmap",
    about: "maps ports of the host to ports of a container",
    versions: Version::ALL,
    add,
    del,
    check,
    status,
    gc,
};

fn add(request: &Request) -> Result<CniResult, Error> {
    let portmap = Portmap::parse(request)?;
    let result = prev_result::required(request, "must be called as chained plugin")?;
    if !portmap.mappings.is_empty() {
        match &portmap.backend {
            Backend::Nftables => map(&portmap, request, &result)?,
            Backend::Iptables(verbatim) => {
                map_by_iptables(&portmap, verbatim, request, &result)?;
            }
        }
    }
    Ok(result)
}

fn map(portmap: &Portmap, request: &Request, result: &CniResult) -> Result<(), Error> {
    let pods = pods(portmap, &addresses(result, request))?;
    let plan = Plan::new(portmap, &request.network, &pods);
    if plan.entries.is_empty() {
        return Ok(());
    }
    let mut store = open()?;
    let added = store.add(&Owner::of(request), &plan.entries, &plan.chains).map_err(to_error);
    let added = added.and_then(|()| {
        let allowed = allow_localhost(portmap, &pods);
        if allowed.is_err() {
            // The first error is the one to report.
            let _ = store.remove(&request.network, &request.attachment());
        }
        allowed
    });
    added?;
    let entries = plan
        .entries
        .iter()
        .map(|entry| IndexEntry { map: entry.map.number, key: entry.key.clone() });
    forget_connections(entries.filter_map(|entry| host_port(&entry)));
    Ok(())
}

fn map_by_iptables(
    portmap: &Portmap,
    verbatim: &Verbatim,
    request: &Request,
    result: &CniResult,
) -> Result<(), Error> {
    let own = addresses(result, request);
    let (network, container) = (&request.network[..], &request.container_id[..]);
    let desired = DesiredRules { network, container, portmap, verbatim, own: &own };
    by_iptables::add(&desired)?;
    let allowed = pods(portmap, &own).and_then(|pods| allow_localhost(portmap, &pods));
    allowed.inspect_err(|_| by_iptables::rollback(&desired))?;
    forget_connections(portmap.mappings.iter().map(|mapping| mapping.from));
    Ok(())
}

/// The container's addresses, each with the host interface that leads to it.
fn pods(portmap: &Portmap, addresses: &[IpNet]) -> Result<Vec<Pod>, Error> {
    let addresses = addresses.iter().map(IpNet::addr);
    if !portmap.snat || addresses.len() == 0 {
        let pod = |address| Pod { address, interface: None };
        return Ok(addresses.map(pod).collect());
    }
    let host = Netlink::open().context("look at the host's routes")?;
    let pod = |address| Ok(Pod { address, interface: interface_to(&host, address)? });
    addresses.map(pod).collect()
}

/// The host interface on the route to an address. The cost of the route lookup does not grow with
/// the number of routes.
fn interface_to(host: &Netlink, address: IpAddr) -> Result<Option<IfName>, Error> {
    let route = route::lookup(host, address).context("look up the route to the container")?;
    let Some(index) = route.and_then(|route| route.oif) else { return Ok(None) };
    link::name_of(host, index).context("look up the route to the container")
}

/// Allows packets from 127.0.0.1 on the interface to the container, and their replies.
fn allow_localhost(portmap: &Portmap, pods: &[Pod]) -> Result<(), Error> {
    for name in localhost_sysctls(portmap, pods) {
        sysctl::ensure(&name, "1").context("allow connections from localhost")?;
    }
    Ok(())
}

fn localhost_sysctls(portmap: &Portmap, pods: &[Pod]) -> Vec<String> {
    let v4 = pods.iter().filter(|pod| portmap.snat && pod.address.is_ipv4());
    let names = v4.filter_map(|pod| pod.interface);
    names.map(|name| format!("net/ipv4/conf/{name}/route_localnet")).collect()
}

/// Removes the connection tracking entries of these ports, so that the next packet is mapped again.
/// Best effort: without netlink access to connection tracking, only a UDP client that never stops
/// sending keeps its old destination.
fn forget_connections(ports: impl Iterator<Item = HostPort>) {
    let sent_to = udp_connections(ports);
    if !sent_to.is_empty() {
        let _ = conntrack::remove(&sent_to);
    }
}

fn del(request: &Request) -> Result<(), Error> {
    let portmap = Portmap::parse(request).ok();
    let mut store = open()?;
    let removed = store.remove(&request.network, &request.attachment());
    let by_go = remove_by_go(store.nft(), request, portmap.as_ref());
    let by_iptables = match portmap.as_ref().map(|portmap| &portmap.backend) {
        Some(Backend::Iptables(_)) => remove_by_legacy_iptables(request),
        _ => Ok(()),
    };
    let ports = removed.as_deref().unwrap_or_default().iter().filter_map(host_port);
    let was_by_go = by_go.as_ref().is_ok_and(|was| *was);
    let ports_by_go = portmap.iter().filter(|_| was_by_go).flat_map(|portmap| &portmap.mappings);
    forget_connections(ports.chain(ports_by_go.map(|mapping| mapping.from)));
    let by_netlink = [removed.map(drop), by_go.map(drop)];
    let by_netlink = by_netlink.map(|one| one.context("remove mapped ports"));
    Error::all(by_netlink.into_iter().chain([by_iptables]))
}

/// Removes rules of the Go plugin and of the backend `iptables`.
fn remove_by_go(nft: &Nft, request: &Request, portmap: Option<&Portmap>) -> kernel::Result<bool> {
    let result = request.prev_result().ok().flatten().unwrap_or_default();
    let addresses: Vec<IpAddr> = addresses(&result, request).iter().map(IpNet::addr).collect();
    let mappings = portmap.iter().flat_map(|portmap| &portmap.mappings);
    let host_ports: Vec<u16> = mappings.map(|mapping| mapping.from.port).collect();
    let mapped = go_nft::Mapped { addresses: &addresses, host_ports: &host_ports };
    go_nft::remove_port_mappings(nft, &request.network, &request.container_id, mapped)
}

/// Removes rules that iptables-legacy made, which netlink does not reach.
fn remove_by_legacy_iptables(request: &Request) -> Result<(), Error> {
    let mut families = [Family::V4, Family::V6].into_iter();
    if families.any(|family| iptables_legacy::is_in_use(family, "nat")) {
        return by_iptables::remove(&request.network, &request.container_id);
    }
    Ok(())
}

fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let mut store = open()?;
    let network = &request.network;
    let removed = store.gc(network, &valid);
    let chains = nftables::remove_unused_chains(store.nft(), store.feature(), network);
    forget_connections(removed.as_deref().unwrap_or_default().iter().filter_map(host_port));
    let by_go = go_nft::gc_port_mappings(store.nft(), network, &valid);
    let by_netlink = [removed.map(drop), chains, by_go];
    let by_netlink = by_netlink.map(|one| one.context("remove stale mapped ports"));
    let by_iptables = match Portmap::parse(request).map(|portmap| portmap.backend) {
        Ok(Backend::Iptables(_)) => by_iptables::gc(request, &valid),
        _ => Ok(()),
    };
    Error::all(by_netlink.into_iter().chain([by_iptables]))
}

fn check(request: &Request) -> Result<(), Error> {
    let portmap = Portmap::parse(request)?;
    let result = request.required_prev_result()?;
    if portmap.mappings.is_empty() {
        return Ok(());
    }
    let own = addresses(&result, request);
    let pods = pods(&portmap, &own)?;
    match &portmap.backend {
        Backend::Nftables => check_elements(&portmap, request, &pods)?,
        Backend::Iptables(verbatim) => {
            let (network, container) = (&request.network[..], &request.container_id[..]);
            let desired =
                DesiredRules { network, container, portmap: &portmap, verbatim, own: &own };
            if let Some(rule) = by_iptables::missing(&desired)? {
                let msg = format!("mapped ports: iptables has no rule {rule:?}");
                return Err(Error::internal(msg));
            }
        }
    }
    for name in localhost_sysctls(&portmap, &pods) {
        if sysctl::read(&name).context("mapped ports")? != "1" {
            return Err(Error::internal(format!("mapped ports: {name} is not 1")));
        }
    }
    Ok(())
}

fn check_elements(portmap: &Portmap, request: &Request, pods: &[Pod]) -> Result<(), Error> {
    let plan = Plan::new(portmap, &request.network, pods);
    if plan.entries.is_empty() {
        return Ok(());
    }
    let store = open()?;
    let checked = store.check(&Owner::of(request), &plan.entries, &plan.chains);
    let Err(error) = checked else { return Ok(()) };
    if is_by_go(store.nft(), portmap, request, pods).context("mapped ports")? {
        return Ok(());
    }
    Err(error.into_error("mapped ports"))
}

/// Whether the Go plugin has mapped these ports because it made the attachment.
fn is_by_go(nft: &Nft, portmap: &Portmap, request: &Request, pods: &[Pod]) -> kernel::Result<bool> {
    let (network, container) = (&request.network, &request.container_id);
    for address in pods.iter().map(|pod| pod.address) {
        let is_mapped = |mapping: &&conf::Mapping| mapping.from.family == Family::of(address);
        let count = portmap.mappings.iter().filter(is_mapped).count();
        if count > 0 && !go_nft::has_port_mappings(nft, network, container, address, count)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// STATUS. Checks the backend only if the configuration has mappings: a container without mappings
/// from the runtime needs neither iptables nor nf_tables.
fn status(request: &Request) -> Result<(), Error> {
    let portmap = Portmap::parse(request)?;
    if portmap.mappings.is_empty() {
        return Ok(());
    }
    if let Backend::Iptables(_) = portmap.backend {
        return iptables::status();
    }
    nftables::status(&FEATURE, "map ports")
}

fn open() -> Result<ElementStore, Error> {
    ElementStore::open(&FEATURE).context("map ports")
}

/// A conflict is reported as "try again later": the other container may end.
fn to_error(error: ElementError) -> Error {
    match error {
        ElementError::Conflict(Conflict { entry, holder }) => {
            let overlapped = overlap(&entry);
            let entry = IndexEntry { map: entry.map.number, key: entry.key };
            let port = host_port(&entry).as_ref().map(HostPort::to_string).or(overlapped);
            let port = port.unwrap_or_default();
            let msg = format!("{port} is already mapped to {holder}");
            Error::new(Code::TRY_LATER, msg)
        }
        ElementError::TooMany(count) => Error::invalid_config(format!(
            "key \"runtimeConfig.portMappings\" needs {count} nf_tables elements, \
             allowed are about 100000: 50000 ports of one family, or 25000 of both"
        )),
        other => other.into_error("map ports"),
    }
}
