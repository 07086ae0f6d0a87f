// SPDX-License-Identifier: Apache-2.0
//! A veth pair between host and container, for the plugins that use one.

use std::collections::HashSet;
use std::os::fd::AsFd;

use cni::{Attachment, Code, Error, Interface, Request};
use kernel::link::{self, Kind, Link, NewLink, Peer, PortOptions};
use kernel::{IfIndex, IfName, MacAddr, Netlink, Netns};

use crate::fault::OrFault;
use crate::{delegated, identity, pod};

/// How many names of the host end are tried; one is taken about once in four thousand million.
const ATTEMPTS: u32 = 4;

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

/// Makes the pair: the host's end up, in its bridge and under a second name that tells whose it is;
/// the container's end born in its namespace.
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
    let attachment = request.attachment();
    for attempt in 0..ATTEMPTS {
        let name = identity::host_ifname(&request.network, &attachment, attempt);
        let pair = Pair { host: name, host_mac, container, container_mac };
        match try_create(host, ns, request, wanted, &pair) {
            Ok(()) => return Ok(pair),
            Err(error) if error.is_exists() => {
                refuse_second_attachment(host, request)?;
            }
            Err(error) => return Err(error).or_fault("create veth pair"),
        }
    }
    Err(Error::internal(format!("all {ATTEMPTS} names for the host's interface are taken")))
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
    new.up = true;
    // Not in one batch with what follows: the kernel goes on after a failure, and under a taken
    // name that would change somebody else's interface.
    host.apply([link::create(&new)])?;
    let altname = identity::altname(&request.network, &request.attachment());
    let mut named = vec![link::add_altname(pair.host, &altname)];
    if wanted.port != PortOptions::default() {
        named.push(link::set_port(pair.host, &wanted.port));
    }
    host.apply(named).inspect_err(|_| take_back(host, pair.host))
}

/// Removes a pair that was just made, when what follows has failed.
pub fn take_back(host: &Netlink, name: IfName) {
    // The failure that led here is the one to tell.
    let _ = host.apply([link::remove(name)]);
}

/// A taken name of the host's end is tried again under another one, but a second attachment of
/// the same container and interface is the specification's error.
fn refuse_second_attachment(host: &Netlink, request: &Request) -> Result<(), Error> {
    pod::refuse_existing(request)?;
    match find_on_host(host, request).or_fault("look for the host's interface")? {
        None => Ok(()),
        Some(link) => Err(Error::internal(format!(
            "container {:?} already has interface {:?} on this network: its host end is {}",
            request.container_id, request.ifname, link.name
        ))
        .with_details("DEL must come before a second ADD")),
    }
}

fn find_on_host(host: &Netlink, request: &Request) -> kernel::Result<Option<Link>> {
    link::by_altname(host, &identity::altname(&request.network, &request.attachment()))
}

/// DEL of a plugin that connects by a pair: the address is given back only when the interface that
/// holds it is gone.
pub fn del(request: &Request) -> Result<(), Error> {
    remove(request)?;
    delegated::del(request)
}

/// GC of a plugin that connects by a pair.
pub fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let removed = remove_unlisted(&request.network, &valid);
    let freed = delegated::gc(request);
    Error::join([removed, freed].into_iter().filter_map(Result::err).collect())
}

/// Removes an attachment's interface, wherever it can be found: by its name in the namespace, or
/// by the host end's second name where the namespace cannot be had.
fn remove(request: &Request) -> Result<(), Error> {
    let ifname = pod::ifname(request)?;
    let removed = match pod::open_if_there(request) {
        Some(ns) => remove_inside(&ns, ifname),
        None => Ok(false),
    };
    removed
        .and_then(|is_done| if is_done { Ok(()) } else { remove_on_host(request) })
        .or_fault("remove the container's interface")
}

fn remove_inside(ns: &Netns, ifname: IfName) -> kernel::Result<bool> {
    let inside = ns.netlink()?;
    match link::by_name(&inside, ifname)? {
        Some(link) => link::remove_detached(&inside, link.index).map(|()| true),
        None => Ok(false),
    }
}

fn remove_on_host(request: &Request) -> kernel::Result<()> {
    let host = Netlink::open()?;
    match find_on_host(&host, request)? {
        Some(link) => link::remove_detached(&host, link.index),
        None => Ok(()),
    }
}

/// Removes the interfaces of a network that belong to none of these attachments. Interfaces that
/// others made have no second name of ours and are left alone.
fn remove_unlisted(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let host = Netlink::open().or_fault("open a netlink socket")?;
    let links = link::list(&host).or_fault("list the host's interfaces")?;
    let prefix = identity::altname_prefix(network);
    let kept: HashSet<String> =
        valid.iter().map(|attachment| identity::altname(network, attachment)).collect();
    let is_stale = |name: &String| name.starts_with(&prefix) && !kept.contains(name);
    let stale = links.iter().filter(|link| link.altnames.iter().any(is_stale));
    let removals: Vec<_> = stale.map(|link| link::remove(link.index)).collect();
    let failures = host.apply_each(removals).into_iter().filter_map(Result::err);
    let failures = failures
        .filter(|error| !error.is_not_found())
        .map(|cause| Error::because(Code::INTERNAL, "remove a stale interface", &cause));
    Error::join(failures.collect())
}
