// SPDX-License-Identifier: Apache-2.0
//! Computes the change of routes and rules from the observed state. Pure functions.

use std::collections::HashSet;
use std::net::IpAddr;

use cni::{CniResult, IpConfig};
use ipnet::IpNet;
use kernel::route::{self, Route};
use kernel::rule::{self, Rule};
use kernel::{Family, IfIndex, Request};

use super::conf::Sbr;

/// The first table number that the plugin uses.
const FIRST_TABLE: u32 = 100;

/// The observed state of the container.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Routes of the interface in the main table.
    pub main: Vec<Route>,
    /// Tables with a route in them.
    pub used_tables: HashSet<u32>,
    pub rules: Vec<Rule>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// Routes to add or replace.
    pub routes: Vec<Route>,
    pub rules: Vec<Rule>,
    /// Routes of the main table with a preferred source address.
    pub hints: Vec<Route>,
    /// Routes to remove from the main table.
    pub moved: Vec<Route>,
    /// Routes of the main table that hints replace.
    pub hinted: Vec<Route>,
}

/// Returns the change that gives each address a rule and, unless the configuration names a table, a
/// table with its routes.
pub(super) fn change(sbr: &Sbr, ips: &[IpConfig], index: IfIndex, observed: &Observed) -> Change {
    let mut change = Change::default();
    let mut used = observed.used_tables.clone();
    used.extend(observed.rules.iter().map(|rule| rule.table));
    for ip in ips {
        let source = ip.address.addr();
        let known = table_of(sbr, source, &observed.rules);
        let table = known.or(sbr.table).unwrap_or_else(|| next_table(&used));
        used.insert(table);
        if known.is_none() {
            let from = Some(IpNet::from(source));
            change.rules.push(Rule { from, ..Rule::new(Family::of(source), table) });
        }
        if sbr.table.is_none() {
            change.routes.extend(routes(sbr, ip, index, table, &observed.main));
        }
    }
    if sbr.table.is_none() {
        leave_main(sbr, ips, index, observed, &mut change);
    }
    change
}

/// The first table without routes and rules.
fn next_table(used: &HashSet<u32>) -> u32 {
    let reserved = [route::TABLE_DEFAULT, route::TABLE_MAIN, route::TABLE_LOCAL];
    (FIRST_TABLE..)
        .find(|table| !used.contains(table) && !reserved.contains(table))
        .unwrap_or(FIRST_TABLE)
}

/// The table of the rule for packets from an address, if the rule looks like one of this plugin. A
/// second ADD finds the table of the first one.
pub(super) fn table_of(sbr: &Sbr, source: IpAddr, rules: &[Rule]) -> Option<u32> {
    let from = Some(IpNet::from(source));
    let is_own = |rule: &&Rule| {
        let expected = Rule {
            from,
            priority: rule.priority,
            protocol: rule.protocol,
            ..Rule::new(Family::of(source), rule.table)
        };
        **rule == expected && sbr.table.map_or(rule.table >= FIRST_TABLE, |own| own == rule.table)
    };
    rules.iter().find(is_own).map(|rule| rule.table)
}

/// The routes of an address's table: the default route, and those routes of the main table that
/// have its family and belong to its network or to no network.
fn routes(sbr: &Sbr, ip: &IpConfig, index: IfIndex, table: u32, main: &[Route]) -> Vec<Route> {
    let source = ip.address.addr();
    let mut routes = Vec::new();
    if let Some(gateway) = sbr.gateway(source, ip.gateway) {
        let mut default = Route::new(route::default_dst(Family::of(source)));
        default.gateway = Some(gateway);
        default.oif = Some(index);
        default.table = table;
        routes.push(default);
    }
    let is_copied = |route: &&Route| {
        let is_generic = route.src.is_none() && route.gateway.is_none();
        let same_family = route.dst.addr().is_ipv4() == source.is_ipv4();
        let is_local = |address: IpAddr| is_local(ip, address);
        let of_network = route.src.is_some_and(is_local) || route.gateway.is_some_and(is_local);
        same_family && (of_network || is_generic)
    };
    let copied = main.iter().filter(is_copied).map(|route| Route { table, ..route.clone() });
    let copies: Vec<Route> = copied.map(without_gateway_of_nexthop).collect();
    // Direct routes first: the gateways of the others are reached through them.
    let (via_gateway, direct): (Vec<Route>, Vec<Route>) =
        copies.into_iter().partition(|route| route.gateway.is_some());
    [direct, routes, via_gateway].concat()
}

