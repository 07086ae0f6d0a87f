// SPDX-License-Identifier: Apache-2.0
//! `bridge`: containers on a bridge of the host, each by a veth pair.

mod check;
mod conf;
mod gateway;
mod host;
mod spoofing;
mod vlan;

use cni::{CniResult, Error, Interface, IpConfig, Plugin, Request, Version};
use ipnet::IpNet;
use kernel::addr::AddrOptions;
use kernel::link::{Link, PortOptions};
use kernel::{MacAddr, Netlink, Netns};

use self::conf::Bridge;
use self::host::Missing;
use crate::fault::OrFault;
use crate::masquerade::{self, Masquerade};
use crate::pod::{self, Announce, Dad, Manner, Up};
use crate::rules::{self, Feature};
use crate::undo::{Undo, or_undo};
use crate::veth::{self, Pair, Wanted};
use crate::{delegated, forwarding, identity};

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    name: "bridge",
    about: "connects containers by a bridge on the host",
    versions: Version::ALL,
    add,
    del,
    check: check::check,
    status,
    gc,
};

/// What its containers may have in nf_tables.
const RULES: &[&Feature] = &[&masquerade::FEATURE, &spoofing::FEATURE];

fn add(request: &Request) -> Result<CniResult, Error> {
    let bridge = Bridge::understand(request)?;
    let ns = pod::open(request)?;
    let host = Netlink::open().or_fault("open a netlink socket")?;
    or_undo(|undo| build(request, &bridge, &host, &ns, undo))
}

/// What others may count on as soon as it is there, and so cannot be taken back, comes when nothing
/// else can fail: the bridge's own address and forwarding.
fn build<'a>(
    request: &'a Request,
    bridge: &'a Bridge,
    host: &'a Netlink,
    ns: &Netns,
    undo: &mut Undo<'a>,
) -> Result<CniResult, Error> {
    let asks_later = delegated::needs_interface(request)?;
    let made = if asks_later { connect_then_ask } else { ask_then_connect };
    let Made { mut found, on_bridge, missing, pair, given } =
        made(request, bridge, host, ns, undo)?;
    let has_addresses = given.is_some();
    let mut result = given.unwrap_or_default();
    let up = bring_up(bridge, ns, &pair, &result)?;
    add_rules(request, bridge, &pair, &result, undo)?;
    if let Some(up) = up {
        up.add_routes(&pod::routes(up.index, &result.ips, &result.routes))?;
        host::wait_for_port(host, &found, pair.host)?;
    }
    let mac = host::mac_with_port(host, bridge, &found, pair.host_mac)?;
    // The address that gets pinned is the bridge's own, and not the one of its first port.
    found.mac = found.mac.filter(|own| own.is_unicast()).or(mac);
    let gateway = give_addresses(bridge, host, &found, &on_bridge, &missing)?;
    // A gateway of its own has brought another port.
    let mac = match gateway {
        Some(_) => host::mac(host, bridge)?,
        None if missing.is_empty() => mac,
        None => found.mac,
    };
    if has_addresses && bridge.is_gateway {
        forwarding::enable(result.ips.iter().map(|ip| ip.address.addr()))?;
    }
    result.interfaces = interfaces(request, bridge, mac, &pair);
    result.interfaces.extend(gateway);
    bridge.dns.put_into(&mut result);
    Ok(result)
}

/// What the first half of an ADD has made.
struct Made {
    found: Link,
    /// The containers' gateways, that the bridge is to have.
    on_bridge: Vec<IpNet>,
    missing: Vec<Missing>,
    pair: Pair,
    given: Option<CniResult>,
}

/// What fails most often comes first, so that little has to be taken back: the address, then the
/// bridge, then the pair.
fn ask_then_connect<'a>(
    request: &'a Request,
    bridge: &'a Bridge,
    host: &'a Netlink,
    ns: &Netns,
    undo: &mut Undo<'a>,
) -> Result<Made, Error> {
    let mut given = delegated::add(request)?;
    undo.push(move || drop(delegated::del(request)));
    let on_bridge = given.as_mut().map(|given| gateway::complete(bridge, given));
    let on_bridge = on_bridge.unwrap_or_default();
    let (mut found, mut missing) = prepare_bridge(bridge, host, &on_bridge, undo)?;
    let ips = given.as_ref().map(|given| given.ips.as_slice()).unwrap_or_default();
    let pair = match connect(request, bridge, host, ns, &found, ips, undo) {
        // Another ADD that failed has taken the empty bridge away in the meantime.
        Err(_) if !host::is_same(host, bridge, &found)? => {
            (found, missing) = prepare_bridge(bridge, host, &on_bridge, undo)?;
            connect(request, bridge, host, ns, &found, ips, undo)?
        }
        other => other?,
    };
    Ok(Made { found, on_bridge, missing, pair, given })
}

/// The other way round, for addresses that are asked for through the interface.
fn connect_then_ask<'a>(
    request: &'a Request,
    bridge: &'a Bridge,
    host: &'a Netlink,
    ns: &Netns,
    undo: &mut Undo<'a>,
) -> Result<Made, Error> {
    delegated::refuse_early(request)?;
    let (found, _) = prepare_bridge(bridge, host, &[], undo)?;
    let pair = connect(request, bridge, host, ns, &found, &[], undo)?;
    pod::bring_up(ns, pair.container, if bridge.dad { Dad::Wait } else { Dad::Skip })?;
    host::wait_for_port(host, &found, pair.host)?;
    let mut given = delegated::add_through_interface(request)?.unwrap_or_default();
    undo.push(move || drop(delegated::del(request)));
    let on_bridge = gateway::complete(bridge, &mut given);
    let missing = missing_addresses(bridge, host, &found, &on_bridge)?;
    Ok(Made { found, on_bridge, missing, pair, given: Some(given) })
}

