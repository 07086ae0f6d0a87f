// SPDX-License-Identifier: Apache-2.0
//! `bridge`: connects containers to a bridge on the host, each through a veth pair.

mod check;
mod conf;
mod gateway;
mod host_bridge;
mod spoofing;
mod vlan;

use cni::{CniResult, Error, Interface, IpConfig, Plugin, Request, Version};
use ipnet::IpNet;
use kernel::addr::AddrOptions;
use kernel::link::PortOptions;
use kernel::{MacAddr, Netlink, Netns};

use self::conf::Bridge;
use self::host_bridge::{HostBridge, MissingAddress};
use crate::attach::interface::{self, AddressOptions, ArpAnnounce, ConfiguredInterface};
use crate::attach::undo::{Undo, or_undo};
use crate::attach::veth::{self, DesiredPair, Pair};
use crate::attach::{ipam, names, netns};
use crate::error::Context;
use crate::host_sysctl;
use crate::nftables::masquerade::{self, Masquerade};
use crate::nftables::{self, Feature};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "bridge",
    about: "connects containers to a bridge on the host",
    versions: Version::ALL,
    add,
    del,
    check: check::check,
    status,
    gc,
};

/// The features that may have elements for the plugin's containers.
const FEATURES: &[&Feature] = &[&masquerade::FEATURE, &spoofing::FEATURE];

fn add(request: &Request) -> Result<CniResult, Error> {
    let conf = Bridge::parse(request)?;
    let ns = netns::open(request)?;
    let host = Netlink::open().context("open a netlink socket")?;
    or_undo(|undo| build(request, &conf, &host, &ns, undo))
}

/// The steps of ADD. The bridge's address and forwarding come last, when nothing else can fail:
/// other containers may use them at once, so they cannot be undone.
fn build<'a>(
    request: &'a Request,
    conf: &'a Bridge,
    host: &'a Netlink,
    ns: &Netns,
    undo: &mut Undo<'a>,
) -> Result<CniResult, Error> {
    let connect = if ipam::needs_interface(request)? { ipam_after_link } else { ipam_before_link };
    let Connected { mut bridge, gateways, missing, pair, ipam_result } =
        connect(request, conf, host, ns, undo)?;
    let has_addresses = ipam_result.is_some();
    let mut result = ipam_result.unwrap_or_default();
    let interface = add_addresses(conf, ns, &pair, &result)?;
    add_rules(request, conf, &pair, &result, undo)?;
    if let Some(interface) = interface {
        interface.add_routes(&interface::routes(interface.index, &result.ips, &result.routes))?;
        bridge.wait_port_forwarding(pair.host)?;
    }
    let mac = bridge.mac_with_port(pair.host_mac)?;
    // Adding an address pins the bridge's own MAC address, not the one of its first port.
    bridge.link.mac = bridge.link.mac.filter(|own| own.is_unicast()).or(mac);
    let gateway = bridge.add_gateways(&gateways, &missing)?;
    let mac = match gateway {
        // The gateway of a VLAN has added another port.
        Some(_) => bridge.mac()?,
        None if missing.is_empty() => mac,
        None => bridge.link.mac,
    };
    if has_addresses && conf.is_gateway {
        host_sysctl::enable_forwarding(result.ips.iter().map(|ip| ip.address.addr()))?;
    }
    result.interfaces = interfaces(request, conf, mac, &pair);
    result.interfaces.extend(gateway);
    conf.dns.override_in(&mut result);
    Ok(result)
}

/// The result of the first half of ADD.
struct Connected<'a> {
    bridge: HostBridge<'a>,
    /// The containers' gateway addresses, which the bridge or the gateway of the VLAN must have.
    gateways: Vec<IpNet>,
    missing: Vec<MissingAddress>,
    pair: Pair,
    ipam_result: Option<CniResult>,
}

/// The usual order: the step that fails most often comes first, so that little has to be undone.
/// First the address, then the bridge, then the pair.
fn ipam_before_link<'a>(
    request: &'a Request,
    conf: &'a Bridge,
    host: &'a Netlink,
    ns: &Netns,
    undo: &mut Undo<'a>,
) -> Result<Connected<'a>, Error> {
    let mut ipam_result = ipam::add(request)?;
    undo.push(move || drop(ipam::del(request)));
    let gateways = ipam_result.as_mut().map(|result| gateway::complete(conf, result));
    let gateways = gateways.unwrap_or_default();
    let (mut bridge, mut missing) = prepare_bridge(conf, host, &gateways, undo)?;
    let ips = ipam_result.as_ref().map(|result| result.ips.as_slice()).unwrap_or_default();
    let pair = match create_pair(request, conf, host, ns, &bridge, ips, undo) {
        // Another ADD has failed and removed the empty bridge meanwhile.
        Err(_) if !bridge.is_current()? => {
            (bridge, missing) = prepare_bridge(conf, host, &gateways, undo)?;
            create_pair(request, conf, host, ns, &bridge, ips, undo)?
        }
        other => other?,
    };
    Ok(Connected { bridge, gateways, missing, pair, ipam_result })
}