/// Whether an address is in the network of `ip`, or is its gateway.
fn is_local(ip: &IpConfig, address: IpAddr) -> bool {
    ip.address.contains(&address) || ip.gateway == Some(address)
}

/// The kernel lists the gateway of a next-hop object too, but refuses a request with both.
fn without_gateway_of_nexthop(route: Route) -> Route {
    match route.nexthop {
        Some(_) => Route { gateway: None, oif: None, ..route },
        None => route,
    }
}

/// Moves routes out of the main table, except those of a family without addresses. With source
/// hints, direct routes stay and get a preferred source address.
fn leave_main(
    sbr: &Sbr,
    ips: &[IpConfig],
    index: IfIndex,
    observed: &Observed,
    change: &mut Change,
) {
    let mut kept: Vec<Route> =
        observed.main.iter().filter(|route| is_link_local(route)).cloned().collect();
    if sbr.add_source_hints {
        kept.extend(observed.main.iter().filter(|route| route.gateway.is_none()).cloned());
        for ip in ips {
            let network = ip.address.trunc();
            let present = observed.main.iter().find(|route| route.dst == network);
            let route = present.cloned().unwrap_or_else(|| Route::new(network).dev(index));
            let hint = Route { src: Some(ip.address.addr()), ..route };
            kept.extend(present.cloned());
            if present != Some(&hint) {
                change.hinted.extend(present.cloned());
                change.hints.push(hint);
            }
        }
    }
    let has_address = |route: &Route| {
        ips.iter().any(|ip| ip.address.addr().is_ipv4() == route.dst.addr().is_ipv4())
    };
    let is_moved = |route: &&Route| has_address(route) && !kept.contains(route);
    change.moved = observed.main.iter().filter(is_moved).cloned().collect();
}

