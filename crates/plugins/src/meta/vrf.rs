// SPDX-License-Identifier: Apache-2.0
//! `vrf`: adds the container's interface to a VRF (a separate routing table within the container),
//! and creates the VRF if it is missing.

mod table;

use std::time::{Duration, Instant};

use cni::{CniResult, Code, Error, Plugin, Request, Version};
use ipnet::IpNet;
use kernel::addr::{self, Addr, AddrOptions};
use kernel::link::{self, Detail, Kind, Link, NewLink};
use kernel::route::{self, Route, RouteFilter};
use kernel::{IfIndex, IfName, Netlink, Netns};
use serde::Deserialize;

use crate::attach::undo::{Undo, or_undo};
use crate::attach::{check, names, netns, prev_result};
use crate::error::Context;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "vrf",
    about: "adds the container's interface to a VRF",
    versions: &[Version::V0_3_1, Version::V0_4_0, Version::V1_0_0, Version::V1_1_0],
    add,
    del,
    check,
    status,
    gc: |_| Ok(()),
};

/// Maximum time until the kernel has added the routes to IPv6 addresses. Duplicate address
/// detection takes one to two seconds.
const TIMEOUT: Duration = Duration::from_secs(10);

const NO_PREV_RESULT: &str = "missing prevResult from earlier plugin";

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct VrfConf {
    vrfname: String,
    table: u32,
}

/// The parsed configuration.
#[derive(Debug)]
struct Vrf {
    name: IfName,
    /// `None`: the table of the existing VRF, or a free one.
    table: Option<u32>,
}

fn parse(request: &Request) -> Result<Vrf, Error> {
    let conf: VrfConf = request.conf()?;
    if conf.vrfname.is_empty() {
        return Err(Error::invalid_config("configuration is expected to have a valid vrf name")
            .with_details("key \"vrfname\" must be set to the name of a VRF"));
    }
    let name = conf.vrfname.parse().map_err(|cause: kernel::IfNameError| {
        Error::because(Code::INVALID_CONFIG, "key \"vrfname\"", &cause)
    })?;
    Ok(Vrf { name, table: Some(conf.table).filter(|table| *table != 0) })
}

fn add(request: &Request) -> Result<CniResult, Error> {
    let vrf = parse(request)?;
    let result = prev_result::required(request, NO_PREV_RESULT)?;
    let ns = netns::open(request)?;
    let (inside, link) = prev_result::interface(request, &ns)?;
    refuse_other_master(&inside, &link)?;
    or_undo(|undo| build(request, &vrf, &ns, &inside, &link, undo))?;
    Ok(result)
}

fn refuse_other_master(inside: &Netlink, link: &Link) -> Result<(), Error> {
    let Some(master) = link.master else { return Ok(()) };
    let found = link::by_index(inside, master).context("look for the interface's master")?;
    let shown = found.map_or(master.to_string(), |master| master.name.to_string());
    Err(Error::internal(format!("interface {} has already a master set: {shown}", link.name)))
}

fn build<'a>(
    request: &Request,
    vrf: &Vrf,
    ns: &Netns,
    inside: &'a Netlink,
    link: &'a Link,
    undo: &mut Undo<'a>,
) -> Result<(), Error> {
    let (master, table) = ensure(request, vrf, inside, undo)?;
    let saved = Saved::of(inside, link)?;
    let mut monitor =
        ns.enter(route::monitor).and_then(|monitor| monitor).context("listen to routes")?;
    let doing = "add the interface to the VRF";
    let to_restore = saved.clone();
    undo.push(move || to_restore.restore(inside, link.index));
    inside.apply([link::set_master(link.index, master)]).context(doing)?;
    saved.restore_addresses(inside, link.index)?;
    if link.is_up() && link.has_carrier() {
        saved.wait_for_addresses(inside, &mut monitor, link.index, table)?;
    }
    inside.apply(saved.routes_in(table)).context("move routes into the VRF")
}

