// SPDX-License-Identifier: Apache-2.0
//! `ptp`: connects each container to the host by its own veth pair; the host routes for it.

use std::net::IpAddr;

use cni::{CniResult, Code, Error, IpConfig, Plugin, Request, Version};
use ipnet::IpNet;
use kernel::addr::{self, AddrOptions};
use kernel::route::{self, Route};
use kernel::{IfIndex, Netlink, Netns, link};
use serde::Deserialize;

use crate::attach::dns::DnsConf;
use crate::attach::interface::{self, AddressOptions, ArpAnnounce, Dad};
use crate::attach::undo::{Undo, or_undo};
use crate::attach::veth::{self, DesiredPair, Pair};
use crate::attach::{check, ipam, netns};
use crate::error::Context;
use crate::host_sysctl;
use crate::nftables::masquerade::{self, Masquerade};
use crate::nftables::{self, Feature};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "ptp",
    about: "connects each container to the host by its own veth pair",
    versions: Version::ALL,
    add,
    del: |request| veth::del(request, FEATURES),
    check,
    status,
    gc: |request| veth::gc(request, FEATURES),
};

/// The features that may have elements for the plugin's containers.
const FEATURES: &[&Feature] = &[&masquerade::FEATURE];

/// Index of the container's interface in the result: host end, container end.
const CONTAINER: usize = 1;

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PtpConf {
    mtu: i64,
    dns: DnsConf,
}

/// The parsed configuration.
struct Ptp {
    mtu: Option<u32>,
    masquerade: Option<Masquerade>,
    dns: DnsConf,
}

fn parse(request: &Request) -> Result<Ptp, Error> {
    let conf: PtpConf = request.conf()?;
    let mtu = veth::parse_mtu(conf.mtu, veth::MAX_MTU)?;
    if request.ipam_type()?.is_none() {
        return Err(Error::invalid_config("no plugin name provided")
            .with_details("key \"ipam.type\" must be set: ptp routes by address"));
    }
    ipam::refuse_if_needs_interface(request, "the interface of ptp leads to this host only")?;
    Ok(Ptp { mtu, masquerade: Masquerade::parse(request)?, dns: conf.dns })
}

fn add(request: &Request) -> Result<CniResult, Error> {
    let ptp = parse(request)?;
    let ns = netns::open(request)?;
    let host = Netlink::open().context("open a netlink socket")?;
    or_undo(|undo| build(request, &ptp, &host, &ns, undo))
}

fn build<'a>(
    request: &'a Request,
    ptp: &'a Ptp,
    host: &'a Netlink,
    ns: &Netns,
    undo: &mut Undo<'a>,
) -> Result<CniResult, Error> {
    let mut result = ipam::add(request)?.unwrap_or_default();
    undo.push(move || drop(ipam::del(request)));
    let gateways = gateways(&result.ips)?;
    let pair =
        veth::create(host, ns, request, &DesiredPair { mtu: ptp.mtu, ..DesiredPair::default() })?;
    undo.push(move || veth::rollback(host, pair.host));
    host_sysctl::ignore_router_advertisements(pair.host)?;
    configure_container(ns, &pair, &result, &gateways)?;
    configure_host(host, &pair, &result.ips, &gateways)?;
    if let Some(masquerade) = &ptp.masquerade {
        undo.push(|| drop(nftables::remove(request, FEATURES)));
        masquerade.add(request, &result.ips)?;
        if let Some(step) = masquerade.undo_iptables(request, &result.ips) {
            undo.push(step);
        }
    }
    // Last, because it is not undone: other networks may rely on it at once.
    host_sysctl::enable_forwarding(result.ips.iter().map(|ip| ip.address.addr()))?;
    for ip in &mut result.ips {
        ip.interface = Some(CONTAINER);
    }
    result.interfaces = pair.interfaces(request).to_vec();
    ptp.dns.override_in(&mut result);
    Ok(result)
}

/// The host has the gateway addresses, so each address must have a gateway.
fn gateways(ips: &[IpConfig]) -> Result<Vec<IpAddr>, Error> {
    let gateway = |ip: &IpConfig| {
        ip.gateway.ok_or_else(|| {
            let msg = format!("IPAM plugin gave address {} without a gateway", ip.address);
            Error::invalid_config(msg).with_details("ptp reaches everything through the gateway")
        })
    };
    ips.iter().map(gateway).collect()
}