/// The order for an IPAM plugin that works through the interface.
fn ipam_after_link<'a>(
    request: &'a Request,
    conf: &'a Bridge,
    host: &'a Netlink,
    ns: &Netns,
    undo: &mut Undo<'a>,
) -> Result<Connected<'a>, Error> {
    ipam::check_available(request)?;
    let (bridge, _) = prepare_bridge(conf, host, &[], undo)?;
    let pair = create_pair(request, conf, host, ns, &bridge, &[], undo)?;
    interface::bring_up(ns, pair.container, conf.dad)?;
    bridge.wait_port_forwarding(pair.host)?;
    let mut result = ipam::add_after_link(request)?.unwrap_or_default();
    undo.push(move || drop(ipam::del(request)));
    let gateways = gateway::complete(conf, &mut result);
    let missing = bridge.missing_gateways(&gateways)?;
    Ok(Connected { bridge, gateways, missing, pair, ipam_result: Some(result) })
}

fn prepare_bridge<'a>(
    conf: &'a Bridge,
    host: &'a Netlink,
    gateways: &[IpNet],
    undo: &mut Undo<'a>,
) -> Result<(HostBridge<'a>, Vec<MissingAddress>), Error> {
    let bridge = HostBridge::ensure(host, conf, undo)?;
    let missing = bridge.missing_gateways(gateways)?;
    bridge.set_up()?;
    Ok((bridge, missing))
}

fn create_pair<'a>(
    request: &Request,
    conf: &Bridge,
    host: &'a Netlink,
    ns: &Netns,
    bridge: &HostBridge,
    ips: &[IpConfig],
    undo: &mut Undo<'a>,
) -> Result<Pair, Error> {
    let enabled = |option: bool| option.then_some(true);
    let port = PortOptions {
        hairpin: enabled(conf.hairpin),
        isolated: enabled(conf.isolated),
        ..PortOptions::default()
    };
    let first = ips.iter().map(|ip| ip.address.addr()).min_by_key(|address| address.is_ipv6());
    let mac = conf.mac.or_else(|| first.map(names::mac_of));
    let master = Some(bridge.link.index);
    let pair = veth::create(host, ns, request, &DesiredPair { mtu: conf.mtu, mac, master, port })?;
    if let Some(vlans) = &conf.vlans {
        vlan::port::configure(host, pair.host, vlans)
            .inspect_err(|_| veth::rollback(host, pair.host))?;
    }
    if let Some(gateway) = conf.vlan_gateway {
        undo.push(move || drop(vlan::gateway::remove_if_unused(host, gateway)));
    }
    undo.push(move || veth::rollback(host, pair.host));
    Ok(pair)
}

/// Adds the container's addresses and brings its interface up, unless the interface is to stay
/// down.
fn add_addresses(
    conf: &Bridge,
    ns: &Netns,
    pair: &Pair,
    result: &CniResult,
) -> Result<Option<ConfiguredInterface>, Error> {
    if conf.leave_down {
        return Ok(None);
    }
    let announce = match (result.ips.is_empty(), conf.mac) {
        (true, _) => ArpAnnounce::Never,
        (false, Some(_)) => ArpAnnounce::Now,
        (false, None) => ArpAnnounce::Later,
    };
    let options = AddressOptions { addresses: AddrOptions::default(), dad: conf.dad, announce };
    interface::add_addresses(ns, pair.container, &result.ips, options).map(Some)
}

fn add_rules<'a>(
    request: &'a Request,
    conf: &'a Bridge,
    pair: &Pair,
    result: &CniResult,
    undo: &mut Undo<'a>,
) -> Result<(), Error> {
    undo.push(|| drop(nftables::remove(request, FEATURES)));
    if conf.check_spoofing {
        spoofing::add(request, pair.host, pair.container_mac)?;
    }
    if let Some(masquerade) = &conf.masquerade {
        masquerade.add(request, &result.ips)?;
        if let Some(step) = masquerade.undo_iptables(request, &result.ips) {
            undo.push(step);
        }
    }
    Ok(())
}

fn interfaces(
    request: &Request,
    conf: &Bridge,
    mac: Option<MacAddr>,
    pair: &Pair,
) -> Vec<Interface> {
    let mac = mac.map(|mac| mac.to_string()).unwrap_or_default();
    let bridge = Interface { name: conf.name.to_string(), mac, ..Interface::default() };
    [bridge].into_iter().chain(pair.interfaces(request)).collect()
}

fn del(request: &Request) -> Result<(), Error> {
    let removed = veth::del(request, FEATURES);
    let gateway = remove_unused_vlan_gateway(request);
    Error::all([removed, gateway])
}

fn gc(request: &Request) -> Result<(), Error> {
    if request.valid_attachments()?.is_none() {
        return Ok(());
    }
    let removed = veth::gc(request, FEATURES);
    let gateway = remove_unused_vlan_gateway(request);
    Error::all([removed, gateway])
}

fn remove_unused_vlan_gateway(request: &Request) -> Result<(), Error> {
    let Some(gateway) = conf::vlan_gateway(request) else { return Ok(()) };
    let host = Netlink::open().context("open a netlink socket")?;
    vlan::gateway::remove_if_unused(&host, gateway)
}

fn status(request: &Request) -> Result<(), Error> {
    let conf = Bridge::parse(request)?;
    host_bridge::check_usable(&conf)?;
    if conf.check_spoofing {
        spoofing::status()?;
    }
    conf.masquerade.as_ref().map_or(Ok(()), Masquerade::status)?;
    ipam::status(request)
}
