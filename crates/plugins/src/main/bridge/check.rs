// SPDX-License-Identifier: Apache-2.0
//! CHECK: the bridge, its port, the container's interface, addresses and routes are as ADD made
//! them.

use cni::{Error, Interface, IpConfig, Request};
use ipnet::IpNet;
use kernel::link::{Detail, Link, PortOptions};
use kernel::{Netlink, addr};

use super::conf::Bridge;
use super::spoofing;
use super::vlan;
use crate::attach::{check, ipam, netns, prev_result};
use crate::error::Context;

pub(super) fn check(request: &Request) -> Result<(), Error> {
    let bridge = Bridge::parse(request)?;
    ipam::check(request)?;
    let result = request.required_prev_result()?;
    let ns = netns::open(request)?;
    let host = Netlink::open().context("open a netlink socket")?;
    let inside = ns.netlink().context("open a socket in the container's namespace")?;

    let on_host = result.interfaces.iter().find(|one| is_host_bridge(one, &bridge));
    let on_host = on_host.ok_or_else(|| {
        let name = bridge.name;
        Error::internal(format!("CNI created bridge {name} in host namespace was not found"))
            .with_details(format!("prevResult has no bridge \"{name}\""))
    })?;
    let bridge_link = check::interface(&host, on_host, "bridge")?;
    let container = check::container_interface(&result, request)?;
    let container = check::interface(&inside, container, "veth")?;
    let port = find_port(&host, &result.interfaces, &bridge, &container)?;
    check_bridge(&bridge, &bridge_link)?;
    check_port(&bridge, &bridge_link, &port)?;
    if let Some(mac) = container.mac.filter(|_| bridge.check_spoofing) {
        spoofing::check(request, port.name, mac)?;
    }
    if let Some(vlans) = &bridge.vlans {
        vlan::port::check(&host, &port, vlans)?;
    }
    if bridge.leave_down {
        return Ok(());
    }
    if !container.is_up() {
        return Err(Error::internal(format!("Interface {} is down", container.name)));
    }
    let ips: Vec<IpConfig> = prev_result::addresses(&result, request).cloned().collect();
    check::addresses(&inside, container.index, &ips)?;
    check::routes(&inside, &result.routes)?;
    if let Some(masquerade) = &bridge.masquerade {
        masquerade.check(request, &ips)?;
    }
    check_gateways(&host, &bridge, &bridge_link, &ips)
}

fn is_host_bridge(interface: &Interface, bridge: &Bridge) -> bool {
    interface.sandbox.is_empty() && interface.name == bridge.name.as_str()
}

/// Finds the host end of the container's interface among the interfaces of the result.
fn find_port(
    host: &Netlink,
    interfaces: &[Interface],
    bridge: &Bridge,
    container: &Link,
) -> Result<Link, Error> {
    let gateway = bridge.vlan_gateway.map(|gateway| gateway.name);
    let is_gateway = |name: &str| Some(name) == gateway.as_ref().map(|name| name.as_str());
    let is_candidate = |one: &&Interface| {
        one.sandbox.is_empty() && one.name != bridge.name.as_str() && !is_gateway(&one.name)
    };
    let candidates = interfaces.iter().filter(is_candidate);
    let msg = format!("CNI veth created for bridge {} was not found", bridge.name);
    let mut last = Error::internal(msg)
        .with_details("prevResult has no host end of the container's interface");
    for candidate in candidates {
        match check::interface(host, candidate, "veth") {
            Ok(link) if link.link == Some(container.index) => return Ok(link),
            Ok(link) => {
                let msg =
                    format!("{} is not the other end of the container's interface", link.name);
                last = Error::internal(msg);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn check_bridge(bridge: &Bridge, link: &Link) -> Result<(), Error> {
    if !link.is_up() {
        return Err(Error::internal(format!("bridge {} is down", link.name)));
    }
    if bridge.promisc && link.promiscuity == 0 {
        let msg = format!("bridge {} is not promiscuous, key \"promiscMode\" is true", link.name);
        return Err(Error::internal(msg));
    }
    if bridge.vlans.is_some() && link.detail != (Detail::Bridge { vlan_filtering: true }) {
        return Err(Error::internal(format!("bridge {} does not filter VLANs", link.name)));
    }
    Ok(())
}

/// The bridge, or the gateway of the VLAN, must have the gateway addresses.
fn check_gateways(
    host: &Netlink,
    bridge: &Bridge,
    link: &Link,
    ips: &[IpConfig],
) -> Result<(), Error> {
    if !bridge.is_gateway || ips.is_empty() {
        return Ok(());
    }
    let of_vlan = bridge.vlan_gateway.map(|gateway| vlan::gateway::check(host, gateway, link));
    let of_vlan = of_vlan.transpose()?;
    let link = of_vlan.as_ref().unwrap_or(link);
    let found = addr::list(host, Some(link.index)).context("list the gateway's addresses")?;
    for ip in ips {
        let expected = ip.gateway.and_then(|gw| IpNet::new(gw, ip.address.prefix_len()).ok());
        let is_present = |expected: IpNet| found.iter().any(|one| one.prefix == expected);
        if let Some(expected) = expected.filter(|expected| !is_present(*expected)) {
            let name = link.name;
            let kind = if of_vlan.is_some() { "interface" } else { "bridge" };
            return Err(Error::internal(format!("address {expected} is missing on {kind} {name}")));
        }
    }
    Ok(())
}

fn check_port(bridge: &Bridge, bridge_link: &Link, port: &Link) -> Result<(), Error> {
    let (name, bridge_name) = (port.name, bridge_link.name);
    if port.master != Some(bridge_link.index) {
        return Err(Error::internal(format!("{name} is not a port of bridge {bridge_name}")));
    }
    if !port.is_up() {
        return Err(Error::internal(format!("bridge port {name} is down")));
    }
    let PortOptions { hairpin, isolated, .. } = port.port.unwrap_or_default();
    // The plugin firewall may isolate a port too.
    let isolated = isolated.filter(|_| bridge.isolated);
    let options =
        [("hairpinMode", bridge.hairpin, hairpin), ("portIsolation", bridge.isolated, isolated)];
    for (key, expected, found) in options {
        if found.is_some_and(|found| found != expected) {
            let msg = format!("bridge port {name} has {key} {}, expected {expected}", !expected);
            return Err(Error::internal(msg));
        }
    }
    Ok(())
}
