// SPDX-License-Identifier: Apache-2.0
//! A veth pair between host and container, for bridge, ptp and podwire.

use std::collections::HashSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::os::fd::AsFd;

use cni::{Attachment, BeforeLinkUp, Code, Error, Interface, Request};
use kernel::link::{self, Kind, Link, NewLink, Peer, PortOptions};
use kernel::{IfIndex, IfName, MacAddr, Netlink, Netns};

use crate::attach::{ipam, names, netns};
use crate::compat::go_nft;
use crate::error::Context;
use crate::nftables::{self, Feature, masquerade};

/// The properties of a new pair.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DesiredPair {
    /// MTU of both ends.
    pub mtu: Option<u32>,
    /// MAC address of the container end.
    pub mac: Option<MacAddr>,
    /// The bridge that the host end becomes a port of.
    pub master: Option<IfIndex>,
    /// Options of that port.
    pub port: PortOptions,
}

/// The smallest MTU of IPv4.
pub(crate) const MIN_MTU: u32 = 68;

/// The largest MTU of a veth pair.
pub(crate) const MAX_MTU: u32 = 65535;

/// Parses the key `mtu`; 0 leaves the choice to the kernel.
pub(crate) fn parse_mtu(mtu: i64, max: u32) -> Result<Option<u32>, Error> {
    match u32::try_from(mtu) {
        Ok(0) => Ok(None),
        Ok(mtu) if (MIN_MTU..=max).contains(&mtu) => Ok(Some(mtu)),
        _ => Err(invalid_mtu(mtu, max)),
    }
}

pub(crate) fn invalid_mtu(mtu: i64, max: impl Display) -> Error {
    Error::invalid_config(format!(
        "key \"mtu\" is {mtu}, allowed are {MIN_MTU} to {max}, and 0 for the default"
    ))
}

/// A pair that was created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    /// The name of the host end.
    pub host: IfName,
    pub host_mac: MacAddr,
    /// The name of the container end.
    pub container: IfName,
    pub container_mac: MacAddr,
}