/// Returns the index and the table of the VRF, and creates it if it is missing.
fn ensure<'a>(
    request: &Request,
    vrf: &Vrf,
    inside: &'a Netlink,
    undo: &mut Undo<'a>,
) -> Result<(IfIndex, u32), Error> {
    if let Some((Link { index, .. }, table)) = find(vrf.name, inside)? {
        return match vrf.table.filter(|configured| *configured != table) {
            None => Ok((index, table)),
            Some(configured) => Err(Error::invalid_config(format!(
                "VRF {} already exist with different routing table {table}",
                vrf.name
            ))
            .with_details(format!("key \"table\" is {configured}"))),
        };
    }
    let table = vrf.table.map_or_else(|| table::choose(inside), Ok)?;
    // By the group, DEL recognizes a VRF of this plugin that a crash left empty.
    let group = Some(names::network_group(&request.network));
    let new = NewLink { up: true, group, ..NewLink::new(vrf.name, Kind::Vrf(table)) };
    inside.apply([link::create(&new)]).context("create the VRF")?;
    let name = vrf.name;
    undo.push(move || drop(inside.apply([link::remove(name)])));
    let index = link::index_of(inside, vrf.name).context("look for the new VRF")?;
    Ok((index, table))
}

fn find(name: IfName, inside: &Netlink) -> Result<Option<(Link, u32)>, Error> {
    let Some(link) = link::by_name(inside, name).context("look for the VRF")? else {
        return Ok(None);
    };
    match link.detail {
        Detail::Vrf(table) => Ok(Some((link, table))),
        _ => {
            let kind = link.kind.as_deref().unwrap_or("a device");
            let details = format!("key \"vrfname\": interface {name} exists and is {kind}");
            let msg = format!("Netlink {name} is not a VRF");
            Err(Error::invalid_config(msg).with_details(details))
        }
    }
}

/// State that the kernel removes when an interface changes its VRF, because it sets the interface
/// down and up again.
#[derive(Debug, Clone)]
struct Saved {
    /// Global IPv6 addresses; the kernel removes them unless `keep_addr_on_down` is set.
    addresses: Vec<Addr>,
    /// Routes except those that the kernel adds for addresses.
    routes: Vec<Route>,
}

impl Saved {
    fn of(inside: &Netlink, link: &Link) -> Result<Saved, Error> {
        let mut addresses = addr::list(inside, Some(link.index)).context("list addresses")?;
        addresses.retain(|one| one.prefix.addr().is_ipv6() && one.scope == route::SCOPE_UNIVERSE);
        let filter = RouteFilter {
            oif: Some(link.index),
            table: Some(route::TABLE_MAIN),
            ..RouteFilter::default()
        };
        let mut routes = route::list(inside, filter).context("list routes")?;
        routes.retain(|route| route.protocol != route::PROTOCOL_KERNEL);
        // Direct routes first: the gateways of the others are reached through them.
        routes.sort_by_key(|route| route.gateway.is_some());
        Ok(Saved { addresses, routes })
    }

    fn restore_addresses(&self, inside: &Netlink, index: IfIndex) -> Result<(), Error> {
        if self.addresses.is_empty() {
            return Ok(());
        }
        let found = addr::list(inside, Some(index)).context("list addresses")?;
        let is_lost = |one: &&Addr| !found.iter().any(|other| other.prefix == one.prefix);
        let lost = self.addresses.iter().filter(is_lost).map(|one| {
            let options = AddrOptions {
                nodad: one.flags & addr::IFA_F_NODAD != 0,
                no_prefix_route: one.flags & addr::IFA_F_NOPREFIXROUTE != 0,
                scope: one.scope,
            };
            addr::add(index, one.prefix, options)
        });
        inside.apply(lost).context("restore the interface's IPv6 addresses")
    }

