// SPDX-License-Identifier: Apache-2.0
//! A veth pair between host and container, for the plugins that use one.

use std::collections::HashSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::os::fd::AsFd;

use cni::{Attachment, Code, Error, Interface, Request, WhileDown};
use kernel::link::{self, Kind, Link, NewLink, Peer, PortOptions};
use kernel::{IfIndex, IfName, MacAddr, Netlink, Netns};

use crate::fault::OrFault;
use crate::rules::{self, Feature};
use crate::{delegated, go_rules, identity, masquerade, pod};

/// What the pair should be like.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// MTU of both ends.
    pub mtu: Option<u32>,
    /// Hardware address of the container's end.
    pub mac: Option<MacAddr>,
    /// The bridge that the host's end is a port of.
    pub master: Option<IfIndex>,
    /// Options of that port.
    pub port: PortOptions,
}

/// The smallest MTU of IPv4.
pub const LEAST_MTU: u32 = 68;

/// The largest MTU of a pair.
pub const MOST_MTU: u32 = 65535;

/// The `mtu` of a configuration, where 0 means the kernel's choice.
pub fn understand_mtu(written: i64, most: u32) -> Result<Option<u32>, Error> {
    match u32::try_from(written) {
        Ok(0) => Ok(None),
        Ok(mtu) if (LEAST_MTU..=most).contains(&mtu) => Ok(Some(mtu)),
        _ => Err(wrong_mtu(written, most)),
    }
}

/// The error for one that is not allowed.
pub fn wrong_mtu(written: i64, most: impl Display) -> Error {
    Error::invalid_config(format!(
        "key \"mtu\" is {written}, allowed are {LEAST_MTU} to {most}, and 0 for the default"
    ))
}

/// A pair that was made.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// The host's end.
    pub host: IfName,
    /// Its hardware address.
    pub host_mac: MacAddr,
    /// The container's end.
    pub container: IfName,
    /// Its hardware address.
    pub container_mac: MacAddr,
}

impl Pair {
    /// As a result tells of them: host's end, container's end.
    pub fn interfaces(&self, request: &Request) -> [Interface; 2] {
        let interface = |name: IfName, mac: MacAddr, sandbox: &str| Interface {
            name: name.to_string(),
            mac: mac.to_string(),
            sandbox: sandbox.to_owned(),
            ..Interface::default()
        };
        [
            interface(self.host, self.host_mac, ""),
            interface(self.container, self.container_mac, &request.netns),
        ]
    }
}

/// Makes the pair: the host's end up, in its bridge, under a name and in a group that tell whose it
/// is; the container's end born in its namespace.
///
/// We choose the hardware addresses, so that they are known without asking, and so that no udev rule
/// for interfaces with random ones changes them under the container.
pub fn create(
    host: &Netlink,
    ns: &Netns,
    request: &Request,
    wanted: &Wanted,
) -> Result<Pair, Error> {
    let container = pod::ifname(request)?;
    let random = || MacAddr::random().or_fault("choose a hardware address");
    let container_mac = wanted.mac.map_or_else(random, Ok)?;
    let mut host_mac = random()?;
    // A bridge without an address of its own takes the lowest of its ports': this is the highest.
    host_mac.0[0] = 0xfe;
    for name in identity::host_ifnames(&request.network, &request.attachment()) {
        let pair = Pair { host: name, host_mac, container, container_mac };
        match try_create(host, ns, request, wanted, &pair) {
            Ok(()) => return hand_over(host, request, &pair).map(|()| pair),
            Err(error) if error.already_exists() => pod::refuse_existing(request)?,
            Err(error) => return Err(error).or_fault("create veth pair"),
        }
    }
    let (id, ifname) = (&request.container_id, &request.ifname);
    Err(Error::internal(format!("all names for the host end of {ifname:?} of {id:?} are taken"))
        .with_details("DEL must come before a second ADD"))
}

fn try_create(
    host: &Netlink,
    ns: &Netns,
    request: &Request,
    wanted: &Wanted,
    pair: &Pair,
) -> kernel::Result<()> {
    let peer = Peer {
        name: pair.container,
        mac: Some(pair.container_mac),
        mtu: wanted.mtu,
        netns: Some(ns.as_fd()),
    };
    let mut new = NewLink::new(pair.host, Kind::Veth(peer));
    new.mtu = wanted.mtu;
    new.mac = Some(pair.host_mac);
    new.master = wanted.master;
    new.group = Some(identity::group(&request.network));
    new.up = request.while_down.is_none();
    host.apply([link::create(&new)])?;
    if wanted.port == PortOptions::default() {
        return Ok(());
    }
    // Not in one batch with the creation: the kernel goes on after a failure, and under a taken name
    // that would change somebody else's interface.
    host.apply([link::set_port(pair.host, &wanted.port)])
        .inspect_err(|_| take_back(host, pair.host))
}

