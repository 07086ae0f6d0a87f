// SPDX-License-Identifier: Apache-2.0
//! `host-device`: moves an interface of the host into the container and back.

mod move_device;
mod saved_config;
mod select;

use cni::{CniResult, Code, Error, Plugin, Request, Version};
use kernel::addr::AddrOptions;
use kernel::link::{self, Link};
use kernel::rule::{self, Rule};
use kernel::{IfName, Netlink, Netns};
use serde::Deserialize;

use self::move_device::Device;
use self::saved_config::{SavedConfig, SavedDevice};
use self::select::{Choice, Selector};
use crate::attach::dns::DnsConf;
use crate::attach::interface::{self, AddressOptions, ArpAnnounce, Dad};
use crate::attach::undo::{Undo, or_undo};
use crate::attach::{check, ipam, netns};
use crate::error::Context;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "host-device",
    about: "moves an interface of the host into the container",
    versions: Version::ALL,
    add,
    del,
    check,
    status,
    gc,
};

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct HostDeviceConf {
    use_interface_network: bool,
    dns: DnsConf,
}

fn add(request: &Request) -> Result<CniResult, Error> {
    let conf: HostDeviceConf = request.conf()?;
    let choice = select::parse(request)?;
    let ns = netns::open(request)?;
    let host = Netlink::open().context("open a netlink socket")?;
    let mut result = match choice {
        Choice::Interface(selector) => {
            or_undo(|undo| move_in(request, &conf, &selector, &host, &ns, undo))?
        }
        _ => without_interface(request)?,
    };
    for ip in &mut result.ips {
        ip.interface = Some(0);
    }
    conf.dns.override_in(&mut result);
    Ok(result)
}

/// A device with a user-space driver: the addresses are for the program that uses it.
fn without_interface(request: &Request) -> Result<CniResult, Error> {
    ipam::refuse_if_needs_interface(request, "a user-space program has the interface")?;
    let mut result = ipam::add(request)?.unwrap_or_default();
    result.interfaces = vec![interface::to_result_interface(request, None)];
    Ok(result)
}

fn move_in<'a>(
    request: &'a Request,
    conf: &HostDeviceConf,
    selector: &Selector,
    host: &'a Netlink,
    ns: &'a Netns,
    undo: &mut Undo<'a>,
) -> Result<CniResult, Error> {
    netns::refuse_existing(request)?;
    let device = find(selector, host, request)?;
    let saved = SavedDevice::read(host, &device.link)?;
    let config =
        if conf.use_interface_network { saved.config.clone() } else { SavedConfig::default() };
    let interface = interface::to_result_interface(request, device.link.mac);
    let move_link = move |undo: &mut Undo<'a>| {
        let moved = device.move_in(request, host, ns);
        undo.push(move || rollback(request, host, ns, &device, &saved));
        moved.context("move the device into the container")
    };
    let bring_up = || interface::bring_up(ns, netns::ifname(request)?, Dad::Wait);
    let (ipam_result, ()) = ipam::add_with_interface(request, move_link, bring_up, undo)?;
    let mut result = ipam_result.unwrap_or_default();
    let config = config.without(&result);
    // Rules do not belong to the device, so they are still on the host.
    let rules = config.rules(host)?;
    configure(request, ns, &result, &config)?;
    copy_rules(ns, rules, undo)?;
    result.ips.splice(..0, config.ips());
    result.routes.splice(..0, config.result_routes());
    result.interfaces = vec![interface];
    Ok(result)
}

fn find(selector: &Selector, host: &Netlink, request: &Request) -> Result<Device, Error> {
    match selector.find(host, &request.network)? {
        Some(link) if link.is_loopback() => Err(loopback(&link)),
        Some(link) => Ok(Device::new(link, &request.network)),
        None => Err(Error::internal(format!(
            "failed to find host device: device {selector} is not on the host"
        ))
        .with_details("it may be in another container, or its driver is not loaded")),
    }
}

fn loopback(link: &Link) -> Error {
    let msg =
        format!("device {} is the host's loopback interface, which cannot be moved", link.name);
    Error::invalid_config(msg)
}

fn rollback(request: &Request, host: &Netlink, ns: &Netns, device: &Device, saved: &SavedDevice) {
    if let Some(index) = device.rollback(request, host, ns) {
        saved.restore(host, index);
    }
}

/// Waits for duplicate address detection, because other hosts may be on the device's network.
fn configure(
    request: &Request,
    ns: &Netns,
    result: &CniResult,
    config: &SavedConfig,
) -> Result<(), Error> {
    let options = AddressOptions {
        addresses: AddrOptions::default(),
        dad: Dad::Wait,
        announce: ArpAnnounce::Never,
    };
    let ips = [config.ips(), result.ips.clone()].concat();
    interface::configure(ns, netns::ifname(request)?, &ips, options, |index| {
        let mut routes = config.routes_by(index);
        routes.extend(interface::routes(index, &result.ips, &result.routes));
        routes
    })
}