fn single(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

/// In the container everything, even its own network, is reached through the gateway. Therefore the
/// address is added without the kernel's route to its network, and the gateway gets a direct route.
fn configure_container(
    ns: &Netns,
    pair: &Pair,
    result: &CniResult,
    gateways: &[IpAddr],
) -> Result<(), Error> {
    let addresses = AddrOptions { no_prefix_route: true, ..AddrOptions::default() };
    let options = AddressOptions { addresses, dad: Dad::Skip, announce: ArpAnnounce::Never };
    let interface = interface::add_addresses(ns, pair.container, &result.ips, options)?;
    let own = own_routes(interface.index, &result.ips, gateways);
    let others = interface::routes(interface.index, &result.ips, &result.routes);
    let direct = routes_to_other_gateways(interface.index, &result.ips, gateways, &others);
    if direct.is_empty() {
        return interface.add_routes(&[own, others].concat());
    }
    interface.add_routes(&[direct.as_slice(), &others].concat())?;
    interface.remove_routes(&direct)?;
    interface.add_routes(&own)
}

/// Temporary direct routes for gateways other than the container's own: other addresses of the IPAM
/// plugin's subnets. The kernel accepts a route only if its gateway is reachable directly, so the
/// networks get direct routes for a moment, as in the Go plugin.
fn routes_to_other_gateways(
    index: IfIndex,
    ips: &[IpConfig],
    gateways: &[IpAddr],
    routes: &[Route],
) -> Vec<Route> {
    let used = routes.iter().filter_map(|route| route.gateway);
    let others: Vec<IpAddr> = used.filter(|one| !gateways.contains(one)).collect();
    let mut networks: Vec<IpNet> = ips.iter().map(|ip| ip.address.trunc()).collect();
    networks.retain(|network| others.iter().any(|other| network.contains(other)));
    networks.sort_unstable();
    networks.dedup();
    let to_network = |network| {
        let mut route = Route::new(network);
        route.oif = Some(index);
        route.scope = Some(route::SCOPE_LINK);
        route
    };
    networks.into_iter().map(to_network).collect()
}

fn own_routes(index: IfIndex, ips: &[IpConfig], gateways: &[IpAddr]) -> Vec<Route> {
    let mut routes = Vec::with_capacity(2 * ips.len());
    for (ip, gateway) in ips.iter().zip(gateways) {
        let mut to_gateway = Route::new(single(*gateway));
        to_gateway.oif = Some(index);
        to_gateway.scope = Some(route::SCOPE_LINK);
        to_gateway.src = Some(ip.address.addr());
        let mut to_network = Route::new(ip.address.trunc());
        to_network.oif = Some(index);
        to_network.gateway = Some(*gateway);
        to_network.src = Some(ip.address.addr());
        routes.extend([to_gateway, to_network]);
    }
    routes
}

/// On the host, each veth pair has the gateway address, and each container's address has a route to
/// its pair.
fn configure_host(
    host: &Netlink,
    pair: &Pair,
    ips: &[IpConfig],
    gateways: &[IpAddr],
) -> Result<(), Error> {
    let index = link::index_of(host, pair.host).context("look for the host's interface")?;
    let options = AddrOptions { nodad: true, ..AddrOptions::default() };
    let mut distinct = gateways.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let addresses = distinct.iter().map(|gateway| addr::add(index, single(*gateway), options));
    let routes = ips.iter().map(|ip| {
        let mut route = Route::new(single(ip.address.addr()));
        route.oif = Some(index);
        route.scope = Some(route::SCOPE_HOST);
        route::create(&route)
    });
    let results = host.apply_each(addresses.chain(routes));
    let failed = results.into_iter().filter_map(Result::err).find(|error| !error.already_exists());
    failed.map_or(Ok(()), |error| {
        Err(Error::because(Code::INTERNAL, "route to the container", &error))
    })
}

fn check(request: &Request) -> Result<(), Error> {
    let ptp = parse(request)?;
    ipam::check(request)?;
    let result = request.required_prev_result()?;
    let ns = netns::open(request)?;
    let inside = ns.netlink().context("open a socket in the container's namespace")?;
    let interface = check::container_interface(&result, request)?;
    let container = check::interface(&inside, interface, "veth")?;
    if !container.is_up() {
        return Err(Error::internal(format!("Interface {} is down", container.name)));
    }
    check::addresses(&inside, container.index, &result.ips)?;
    check::routes(&inside, &result.routes)?;
    if let Some(masquerade) = &ptp.masquerade {
        masquerade.check(request, &result.ips)?;
    }
    check_host(&result, container.index)
}

/// The host end must be up and have the gateway addresses, and each container address must be
/// routed to it.
fn check_host(result: &CniResult, container: IfIndex) -> Result<(), Error> {
    let host = Netlink::open().context("open a netlink socket")?;
    let on_host = result.interfaces.iter().find(|interface| interface.sandbox.is_empty());
    let Some(on_host) = on_host else {
        return Err(Error::internal("prevResult has no interface on the host"));
    };
    let link = check::interface(&host, on_host, "veth")?;
    if link.link != Some(container) || !link.is_up() {
        let name = link.name;
        return Err(Error::internal(format!("{name} is down or not the container's other end")));
    }
    let found = addr::list(&host, Some(link.index)).context("list the host end's addresses")?;
    for ip in &result.ips {
        let gateway = ip.gateway.filter(|gateway| {
            let expected = single(*gateway);
            !found.iter().any(|address| address.prefix == expected)
        });
        if let Some(gateway) = gateway {
            let msg = format!("gateway {gateway} is missing on the host's {}", link.name);
            return Err(Error::internal(msg));
        }
        let address = ip.address.addr();
        let route = route::lookup(&host, address).context("look up the container's route")?;
        if route.and_then(|route| route.oif) != Some(link.index) {
            let msg = format!("the host does not route {address} to {}", link.name);
            return Err(Error::internal(msg));
        }
    }
    Ok(())
}

fn status(request: &Request) -> Result<(), Error> {
    let ptp = parse(request)?;
    let host = Netlink::open().context("open a netlink socket")?;
    if !link::is_supported(&host, "veth").context("ask the kernel for its features")? {
        return Err(Error::new(Code::NOT_AVAILABLE, "this kernel has no veth interfaces"));
    }
    ptp.masquerade.as_ref().map_or(Ok(()), Masquerade::status)?;
    ipam::status(request)
}