/// The kernel's route for link-local addresses, which neighbour discovery needs.
fn is_link_local(route: &Route) -> bool {
    matches!(route.dst.addr(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

impl Change {
    /// In this order: a rule must not refer to an empty table.
    pub(super) fn additions(&self) -> Vec<Request> {
        let routes = self.routes.iter().map(route::replace);
        let rules = self.rules.iter().map(rule::add);
        routes.chain(rules).chain(self.hints.iter().map(route::replace)).collect()
    }

    pub(super) fn removals(&self) -> Vec<Request> {
        self.moved.iter().map(route::remove).collect()
    }

    /// The requests that undo the change after it was applied in part.
    pub(super) fn rollback(&self) -> Vec<Request> {
        let (via_gateway, direct): (Vec<&Route>, Vec<&Route>) =
            self.moved.iter().partition(|route| route.gateway.is_some());
        let rules = self.rules.iter().map(rule::remove);
        let moved = direct.into_iter().chain(via_gateway).chain(&self.hinted).map(route::replace);
        let hints = self
            .hints
            .iter()
            .filter(|hint| !self.hinted.iter().any(|before| before.dst == hint.dst));
        // An existing table belongs to an earlier ADD.
        let is_new = |route: &&Route| self.rules.iter().any(|rule| rule.table == route.table);
        let routes = self.routes.iter().rev().filter(is_new);
        let added = routes.chain(hints).map(route::remove);
        rules.chain(moved).chain(added).collect()
    }
}

/// A route that the table of an address must have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub dst: IpNet,
    pub gateway: Option<IpAddr>,
}

/// The routes that the table of an address must have according to the result.
pub(super) fn expected(sbr: &Sbr, ip: &IpConfig, result: &CniResult) -> Vec<Expected> {
    let source = ip.address.addr();
    let gateway = sbr.gateway(source, ip.gateway);
    let dst = route::default_dst(Family::of(source));
    let mut expected: Vec<Expected> =
        gateway.map(|gateway| Expected { dst, gateway: Some(gateway) }).into_iter().collect();
    let same_family = |address: IpAddr| address.is_ipv4() == source.is_ipv4();
    let gateways = result.ips.iter().filter_map(|ip| ip.gateway);
    let first = gateways.into_iter().find(|gateway| same_family(*gateway));
    let is_in_main = |route: &&cni::Route| {
        let is_local = route.gw.or(first).is_none_or(|gateway| is_local(ip, gateway));
        // The default route is handled above.
        let is_default = gateway.is_some() && route.dst.trunc() == dst;
        same_family(route.dst.addr()) && is_local && route.table.is_none() && !is_default
    };
    let listed = result.routes.iter().filter(is_in_main);
    expected.extend(listed.map(|route| Expected { dst: route.dst.trunc(), gateway: route.gw }));
    expected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(address: &str, gateway: Option<&str>) -> IpConfig {
        let gateway = gateway.map(|gateway| gateway.parse().unwrap());
        IpConfig::new(address.parse().unwrap(), gateway)
    }

    fn route(dst: &str, gateway: Option<&str>) -> Route {
        let mut route = Route::new(dst.parse().unwrap()).dev(IfIndex(2));
        route.gateway = gateway.map(|gateway| gateway.parse().unwrap());
        route
    }

    fn shown(routes: &[Route]) -> Vec<String> {
        routes.iter().map(|route| format!("{} {}", route.table, route.dst)).collect()
    }

    fn dual() -> ([IpConfig; 2], Observed) {
        let ips = [ip("10.1.0.5/24", Some("10.1.0.1")), ip("fd00::5/64", None)];
        let main = vec![
            route("0.0.0.0/0", Some("10.1.0.1")),
            route("10.1.0.0/24", None),
            route("192.0.2.0/24", Some("10.9.0.1")),
            route("fd00::/64", None),
            route("fe80::/64", None),
        ];
        (ips, Observed { main, ..Observed::default() })
    }

    #[test]
    fn change_gives_each_address_a_table() {
        let (ips, observed) = dual();
        let change = change(&Sbr::default(), &ips, IfIndex(2), &observed);
        let expected =
            ["100 10.1.0.0/24", "100 0.0.0.0/0", "100 0.0.0.0/0", "101 fd00::/64", "101 fe80::/64"];
        assert_eq!(shown(&change.routes), expected);
        let moved = ["254 0.0.0.0/0", "254 10.1.0.0/24", "254 192.0.2.0/24", "254 fd00::/64"];
        assert_eq!(shown(&change.moved), moved, "link-local routes stay");
        assert_eq!(change.rules.len(), 2);
    }

    #[test]
    fn change_skips_used_tables_and_reuses_rules() {
        let (ips, mut observed) = dual();
        observed.used_tables.insert(100);
        observed.rules.push(Rule::new(Family::V6, 101));
        let first = change(&Sbr::default(), &ips, IfIndex(2), &observed);
        let tables: Vec<u32> = first.rules.iter().map(|rule| rule.table).collect();
        assert_eq!(tables, [102, 103]);
        observed.rules.extend(first.rules);
        let again = change(&Sbr::default(), &ips, IfIndex(2), &observed);
        assert!(again.rules.is_empty());
        assert!(again.routes.iter().all(|route| [102, 103].contains(&route.table)));
        let full: HashSet<u32> = (100..253).collect();
        assert_eq!(next_table(&full), 256, "the kernel's tables are skipped");
    }

    #[test]
    fn source_hints_keep_direct_routes() {
        let (ips, observed) = dual();
        let sbr = Sbr { add_source_hints: true, ..Sbr::default() };
        let change = change(&sbr, &ips, IfIndex(2), &observed);
        assert_eq!(shown(&change.moved), ["254 0.0.0.0/0", "254 192.0.2.0/24"]);
        let sources: Vec<Option<IpAddr>> = change.hints.iter().map(|hint| hint.src).collect();
        assert_eq!(sources, ips.map(|ip| Some(ip.address.addr())));
    }

    #[test]
    fn configured_table_gets_rules_only() {
        let (ips, observed) = dual();
        let sbr = Sbr { table: Some(7), ..Sbr::default() };
        let change = change(&sbr, &ips, IfIndex(2), &observed);
        assert_eq!(change.rules.iter().map(|rule| rule.table).collect::<Vec<_>>(), [7, 7]);
        assert_eq!(Change { rules: Vec::new(), ..change }, Change::default());
    }
}