    /// The kernel adds the route to a local address with a delay, and refuses routes with that
    /// source address until then.
    fn wait_for_addresses(
        &self,
        inside: &Netlink,
        monitor: &mut kernel::Monitor,
        index: IfIndex,
        table: u32,
    ) -> Result<(), Error> {
        let filter = RouteFilter { oif: Some(index), table: Some(table), ..RouteFilter::default() };
        let has_route = |routes: &[Route], one: &Addr| {
            let own = IpNet::from(one.prefix.addr());
            routes.iter().any(|route| route.kind == route::KIND_LOCAL && route.dst == own)
        };
        let all = |routes: &[Route]| self.addresses.iter().all(|one| has_route(routes, one));
        if self.addresses.is_empty() {
            return Ok(());
        }
        let deadline = Instant::now() + TIMEOUT;
        let arrived = route::wait_until(inside, monitor, filter, deadline, all);
        if arrived.context("wait for routes to IPv6 addresses")? {
            return Ok(());
        }
        let seconds = TIMEOUT.as_secs();
        let msg = format!("IPv6 addresses were not usable in table {table} after {seconds} s");
        Err(Error::new(Code::TRY_LATER, msg))
    }

    fn routes_in(&self, table: u32) -> Vec<kernel::Request> {
        let moved = self.routes.iter().map(|route| Route { table, ..route.clone() });
        moved.map(|route| route::replace(&route)).collect()
    }

    /// Best effort: the error that caused the rollback is the one to report.
    fn restore(&self, inside: &Netlink, index: IfIndex) {
        let _ = inside.apply([link::set_no_master(index)]);
        let _ = self.restore_addresses(inside, index);
        drop(inside.apply_each(self.routes_in(route::TABLE_MAIN)));
    }
}

fn del(request: &Request) -> Result<(), Error> {
    // An ADD without a valid name has failed.
    let Ok(vrf) = parse(request) else { return Ok(()) };
    let Some(ns) = netns::open_if_exists(request) else { return Ok(()) };
    let inside = ns.netlink().context("open a socket in the container's namespace")?;
    let Ok(Some((master, _))) = find(vrf.name, &inside) else { return Ok(()) };
    let ifname = netns::ifname(request)?;
    let link = link::by_name(&inside, ifname).context("look for the interface")?;
    let member = link.filter(|link| link.master == Some(master.index));
    if let Some(link) = &member {
        accept_missing(inside.apply([link::set_no_master(link.index)]))
            .context("take the interface out of the VRF")?;
    }
    let members =
        link::list_of_master(&inside, master.index).context("list the VRF's interfaces")?;
    // A VRF that did not have this interface and is not in the network's group belongs to another
    // program.
    let is_own = member.is_some() || master.group == names::network_group(&request.network);
    if is_own && members.is_empty() {
        accept_missing(inside.apply([link::remove(master.index)])).context("remove the VRF")?;
    }
    Ok(())
}

/// Another DEL of the same container may have been faster.
fn accept_missing(result: kernel::Result<()>) -> kernel::Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

fn check(request: &Request) -> Result<(), Error> {
    let vrf = parse(request)?;
    let result = prev_result::required(request, NO_PREV_RESULT)?;
    let ns = netns::open(request)?;
    let (inside, link) = prev_result::interface(request, &ns)?;
    let name = vrf.name;
    let Some((master, table)) = find(name, &inside)? else {
        return Err(Error::internal(format!("VRF {name} is not in the container")));
    };
    if vrf.table.is_some_and(|configured| configured != table) {
        return Err(Error::internal(format!("VRF {name} has table {table}")));
    }
    if link.master != Some(master.index) {
        let msg = format!("failed to find {} associated to vrf {name}", link.name);
        return Err(Error::internal(msg));
    }
    let ips: Vec<_> = prev_result::addresses(&result, request).cloned().collect();
    check::addresses(&inside, link.index, &ips)?;
    let filter = RouteFilter { table: Some(table), ..RouteFilter::default() };
    let routes = route::list(&inside, filter).context("list routes")?;
    for expected in result.routes.iter().filter(|expected| expected.table.is_none()) {
        if !routes.iter().any(|route| route.dst == expected.dst.trunc()) {
            let msg = format!("route to {} is missing in table {table}", expected.dst.trunc());
            return Err(Error::internal(msg));
        }
    }
    Ok(())
}

fn status(request: &Request) -> Result<(), Error> {
    parse(request)?;
    let host = Netlink::open().context("open a netlink socket")?;
    if !link::is_supported(&host, "vrf").context("ask the kernel for its features")? {
        return Err(Error::new(Code::NOT_AVAILABLE, "this kernel has no VRFs"));
    }
    Ok(())
}
