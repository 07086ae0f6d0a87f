// SPDX-License-Identifier: Apache-2.0
//! `host-device`: moves an interface of the host into the container, and home again.

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
use self::saved_config::{Before, Carried};
use self::select::{Choice, Selector};
use crate::attach::dns::DnsConf;
use crate::attach::interface::{self, AddressOptions, ArpAnnounce, Dad};
use crate::attach::undo::{Undo, or_undo};
use crate::attach::{check, ipam, netns};
use crate::error::Context;

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
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
            or_undo(|undo| bring(request, &conf, &selector, &host, &ns, undo))?
        }
        _ => without_interface(request)?,
    };
    for ip in &mut result.ips {
        ip.interface = Some(0);
    }
    conf.dns.override_in(&mut result);
    Ok(result)
}

/// A device that a program in user space drives: addresses are for that program.
fn without_interface(request: &Request) -> Result<CniResult, Error> {
    ipam::refuse_if_needs_interface(request, "a program in user space has it")?;
    let mut result = ipam::add(request)?.unwrap_or_default();
    result.interfaces = vec![interface::to_result_interface(request, None)];
    Ok(result)
}

fn bring<'a>(
    request: &'a Request,
    conf: &HostDeviceConf,
    selector: &Selector,
    host: &'a Netlink,
    ns: &'a Netns,
    undo: &mut Undo<'a>,
) -> Result<CniResult, Error> {
    netns::refuse_existing(request)?;
    let device = find(selector, host, request)?;
    let before = Before::read(host, &device.link)?;
    let carried =
        if conf.use_interface_network { before.carried.clone() } else { Carried::default() };
    let interface = interface::to_result_interface(request, device.link.mac);
    let take_in = move |undo: &mut Undo<'a>| {
        let moved = device.take_in(request, host, ns);
        undo.push(move || take_back(request, host, ns, &device, &before));
        moved.context("move the device into the container")
    };
    let bring_up = || interface::bring_up(ns, netns::ifname(request)?, Dad::Wait);
    let (given, ()) = ipam::add_with_interface(request, take_in, bring_up, undo)?;
    let mut result = given.unwrap_or_default();
    let carried = carried.without(&result);
    // They are not the device's, so they are still there.
    let rules = carried.rules(host)?;
    configure(request, ns, &result, &carried)?;
    copy_rules(ns, rules, undo)?;
    result.ips.splice(..0, carried.ips());
    result.routes.splice(..0, carried.routes_told());
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
    let msg = format!("device {} is the host's loopback, which cannot move", link.name);
    Error::invalid_config(msg)
}

fn take_back(request: &Request, host: &Netlink, ns: &Netns, device: &Device, before: &Before) {
    if let Some(index) = device.take_back(request, host, ns) {
        before.restore(host, index);
    }
}

/// The network outside is not ours, so an IPv6 address is asked for there as the kernel does.
fn configure(
    request: &Request,
    ns: &Netns,
    given: &CniResult,
    carried: &Carried,
) -> Result<(), Error> {
    let options = AddressOptions {
        addresses: AddrOptions::default(),
        dad: Dad::Wait,
        announce: ArpAnnounce::Never,
    };
    let ips = [carried.ips(), given.ips.clone()].concat();
    interface::configure(ns, netns::ifname(request)?, &ips, options, |index| {
        let mut routes = carried.routes_by(index);
        routes.extend(interface::routes(index, &given.ips, &given.routes));
        routes
    })
}

/// Rules are not the device's, so they do not go with it.
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

/// The address is given back when the device that holds it is home, but by dhcp before.
fn del(request: &Request) -> Result<(), Error> {
    ipam::del_with_interface(request, || remove(request))
}

/// A namespace that is gone has sent its devices home itself, if they are not made of software, but not
/// under their names.
fn remove(request: &Request) -> Result<(), Error> {
    let host = Netlink::open().context("open a netlink socket")?;
    match find_inside(request)? {
        Some((inside, link)) => send_home(request, &host, &inside, &link),
        None => {
            let is_own = |link: &Link| move_device::is_marked(link, request);
            move_device::rename_those_at_home(&host, &request.network, is_own, is_own)
        }
    }
}

fn find_inside(request: &Request) -> Result<Option<(Netlink, Link)>, Error> {
    let Some(ns) = netns::open_if_exists(request) else { return Ok(None) };
    let inside = ns.netlink().context("open a socket in the container's namespace")?;
    let link = move_device::find_brought(&inside, request)?;
    Ok(link.map(|link| (inside, link)))
}

fn send_home(
    request: &Request,
    host: &Netlink,
    inside: &Netlink,
    link: &Link,
) -> Result<(), Error> {
    // Without an alias nobody knows its name; then it keeps the one that it has.
    let name = move_device::alias_name(link).unwrap_or(link.name);
    let carried = carried_in(request);
    if let Some(carried) = &carried {
        let rules = carried.rules(inside)?;
        inside.apply_each(rules.iter().map(rule::remove));
    }
    let got = move_device::give_back(inside, link, name).context("move the device to the host")?;
    if got != name {
        eprintln!("host-device: name {name} is taken on the host, the device is there as {got}");
    }
    // With an IPAM plugin nobody knows which addresses are its.
    match carried {
        Some(carried) if matches!(request.ipam_type(), Ok(None)) => restore(host, got, &carried),
        _ => Ok(()),
    }
}

/// What the device brought along: what the result says, as what the container has made of it is not the
/// host's business.
fn carried_in(request: &Request) -> Option<Carried> {
    let conf: HostDeviceConf = request.conf().ok()?;
    let result = request.prev_result().ok()?.filter(|_| conf.use_interface_network)?;
    Some(Carried::of_result(&result))
}

fn restore(host: &Netlink, name: IfName, carried: &Carried) -> Result<(), Error> {
    let index = link::index_of(host, name).context("look for the device")?;
    carried.restore(host, index, true);
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
        let msg = format!("alias of {}, which keeps its name on the host, is missing", link.name);
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
        let is_there = selector.has_device() || found.is_some();
        if !is_there && !move_device::is_in_a_container(&host, &request.network, &selector)? {
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
        move_device::rename_those_at_home(&host, &request.network, |_| false, |_| true)
    })
}
