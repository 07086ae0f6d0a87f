// SPDX-License-Identifier: Apache-2.0
//! `tap`: creates an interface in the container whose other end is a file, for a virtual machine.

use std::ffi::CString;

use cni::{CniResult, Code, Error, IpConfig, Plugin, Request, Version};
use kernel::addr::AddrOptions;
use kernel::link::{self, Link, Relocation};
use kernel::tun::{self, NewTap};
use kernel::{IfIndex, IfName, MacAddr, Netlink, Netns};
use serde::Deserialize;

use crate::attach::dns::DnsConf;
use crate::attach::interface::{self, AddressOptions, ArpAnnounce, Dad};
use crate::attach::mac::{self, Source};
use crate::attach::undo::{Undo, or_undo};
use crate::attach::{check, container_link, ipam, names, netns, veth};
use crate::error::Context;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "tap",
    about: "creates a tap interface in the container, for a virtual machine",
    versions: Version::ALL,
    add,
    del,
    check,
    status,
    gc: container_link::gc,
};

/// The kernel's kind of tun and tap interfaces.
const KIND: &str = "tun";

/// The largest MTU of a tap: a frame of 65535 bytes without its header.
const MAX_MTU: u32 = 65521;

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct TapConf {
    multi_queue: bool,
    mtu: i64,
    owner: Option<u32>,
    group: Option<u32>,
    selinux_context: String,
    bridge: String,
    dns: DnsConf,
}

/// The parsed configuration.
#[derive(Debug)]
struct Tap {
    multi_queue: bool,
    mtu: Option<u32>,
    mac: Option<MacAddr>,
    owner: Option<u32>,
    group: Option<u32>,
    label: Option<CString>,
    bridge: Option<IfName>,
    dns: DnsConf,
}

fn parse(request: &Request) -> Result<Tap, Error> {
    let conf: TapConf = request.conf()?;
    let bridge = Some(conf.bridge.as_str()).filter(|name| !name.is_empty());
    let bridge = bridge.map(str::parse).transpose().map_err(|cause: kernel::IfNameError| {
        Error::because(Code::INVALID_CONFIG, "key \"bridge\"", &cause)
    })?;
    Ok(Tap {
        multi_queue: conf.multi_queue,
        mtu: veth::parse_mtu(conf.mtu, MAX_MTU)?,
        mac: mac::requested(request, &[Source::RuntimeConfig, Source::Environment, Source::Conf])?,
        owner: parse_id("owner", conf.owner)?,
        group: parse_id("group", conf.group)?,
        label: parse_label(&conf.selinux_context)?,
        bridge,
        dns: conf.dns,
    })
}

fn parse_id(key: &str, id: Option<u32>) -> Result<Option<u32>, Error> {
    if id == Some(u32::MAX) {
        let msg = format!("key {key:?} is {}, which is not a valid ID", u32::MAX);
        return Err(Error::invalid_config(msg).with_details("allowed are 0 to 4294967294"));
    }
    Ok(id)
}

fn parse_label(context: &str) -> Result<Option<CString>, Error> {
    if context.is_empty() {
        return Ok(None);
    }
    let label = CString::new(context);
    label.map(Some).map_err(|_| {
        Error::invalid_config(format!(
            "key \"selinuxContext\" is {context:?}, which contains a NUL"
        ))
    })
}

fn without_selinux(tap: &Tap) -> Option<String> {
    let label = tap.label.as_ref().filter(|_| !tun::is_selinux_enabled())?;
    Some(format!("key \"selinuxContext\" is {label:?}, but SELinux is not enabled on this host"))
}

fn add(request: &Request) -> Result<CniResult, Error> {
    let tap = parse(request)?;
    if let Some(msg) = without_selinux(&tap) {
        return Err(Error::invalid_config(msg));
    }
    let ns = netns::open(request)?;
    let inside = ns.netlink().context("open a socket in the container's namespace")?;
    let bridge = tap.bridge.map(|name| find_bridge(&inside, name)).transpose()?;
    or_undo(|undo| build(request, &tap, &ns, &inside, bridge, undo))
}

fn build<'a>(
    request: &'a Request,
    tap: &Tap,
    ns: &'a Netns,
    inside: &'a Netlink,
    bridge: Option<IfIndex>,
    undo: &mut Undo<'a>,
) -> Result<CniResult, Error> {
    let name = netns::ifname(request)?;
    let create_link = move |undo: &mut Undo<'a>| {
        create(request, tap, ns, name)?;
        undo.push(move || drop(inside.apply([link::remove(name)])));
        let link = interface::find(inside, name)?;
        configure_link(request, tap, inside, &link, bridge)?;
        Ok(link)
    };
    let bring_up = || interface::bring_up(ns, name, Dad::Skip);
    let (ipam_result, link) = ipam::add_with_interface(request, create_link, bring_up, undo)?;
    let has_addresses = ipam_result.is_some();
    let mut result = ipam_result.unwrap_or_default();
    configure(ns, name, &result, has_addresses)?;
    for ip in &mut result.ips {
        ip.interface = Some(0);
    }
    result.interfaces = vec![interface::to_result_interface(request, tap.mac.or(link.mac))];
    tap.dns.override_in(&mut result);
    Ok(result)
}

