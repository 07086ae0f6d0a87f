// SPDX-License-Identifier: Apache-2.0
//! `sbr`: source based routing. Packets from an address of the interface use their own routing
//! table, so that they leave through that interface.

mod conf;
mod plan;

use std::net::IpAddr;

use cni::{CniResult, Code, Error, IpConfig, Plugin, Request, Version};
use kernel::link::{self, Link};
use kernel::route::{self, Route, RouteFilter};
use kernel::rule::{self, Rule};
use kernel::{Family, Netlink, addr};

use self::conf::Sbr;
use self::plan::{Change, Observed};
use crate::attach::{netns, prev_result};
use crate::error::{self, Context};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "sbr",
    about: "routes packets by their source address",
    versions: Version::ALL,
    add,
    del,
    check,
    status,
    gc: |_| Ok(()),
};

fn add(request: &Request) -> Result<CniResult, Error> {
    let sbr = Sbr::parse(request)?;
    let result = prev_result::required(request, "This plugin must be called as chained plugin")?;
    let ips = addresses(&result, request)?;
    let ns = netns::open(request)?;
    // An ADD for another interface of the container may search for a free table at the same time.
    let _lock = ns.lock("sbr").context("lock the container's namespace")?;
    let (inside, link) = prev_result::interface(request, &ns)?;
    let observed = observe(&inside, &link)?;
    let change = plan::change(&sbr, &ips, link.index, &observed);
    apply(&inside, &link, &change)?;
    Ok(result)
}

fn addresses(result: &CniResult, request: &Request) -> Result<Vec<IpConfig>, Error> {
    let ips: Vec<IpConfig> = prev_result::addresses(result, request).cloned().collect();
    if ips.is_empty() {
        let msg = format!("No IP addresses supplied on interface: {}", request.ifname);
        return Err(Error::internal(msg).with_details("sbr needs addresses in prevResult"));
    }
    Ok(ips)
}

fn observe(inside: &Netlink, link: &Link) -> Result<Observed, Error> {
    let routes = route::list(inside, RouteFilter::default()).context("list routes")?;
    let main = |route: &&Route| route.table == route::TABLE_MAIN && route.oif == Some(link.index);
    Ok(Observed {
        main: routes.iter().filter(main).cloned().collect(),
        used_tables: routes.iter().map(|route| route.table).collect(),
        rules: rules(inside)?,
    })
}

fn rules(inside: &Netlink) -> Result<Vec<Rule>, Error> {
    let mut rules = Vec::new();
    for family in Family::ALL {
        match rule::list(inside, family) {
            Ok(found) => rules.extend(found),
            // The kernel has no IPv6.
            Err(error) if family == Family::V6 && error.is_unsupported() => {}
            Err(error) => return Err(error).context("list rules"),
        }
    }
    Ok(rules)
}

/// Applies the change; undoes it if a part fails.
fn apply(inside: &Netlink, link: &Link, change: &Change) -> Result<(), Error> {
    let added = inside.apply(change.additions());
    let added = added.map_err(|error| error::with_ifname(error, link.index, link.name));
    let added = added.context("add source based routes");
    let applied = added.and_then(|()| {
        // In a batch of its own, because the kernel continues after a failure.
        inside.apply(change.removals()).context("move routes out of the main table")
    });
    applied.inspect_err(|_| drop(inside.apply_each(change.rollback())))
}

/// Removes the rules of the interface's addresses. The kernel removes the routes with the
/// interface.
fn del(request: &Request) -> Result<(), Error> {
    let Some(ns) = netns::open_if_exists(request) else { return Ok(()) };
    let doing = "remove source based rules";
    let _lock = ns.lock("sbr").context(doing)?;
    let inside = ns.netlink().context(doing)?;
    let sources = sources_of(request, &inside)?;
    let table = conf::table_of(request);
    let is_own = |rule: &&Rule| {
        let is_source = rule.from.is_some_and(|from| sources.contains(&from.addr()));
        is_source && table.is_none_or(|table| table == rule.table)
    };
    let rules = rules(&inside)?;
    let removals = rules.iter().filter(is_own).map(rule::remove);
    let errors = inside.apply_each(removals).into_iter().filter_map(Result::err);
    let errors = errors.filter(|error| !error.is_not_found());
    Error::join(errors.map(|cause| Error::because(Code::INTERNAL, doing, &cause)).collect())
}

/// The addresses of the interface, and those of the previous result in case the interface is gone.
fn sources_of(request: &Request, inside: &Netlink) -> Result<Vec<IpAddr>, Error> {
    let result = request.prev_result().ok().flatten().unwrap_or_default();
    let listed = prev_result::addresses(&result, request).map(|ip| ip.address.addr());
    let mut sources: Vec<IpAddr> = listed.collect();
    let link = link::by_name(inside, netns::ifname(request)?).context("look for the interface")?;
    if let Some(link) = link {
        let found = addr::list(inside, Some(link.index)).context("list addresses")?;
        sources.extend(found.iter().map(|address| address.prefix.addr()));
    }
    Ok(sources)
}

/// Each address must have its rule, and the table of the rule must have the routes of the result.
fn check(request: &Request) -> Result<(), Error> {
    let sbr = Sbr::parse(request)?;
    let result = request.required_prev_result()?;
    let ns = netns::open(request)?;
    let (inside, link) = prev_result::interface(request, &ns)?;
    let rules = rules(&inside)?;
    for ip in addresses(&result, request)? {
        let source = ip.address.addr();
        let table = plan::table_of(&sbr, source, &rules).ok_or_else(|| {
            Error::internal(format!("rule for packets from {source} is missing in the container"))
        })?;
        if sbr.table.is_some() {
            continue;
        }
        let filter = RouteFilter { table: Some(table), ..RouteFilter::default() };
        let routes = route::list(&inside, filter).context("list routes")?;
        for expected in plan::expected(&sbr, &ip, &result) {
            let is_match = |route: &Route| {
                let same_gateway = expected.gateway.is_none() || route.gateway == expected.gateway;
                route.dst == expected.dst && same_gateway && route.oif == Some(link.index)
            };
            if !routes.iter().any(is_match) {
                let gateway = expected.gateway.map(|gateway| format!(" via {gateway}"));
                let via = gateway.unwrap_or_default();
                let msg = format!("route to {}{via} is missing in table {table}", expected.dst);
                return Err(Error::internal(msg));
            }
        }
    }
    Ok(())
}

fn status(request: &Request) -> Result<(), Error> {
    Sbr::parse(request)?;
    let host = Netlink::open().context("open a netlink socket")?;
    match rule::list(&host, Family::V4) {
        Err(error) if error.is_unsupported() => {
            Err(Error::new(Code::NOT_AVAILABLE, "this kernel has no routing rules"))
        }
        other => other.map(drop).context("ask the kernel for its rules"),
    }
}