/// Lets another plugin have the pair before the host's end is up, where one asked for that.
fn hand_over(host: &Netlink, request: &Request, pair: &Pair) -> Result<(), Error> {
    let Some(WhileDown(work)) = request.while_down else { return Ok(()) };
    work(&pair.interfaces(request))
        .and_then(|()| host.apply([link::set_up(pair.host)]).or_fault("bring the host's end up"))
        .inspect_err(|_| take_back(host, pair.host))
}

/// Removes a pair that was just made, when what follows has failed.
pub fn take_back(host: &Netlink, name: IfName) {
    // The failure that led here is the one to tell.
    let _ = host.apply([link::remove(name)]);
}

/// DEL of a plugin that connects by a pair.
pub fn del(request: &Request, features: &[&'static Feature]) -> Result<(), Error> {
    // First, so that the child that removes the interface takes over the wait for this as well.
    let rules = rules::remove(request, features);
    let by_go = remove_rules_of_go(request);
    let freed = delegated::del_with_interface(request, || remove(request));
    Error::all([freed, rules, by_go])
}

/// What the Go plugins made for the same attachment, or ours as they do it.
pub fn remove_rules_of_go(request: &Request) -> Result<(), Error> {
    // A result that cannot be read tells nothing, and that is no reason to leave anything.
    let result = request.prev_result().ok().flatten().unwrap_or_default();
    let addresses: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    let (network, attachment) = (&request.network, request.attachment());
    let by_netlink = go_rules::remove_with(|nft| {
        let spoof_check = go_rules::remove_spoof_check(nft, &attachment);
        let masquerade = go_rules::remove_masquerade(nft, network, &attachment, &addresses);
        spoof_check.and(masquerade).map(drop)
    });
    let by_iptables = masquerade::remove_by_iptables(request, &addresses);
    by_netlink.or_fault("remove rules of the Go plugin").and(by_iptables)
}

/// GC of a plugin that connects by a pair.
pub fn gc(request: &Request, features: &[&'static Feature]) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let freed =
        delegated::gc_with_interfaces(request, || remove_unlisted(&request.network, &valid));
    let rules = rules::gc(request, features, &valid);
    let by_go = go_rules::remove_with(|nft| go_rules::gc_masquerade(nft, &request.network, &valid));
    let by_go = by_go.or_fault("remove stale rules of the Go plugin");
    let by_iptables = masquerade::gc_by_iptables(request, &valid);
    Error::all([freed, rules, by_go, by_iptables])
}

/// Removes an attachment's interface: by the name of its host end, which no other has. Where there is
/// none, it may be one that the Go plugin made, found by its name in the namespace.
fn remove(request: &Request) -> Result<(), Error> {
    let ifname = pod::ifname(request)?;
    Netlink::open()
        .and_then(|host| {
            if remove_on_host(&host, request)? {
                return Ok(());
            }
            let ns = pod::open_if_there(request);
            ns.map_or(Ok(()), |ns| remove_inside(&host, &ns, ifname))
        })
        .or_fault("remove the container's interface")
}

fn remove_on_host(host: &Netlink, request: &Request) -> kernel::Result<bool> {
    let group = identity::group(&request.network);
    let mut found = Vec::new();
    // All are looked for before one is removed: after that a look would wait for the removal.
    for name in identity::host_ifnames(&request.network, &request.attachment()) {
        found.extend(link::by_name(host, name)?.filter(|link| link.group == group));
    }
    for link in &found {
        link::remove_in_background(host, link.index)?;
    }
    Ok(!found.is_empty())
}

/// An interface whose host end is ours belongs to another attachment: its namespace has taken the
/// path of ours, or it is on another network. That one is left alone.
fn remove_inside(host: &Netlink, ns: &Netns, ifname: IfName) -> kernel::Result<()> {
    let inside = ns.netlink()?;
    let Some(link) = link::by_name(&inside, ifname)? else { return Ok(()) };
    let peer = link.link.map(|peer| link::by_index(host, peer)).transpose()?.flatten();
    let is_anothers = |peer: Link| peer.is_kind("veth") && identity::is_host_ifname(peer.name);
    if link.is_kind("veth") && peer.is_some_and(is_anothers) {
        return Ok(());
    }
    link::remove_in_background(&inside, link.index)
}

/// Removes the interfaces of a network that belong to none of these attachments. Interfaces that
/// others made are not in the network's group, or bear other names, and are left alone.
fn remove_unlisted(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let host = Netlink::open().or_fault("open a netlink socket")?;
    let links = link::list(&host).or_fault("list the host's interfaces")?;
    let group = identity::group(network);
    let kept: HashSet<IfName> =
        valid.iter().flat_map(|one| identity::host_ifnames(network, one)).collect();
    let is_stale = |link: &&Link| {
        link.group == group && identity::is_host_ifname(link.name) && !kept.contains(&link.name)
    };
    let removals: Vec<_> =
        links.iter().filter(is_stale).map(|link| link::remove(link.index)).collect();
    let failures = host.apply_each(removals).into_iter().filter_map(Result::err);
    let failures = failures
        .filter(|error| !error.is_not_found())
        .map(|cause| Error::because(Code::INTERNAL, "remove a stale interface", &cause));
    Error::join(failures.collect())
}