/// Rules do not belong to the device, so the kernel does not move them.
fn copy_rules<'a>(ns: &Netns, rules: Vec<Rule>, undo: &mut Undo<'a>) -> Result<(), Error> {
    if rules.is_empty() {
        return Ok(());
    }
    let inside = ns.netlink().context("open a socket in the container's namespace")?;
    let results = inside.apply_each(rules.iter().map(rule::add));
    undo.push(move || drop(inside.apply_each(rules.iter().map(rule::remove))));
    let failed = results.into_iter().filter_map(Result::err).find(|error| !error.already_exists());
    failed.map_or(Ok(()), Err).context("copy the device's rules")
}

/// Releases the addresses after the device is back on the host; with dhcp before.
fn del(request: &Request) -> Result<(), Error> {
    ipam::del_with_interface(request, || remove(request))
}

/// When a namespace is removed, the kernel moves physical devices back to the host, but under other
/// names.
fn remove(request: &Request) -> Result<(), Error> {
    let host = Netlink::open().context("open a netlink socket")?;
    match find_inside(request)? {
        Some((inside, link)) => move_back(request, &host, &inside, &link),
        None => {
            let is_own = |link: &Link| move_device::is_own(link, request);
            move_device::restore_names(&host, &request.network, is_own, is_own)
        }
    }
}

fn find_inside(request: &Request) -> Result<Option<(Netlink, Link)>, Error> {
    let Some(ns) = netns::open_if_exists(request) else { return Ok(None) };
    let inside = ns.netlink().context("open a socket in the container's namespace")?;
    let link = move_device::find_moved(&inside, request)?;
    Ok(link.map(|link| (inside, link)))
}

fn move_back(
    request: &Request,
    host: &Netlink,
    inside: &Netlink,
    link: &Link,
) -> Result<(), Error> {
    // Without an alias, the name on the host is unknown: the device keeps its current name.
    let name = move_device::alias_name(link).unwrap_or(link.name);
    let config = config_in(request);
    if let Some(config) = &config {
        let rules = config.rules(inside)?;
        inside.apply_each(rules.iter().map(rule::remove));
    }
    let new_name =
        move_device::move_back(inside, link, name).context("move the device to the host")?;
    if new_name != name {
        eprintln!("host-device: name {name} is taken on the host, the device is named {new_name}");
    }
    // With an IPAM plugin, the result does not show which addresses belong to the device.
    match config {
        Some(config) if matches!(request.ipam_type(), Ok(None)) => restore(host, new_name, &config),
        _ => Ok(()),
    }
}

/// The configuration that the device brought along, from the result: changes made inside the
/// container must not reach the host.
fn config_in(request: &Request) -> Option<SavedConfig> {
    let conf: HostDeviceConf = request.conf().ok()?;
    let result = request.prev_result().ok()?.filter(|_| conf.use_interface_network)?;
    Some(SavedConfig::of_result(&result))
}

fn restore(host: &Netlink, name: IfName, config: &SavedConfig) -> Result<(), Error> {
    let index = link::index_of(host, name).context("look for the device")?;
    config.restore(host, index, true);
    Ok(())
}

fn check(request: &Request) -> Result<(), Error> {
    let choice = select::parse(request)?;
    ipam::check(request)?;
    let result = request.required_prev_result()?;
    let interface = check::container_interface(&result, request)?;
    if choice == Choice::Userspace {
        return Ok(());
    }
    let inside = netns::open(request)?;
    let inside = inside.netlink().context("open a socket in the container's namespace")?;
    let link = check::any_interface(&inside, interface)?;
    if !link.is_up() {
        return Err(Error::internal(format!("Interface {} is down", link.name)));
    }
    if move_device::alias_name(&link).is_none() {
        let msg = format!("alias of {} is missing, which stores its name on the host", link.name);
        return Err(Error::internal(msg));
    }
    check::addresses(&inside, link.index, &result.ips)?;
    check::routes(&inside, &result.routes)
}

fn status(request: &Request) -> Result<(), Error> {
    if let Choice::Interface(selector) = select::parse(request)? {
        let host = Netlink::open().context("open a netlink socket")?;
        let found = match selector.has_device() {
            true => None,
            false => selector.find(&host, &request.network)?,
        };
        if let Some(link) = found.as_ref().filter(|link| link.is_loopback()) {
            return Err(loopback(link));
        }
        let exists = selector.has_device() || found.is_some();
        if !exists && !move_device::is_in_container(&host, &request.network, &selector)? {
            let msg = format!("this host has no device {selector}");
            return Err(Error::new(Code::NOT_AVAILABLE, msg));
        }
    }
    ipam::status(request)
}

fn gc(request: &Request) -> Result<(), Error> {
    if request.valid_attachments()?.is_none() {
        return Ok(());
    }
    let host = Netlink::open().context("open a netlink socket")?;
    ipam::gc_with_interfaces(request, || {
        move_device::restore_names(&host, &request.network, |_| false, |_| true)
    })
}