fn add_rules<'a>(
    request: &'a Request,
    bridge: &'a Bridge,
    pair: &Pair,
    result: &CniResult,
    undo: &mut Undo<'a>,
) -> Result<(), Error> {
    undo.push(|| drop(rules::remove(request, RULES)));
    if bridge.check_spoofing {
        spoofing::add(request, pair.host, pair.container_mac)?;
    }
    if let Some(masquerade) = &bridge.masquerade {
        masquerade.add(request, &result.ips)?;
        if let Some(step) = masquerade.undo_iptables(request, &result.ips) {
            undo.push(step);
        }
    }
    Ok(())
}

fn prepare_bridge<'a>(
    bridge: &'a Bridge,
    host: &'a Netlink,
    addresses: &[IpNet],
    undo: &mut Undo<'a>,
) -> Result<(Link, Vec<Missing>), Error> {
    let found = host::ensure_bridge(host, bridge, undo)?;
    let missing = missing_addresses(bridge, host, &found, addresses)?;
    host::bring_up(host, bridge, &found)?;
    Ok((found, missing))
}

fn missing_addresses(
    bridge: &Bridge,
    host: &Netlink,
    found: &Link,
    addresses: &[IpNet],
) -> Result<Vec<Missing>, Error> {
    let of_vlan = bridge.vlan_gateway.map(|gateway| vlan::gateway::find(host, gateway));
    let holder = of_vlan.transpose()?.unwrap_or_else(|| Some(found.clone()));
    host::missing_addresses(host, bridge, holder.as_ref(), addresses)
}

fn connect<'a>(
    request: &Request,
    bridge: &Bridge,
    host: &'a Netlink,
    ns: &Netns,
    found: &Link,
    ips: &[IpConfig],
    undo: &mut Undo<'a>,
) -> Result<Pair, Error> {
    let asked = |option: bool| option.then_some(true);
    let port = PortOptions {
        hairpin: asked(bridge.hairpin),
        isolated: asked(bridge.isolated),
        ..PortOptions::default()
    };
    let first = ips.iter().map(|ip| ip.address.addr()).min_by_key(|address| address.is_ipv6());
    let mac = bridge.mac.or_else(|| first.map(identity::mac_of));
    let master = Some(found.index);
    let pair = veth::create(host, ns, request, &Wanted { mtu: bridge.mtu, mac, master, port })?;
    if let Some(vlans) = &bridge.vlans {
        vlan::port::enter(host, pair.host, vlans)
            .inspect_err(|_| veth::take_back(host, pair.host))?;
    }
    if let Some(gateway) = bridge.vlan_gateway {
        undo.push(move || drop(vlan::gateway::remove_if_unused(host, gateway)));
    }
    undo.push(move || veth::take_back(host, pair.host));
    Ok(pair)
}

/// Gives the bridge its addresses; or the gateway of the VLAN, which then is in the result too.
fn give_addresses(
    bridge: &Bridge,
    host: &Netlink,
    found: &Link,
    wanted: &[IpNet],
    missing: &[Missing],
) -> Result<Option<Interface>, Error> {
    match bridge.vlan_gateway.filter(|_| !wanted.is_empty()) {
        Some(gateway) => vlan::gateway::provide(host, bridge, gateway, found, wanted).map(Some),
        None => host::give_addresses(host, found, missing).map(|()| None),
    }
}

/// The container's side, unless it is to stay down.
fn bring_up(
    bridge: &Bridge,
    ns: &Netns,
    pair: &Pair,
    result: &CniResult,
) -> Result<Option<Up>, Error> {
    if bridge.leave_down {
        return Ok(None);
    }
    let dad = if bridge.dad { Dad::Wait } else { Dad::Skip };
    let announce = match (result.ips.is_empty(), bridge.mac) {
        (true, _) => Announce::Never,
        (false, Some(_)) => Announce::Now,
        (false, None) => Announce::Later,
    };
    let manner = Manner { addresses: AddrOptions::default(), dad, announce };
    pod::give_addresses(ns, pair.container, &result.ips, manner).map(Some)
}

fn interfaces(
    request: &Request,
    bridge: &Bridge,
    mac: Option<MacAddr>,
    pair: &Pair,
) -> Vec<Interface> {
    let mac = mac.map(|mac| mac.to_string()).unwrap_or_default();
    let on_host = Interface { name: bridge.name.to_string(), mac, ..Interface::default() };
    [on_host].into_iter().chain(pair.interfaces(request)).collect()
}

/// The gateway of a VLAN goes with the last container in it.
fn del(request: &Request) -> Result<(), Error> {
    let removed = veth::del(request, RULES);
    let left = leave_vlan(request);
    Error::all([removed, left])
}

fn gc(request: &Request) -> Result<(), Error> {
    if request.valid_attachments()?.is_none() {
        return Ok(());
    }
    let removed = veth::gc(request, RULES);
    let left = leave_vlan(request);
    Error::all([removed, left])
}

fn leave_vlan(request: &Request) -> Result<(), Error> {
    let Some(gateway) = conf::vlan_gateway(request) else { return Ok(()) };
    let host = Netlink::open().or_fault("open a netlink socket")?;
    vlan::gateway::remove_if_unused(&host, gateway)
}

fn status(request: &Request) -> Result<(), Error> {
    let bridge = Bridge::understand(request)?;
    host::check_usable(&bridge)?;
    if bridge.check_spoofing {
        spoofing::status()?;
    }
    bridge.masquerade.as_ref().map_or(Ok(()), Masquerade::status)?;
    delegated::status(request)
}