impl Pair {
    /// The entries of a result: host end, container end.
    pub(crate) fn interfaces(&self, request: &Request) -> [Interface; 2] {
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

/// Creates the pair: the host end up, in its bridge, with a name and a group derived from the
/// attachment; the container end directly in its namespace.
///
/// The MAC addresses are chosen here, so that they are known without reading them back and no udev
/// rule for random addresses replaces them.
pub(crate) fn create(
    host: &Netlink,
    ns: &Netns,
    request: &Request,
    desired: &DesiredPair,
) -> Result<Pair, Error> {
    let container = netns::ifname(request)?;
    let random = || MacAddr::random().context("choose a MAC address");
    let container_mac = desired.mac.map_or_else(random, Ok)?;
    let mut host_mac = random()?;
    // A bridge without its own MAC address takes the lowest one of its ports: make this one high.
    host_mac.0[0] = 0xfe;
    for name in names::host_ifnames(&request.network, &request.attachment()) {
        let pair = Pair { host: name, host_mac, container, container_mac };
        match try_create(host, ns, request, desired, &pair) {
            Ok(()) => return run_before_link_up(host, request, &pair).map(|()| pair),
            Err(error) if error.already_exists() => netns::refuse_existing(request)?,
            Err(error) => return Err(error).context("create veth pair"),
        }
    }
    let (id, ifname) = (&request.container_id, &request.ifname);
    Err(Error::internal(format!("all names for the host end of {ifname:?} of {id:?} are taken"))
        .with_details("run DEL before a second ADD"))
}

fn try_create(
    host: &Netlink,
    ns: &Netns,
    request: &Request,
    desired: &DesiredPair,
    pair: &Pair,
) -> kernel::Result<()> {
    let peer = Peer {
        name: pair.container,
        mac: Some(pair.container_mac),
        mtu: desired.mtu,
        netns: Some(ns.as_fd()),
    };
    let mut new = NewLink::new(pair.host, Kind::Veth(peer));
    new.mtu = desired.mtu;
    new.mac = Some(pair.host_mac);
    new.master = desired.master;
    new.group = Some(names::network_group(&request.network));
    new.up = request.delegation.before_link_up.is_none();
    host.apply([link::create(&new)])?;
    if desired.port == PortOptions::default() {
        return Ok(());
    }
    // Not in one batch with the creation: the kernel continues after a failure, and if the name is
    // taken it would change an interface of another program.
    host.apply([link::set_port(pair.host, &desired.port)])
        .inspect_err(|_| rollback(host, pair.host))
}

/// Runs the hook that another plugin of this program has set, before the host end is up.
fn run_before_link_up(host: &Netlink, request: &Request, pair: &Pair) -> Result<(), Error> {
    let Some(BeforeLinkUp(hook)) = request.delegation.before_link_up else { return Ok(()) };
    hook(&pair.interfaces(request))
        .and_then(|()| host.apply([link::set_up(pair.host)]).context("bring the host end up"))
        .inspect_err(|_| rollback(host, pair.host))
}

/// Removes a pair that was just created, after a later step has failed.
pub(crate) fn rollback(host: &Netlink, name: IfName) {
    // The error that caused the rollback is the one to report.
    let _ = host.apply([link::remove(name)]);
}

/// DEL of a plugin that uses a pair.
pub(crate) fn del(request: &Request, features: &[&'static Feature]) -> Result<(), Error> {
    // First, so that the background child that removes the interface also waits for this change.
    let rules = nftables::remove(request, features);
    let go_rules = remove_go_rules(request);
    let removed = ipam::del_with_interface(request, || remove(request));
    Error::all([removed, rules, go_rules])
}

/// Removes the rules that the Go plugins, or the iptables backend, made for the same attachment.
pub(crate) fn remove_go_rules(request: &Request) -> Result<(), Error> {
    // If the result cannot be read, the other rules are removed nevertheless.
    let result = request.prev_result().ok().flatten().unwrap_or_default();
    let addresses: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    let (network, attachment) = (&request.network, request.attachment());
    let by_netlink = go_nft::remove_with(|nft| {
        let spoof_check = go_nft::remove_spoof_check(nft, &attachment);
        let masquerade = go_nft::remove_masquerade(nft, network, &attachment, &addresses);
        spoof_check.and(masquerade).map(drop)
    });
    let by_iptables = masquerade::remove_by_iptables(request, &addresses);
    by_netlink.context("remove rules of the Go plugin").and(by_iptables)
}

/// GC of a plugin that uses a pair.
pub(crate) fn gc(request: &Request, features: &[&'static Feature]) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let removed = ipam::gc_with_interfaces(request, || remove_stale(&request.network, &valid));
    let rules = nftables::gc(request, features, &valid);
    let go_rules = go_nft::remove_with(|nft| go_nft::gc_masquerade(nft, &request.network, &valid));
    let go_rules = go_rules.context("remove stale rules of the Go plugin");
    let by_iptables = masquerade::gc_by_iptables(request, &valid);
    Error::all([removed, rules, go_rules, by_iptables])
}

/// Removes the attachment's pair by the name of its host end. If there is none, the Go plugin may
/// have created the interface: then it is found by its name in the namespace.
fn remove(request: &Request) -> Result<(), Error> {
    let ifname = netns::ifname(request)?;
    Netlink::open()
        .and_then(|host| {
            if remove_on_host(&host, request)? {
                return Ok(());
            }
            let ns = netns::open_if_exists(request);
            ns.map_or(Ok(()), |ns| remove_inside(&host, &ns, ifname))
        })
        .context("remove the container's interface")
}

fn remove_on_host(host: &Netlink, request: &Request) -> kernel::Result<bool> {
    let group = names::network_group(&request.network);
    let mut found = Vec::new();
    // Look up all names before the first removal: a lookup after it would wait for the removal.
    for name in names::host_ifnames(&request.network, &request.attachment()) {
        found.extend(link::by_name(host, name)?.filter(|link| link.group == group));
    }
    for link in &found {
        link::remove_in_background(host, link.index)?;
    }
    Ok(!found.is_empty())
}

/// Keeps an interface whose host end has a name of podwire's: it belongs to another attachment,
/// either on another network or because another container now has this namespace path.
fn remove_inside(host: &Netlink, ns: &Netns, ifname: IfName) -> kernel::Result<()> {
    let inside = ns.netlink()?;
    let Some(link) = link::by_name(&inside, ifname)? else { return Ok(()) };
    let peer = link.link.map(|peer| link::by_index(host, peer)).transpose()?.flatten();
    let is_podwire = |peer: Link| peer.is_kind("veth") && names::is_host_ifname(peer.name);
    if link.is_kind("veth") && peer.is_some_and(is_podwire) {
        return Ok(());
    }
    link::remove_in_background(&inside, link.index)
}

/// Removes the pairs of a network that belong to none of these attachments. Interfaces of other
/// programs are not in the network's group or have other names, and are kept.
fn remove_stale(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let host = Netlink::open().context("open a netlink socket")?;
    let links = link::list(&host).context("list the host's interfaces")?;
    let group = names::network_group(network);
    let kept: HashSet<IfName> =
        valid.iter().flat_map(|one| names::host_ifnames(network, one)).collect();
    let is_stale = |link: &&Link| {
        link.group == group && names::is_host_ifname(link.name) && !kept.contains(&link.name)
    };
    let removals: Vec<_> =
        links.iter().filter(is_stale).map(|link| link::remove(link.index)).collect();
    let failures = host.apply_each(removals).into_iter().filter_map(Result::err);
    let failures = failures
        .filter(|error| !error.is_not_found())
        .map(|cause| Error::because(Code::INTERNAL, "remove a stale interface", &cause));
    Error::join(failures.collect())
}