fn find_bridge(inside: &Netlink, name: IfName) -> Result<IfIndex, Error> {
    let found = link::by_name(inside, name).context("look for the bridge")?;
    match found {
        Some(link) if link.is_kind("bridge") => Ok(link.index),
        Some(_) => {
            let msg = format!("failed to get bridge {name}: it is not a bridge");
            Err(Error::invalid_config(msg).with_details(format!("key \"bridge\" is \"{name}\"")))
        }
        None => {
            let msg = format!("failed to get bridge {name}: it is not in the container");
            Err(Error::invalid_config(msg).with_details(format!(
                "key \"bridge\" is \"{name}\"; the bridge must exist before the tap"
            )))
        }
    }
}

fn create(request: &Request, tap: &Tap, ns: &Netns, name: IfName) -> Result<(), Error> {
    let new = NewTap {
        name,
        multi_queue: tap.multi_queue,
        owner: tap.owner,
        group: tap.group,
        label: tap.label.as_deref(),
    };
    match ns.enter(|| tun::create(&new)).and_then(|created| created) {
        Err(error) if error.already_exists() => {
            netns::refuse_existing(request)?;
            Err(error).context("create tap interface")
        }
        other => other.context("create tap interface"),
    }
}

/// Sets the properties that /dev/net/tun cannot set at creation, in one batch.
fn configure_link(
    request: &Request,
    tap: &Tap,
    inside: &Netlink,
    link: &Link,
    bridge: Option<IfIndex>,
) -> Result<(), Error> {
    let group = names::attachment_group(&request.network, &request.attachment());
    let mut requests = vec![link::relocate(
        link.index,
        &Relocation { group: Some(group), ..Relocation::default() },
    )];
    requests.extend(tap.mtu.map(|mtu| link::set_mtu(link.index, mtu)));
    requests.extend(tap.mac.map(|mac| link::set_mac(link.index, mac)));
    requests.extend(bridge.map(|bridge| link::set_master(link.index, bridge)));
    inside.apply(requests).context("configure the tap interface")
}

/// No duplicate address detection: the other end is not connected yet, so nothing could answer.
fn configure(ns: &Netns, name: IfName, result: &CniResult, announce: bool) -> Result<(), Error> {
    let addresses = AddrOptions { nodad: true, ..AddrOptions::default() };
    let announce = if announce { ArpAnnounce::Now } else { ArpAnnounce::Never };
    let options = AddressOptions { addresses, dad: Dad::Skip, announce };
    let ips: &[IpConfig] = &result.ips;
    interface::configure(ns, name, ips, options, |index| {
        interface::routes(index, ips, &result.routes)
    })
}

/// Removes the interface, then releases the addresses; with dhcp in the opposite order. If the
/// namespace is gone, so is the interface.
fn del(request: &Request) -> Result<(), Error> {
    ipam::del_with_interface(request, || {
        netns::open_if_exists(request).map_or(Ok(()), |ns| remove(request, &ns))
    })
}

fn remove(request: &Request, ns: &Netns) -> Result<(), Error> {
    let name = netns::ifname(request)?;
    let group = names::attachment_group(&request.network, &request.attachment());
    ns.netlink()
        .and_then(|inside| match link::by_name(&inside, name)? {
            Some(link) if is_own(&link, group) => link::remove_in_background(&inside, link.index),
            _ => Ok(()),
        })
        .context("remove the tap interface")
}

/// Interfaces of the Go plugin are in no group. An interface of another kind or group belongs to
/// another attachment.
fn is_own(link: &Link, group: u32) -> bool {
    link.is_kind(KIND) && (link.group == group || link.group == 0)
}

fn check(request: &Request) -> Result<(), Error> {
    let tap = parse(request)?;
    ipam::check(request)?;
    let result = request.required_prev_result()?;
    let inside = netns::open(request)?;
    let inside = inside.netlink().context("open a socket in the container's namespace")?;
    let interface = check::container_interface(&result, request)?;
    let link = check::interface(&inside, interface, KIND)?;
    let name = link.name;
    if !link.is_up() {
        return Err(Error::internal(format!("Interface {name} is down")));
    }
    check::mtu(&link, interface, tap.mtu, request.version)?;
    if let Some(bridge) = tap.bridge
        && link.master != Some(find_bridge(&inside, bridge)?)
    {
        return Err(Error::internal(format!("interface {name} is not a port of bridge {bridge}")));
    }
    check::addresses(&inside, link.index, &result.ips)?;
    check::routes(&inside, &result.routes)
}

fn status(request: &Request) -> Result<(), Error> {
    let tap = parse(request)?;
    if !tun::is_supported().context("ask the kernel for its features")? {
        let msg = "this kernel has no tap interfaces, or /dev/net/tun is missing";
        return Err(Error::new(Code::NOT_AVAILABLE, msg));
    }
    if let Some(msg) = without_selinux(&tap) {
        return Err(Error::new(Code::NOT_AVAILABLE, msg));
    }
    ipam::status(request)
}
