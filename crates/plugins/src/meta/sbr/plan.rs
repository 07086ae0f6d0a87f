// SPDX-License-Identifier: Apache-2.0
//! From what is found in the container to what has to be made, as a pure function.

use std::collections::HashSet;
use std::net::IpAddr;

use cni::{CniResult, IpConfig};
use ipnet::IpNet;
use kernel::route::{self, Route};
use kernel::rule::{self, Rule};
use kernel::{Family, IfIndex, Request};

use super::conf::Sbr;

/// Where tables of ours begin.
const FIRST_TABLE: u32 = 100;

/// What the container holds.
#[derive(Debug, Default)]
pub struct Found {
    /// Routes of the interface in the main table.
    pub main: Vec<Route>,
    /// Tables with a route in them.
    pub used_tables: HashSet<u32>,
    pub rules: Vec<Rule>,
}

/// What has to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Routes to be made, or put in the place of another.
    pub routes: Vec<Route>,
    pub rules: Vec<Rule>,
    /// Routes of the main table that get a source.
    pub hints: Vec<Route>,
    /// Routes to be taken out of the main table.
    pub moved: Vec<Route>,
    /// Routes of the main table in whose place hints stand.
    pub hinted: Vec<Route>,
}

/// The change that gives each address its rule, and in default mode a table with its routes.
pub fn change(sbr: &Sbr, ips: &[IpConfig], index: IfIndex, found: &Found) -> Change {
    let mut change = Change::default();
    let mut used = found.used_tables.clone();
    used.extend(found.rules.iter().map(|rule| rule.table));
    for ip in ips {
        let source = ip.address.addr();
        let known = table_of(sbr, source, &found.rules);
        let table = known.or(sbr.table).unwrap_or_else(|| next_table(&used));
        used.insert(table);
        if known.is_none() {
            let from = Some(IpNet::from(source));
            change.rules.push(Rule { from, ..Rule::new(Family::of(source), table) });
        }
        if sbr.table.is_none() {
            change.routes.extend(routes(sbr, ip, index, table, &found.main));
        }
    }
    if sbr.table.is_none() {
        leave_main(sbr, ips, index, found, &mut change);
    }
    change
}

/// The first table that no rule leads to and no route is in.
fn next_table(used: &HashSet<u32>) -> u32 {
    let reserved = [route::TABLE_DEFAULT, route::TABLE_MAIN, route::TABLE_LOCAL];
    (FIRST_TABLE..)
        .find(|table| !used.contains(table) && !reserved.contains(table))
        .unwrap_or(FIRST_TABLE)
}

/// The table that packets from an address look into because of a rule like ours. A second ADD finds
/// the first one's here.
pub fn table_of(sbr: &Sbr, source: IpAddr, rules: &[Rule]) -> Option<u32> {
    let wanted = Some(IpNet::from(source));
    let is_ours = |rule: &&Rule| {
        let like_ours = Rule {
            from: wanted,
            priority: rule.priority,
            protocol: rule.protocol,
            ..Rule::new(Family::of(source), rule.table)
        };
        **rule == like_ours && sbr.table.map_or(rule.table >= FIRST_TABLE, |own| own == rule.table)
    };
    rules.iter().find(is_ours).map(|rule| rule.table)
}

/// The routes of one address's table: the default route, and those of the main table that are of its
/// family and of its network, or of no network.
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
        let is_near = |address: IpAddr| is_near(ip, address);
        let of_network = route.src.is_some_and(is_near) || route.gateway.is_some_and(is_near);
        same_family && (of_network || is_generic)
    };
    let copied = main.iter().filter(is_copied).map(|route| Route { table, ..route.clone() });
    let copies: Vec<Route> = copied.map(by_nexthop_alone).collect();
    // Those straight out of the link first: the gateways of the others are found by them.
    let (far, near): (Vec<Route>, Vec<Route>) =
        copies.into_iter().partition(|route| route.gateway.is_some());
    [near, routes, far].concat()
}

/// Of the address's network; its gateway is, wherever it lies.
fn is_near(ip: &IpConfig, address: IpAddr) -> bool {
    ip.address.contains(&address) || ip.gateway == Some(address)
}

/// The kernel shows the gateway of a next hop object too, and refuses both.
fn by_nexthop_alone(route: Route) -> Route {
    match route.nexthop {
        Some(_) => Route { gateway: None, oif: None, ..route },
        None => route,
    }
}

/// Routes leave the main table for those of the addresses; without an address of their family there
/// is none. With source hints those straight out of
/// the link stay, and prefer their address.
fn leave_main(sbr: &Sbr, ips: &[IpConfig], index: IfIndex, found: &Found, change: &mut Change) {
    let mut stays: Vec<Route> =
        found.main.iter().filter(|route| is_link_local(route)).cloned().collect();
    if sbr.add_source_hints {
        stays.extend(found.main.iter().filter(|route| route.gateway.is_none()).cloned());
        for ip in ips {
            let network = ip.address.trunc();
            let present = found.main.iter().find(|route| route.dst == network);
            let route = present.cloned().unwrap_or_else(|| Route::new(network).dev(index));
            let hint = Route { src: Some(ip.address.addr()), ..route };
            stays.extend(present.cloned());
            if present != Some(&hint) {
                change.hinted.extend(present.cloned());
                change.hints.push(hint);
            }
        }
    }
    let is_served = |route: &Route| {
        ips.iter().any(|ip| ip.address.addr().is_ipv4() == route.dst.addr().is_ipv4())
    };
    let leaves = |route: &&Route| is_served(route) && !stays.contains(route);
    change.moved = found.main.iter().filter(leaves).cloned().collect();
}

/// The kernel's own route for link-local addresses, without which the interface has no neighbours.
fn is_link_local(route: &Route) -> bool {
    matches!(route.dst.addr(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

impl Change {
    /// To be made in this order: a rule must not lead to a table that is still empty.
    pub fn additions(&self) -> Vec<Request> {
        let routes = self.routes.iter().map(route::replace);
        let rules = self.rules.iter().map(rule::add);
        routes.chain(rules).chain(self.hints.iter().map(route::replace)).collect()
    }

    pub fn removals(&self) -> Vec<Request> {
        self.moved.iter().map(route::remove).collect()
    }

    /// Takes back what was made of it, whatever that is.
    pub fn taken_back(&self) -> Vec<Request> {
        let (far, near): (Vec<&Route>, Vec<&Route>) =
            self.moved.iter().partition(|route| route.gateway.is_some());
        let rules = self.rules.iter().map(rule::remove);
        let moved = near.into_iter().chain(far).chain(&self.hinted).map(route::replace);
        let hints = self
            .hints
            .iter()
            .filter(|hint| !self.hinted.iter().any(|before| before.dst == hint.dst));
        // A table that was there before belongs to an earlier ADD.
        let is_new = |route: &&Route| self.rules.iter().any(|rule| rule.table == route.table);
        let routes = self.routes.iter().rev().filter(is_new);
        let made = routes.chain(hints).map(route::remove);
        rules.chain(moved).chain(made).collect()
    }
}

/// A route that the table of an address must hold.
#[derive(Debug, PartialEq, Eq)]
pub struct Expected {
    pub dst: IpNet,
    pub gateway: Option<IpAddr>,
}

/// What the result says of the routes of an address's table.
pub fn expected(sbr: &Sbr, ip: &IpConfig, result: &CniResult) -> Vec<Expected> {
    let source = ip.address.addr();
    let gateway = sbr.gateway(source, ip.gateway);
    let dst = route::default_dst(Family::of(source));
    let mut expected: Vec<Expected> =
        gateway.map(|gateway| Expected { dst, gateway: Some(gateway) }).into_iter().collect();
    let same_family = |address: IpAddr| address.is_ipv4() == source.is_ipv4();
    let gateways = result.ips.iter().filter_map(|ip| ip.gateway);
    let first = gateways.into_iter().find(|gateway| same_family(*gateway));
    let is_in_main = |route: &&cni::Route| {
        let is_near = route.gw.or(first).is_none_or(|gateway| is_near(ip, gateway));
        // The default route's gateway is settled above.
        let is_told = gateway.is_some() && route.dst.trunc() == dst;
        same_family(route.dst.addr()) && is_near && route.table.is_none() && !is_told
    };
    let told = result.routes.iter().filter(is_in_main);
    expected.extend(told.map(|route| Expected { dst: route.dst.trunc(), gateway: route.gw }));
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

    fn dual() -> ([IpConfig; 2], Found) {
        let ips = [ip("10.1.0.5/24", Some("10.1.0.1")), ip("fd00::5/64", None)];
        let main = vec![
            route("0.0.0.0/0", Some("10.1.0.1")),
            route("10.1.0.0/24", None),
            route("192.0.2.0/24", Some("10.9.0.1")),
            route("fd00::/64", None),
            route("fe80::/64", None),
        ];
        (ips, Found { main, ..Found::default() })
    }

    #[test]
    fn each_address_gets_a_table_with_routes_of_its_family() {
        let (ips, found) = dual();
        let change = change(&Sbr::default(), &ips, IfIndex(2), &found);
        let wanted =
            ["100 10.1.0.0/24", "100 0.0.0.0/0", "100 0.0.0.0/0", "101 fd00::/64", "101 fe80::/64"];
        assert_eq!(shown(&change.routes), wanted);
        let left = ["254 0.0.0.0/0", "254 10.1.0.0/24", "254 192.0.2.0/24", "254 fd00::/64"];
        assert_eq!(shown(&change.moved), left, "link-local routes stay");
        assert_eq!(change.rules.len(), 2);
    }

    #[test]
    fn tables_in_use_are_passed_over_and_rules_of_an_earlier_add_found() {
        let (ips, mut found) = dual();
        found.used_tables.insert(100);
        found.rules.push(Rule::new(Family::V6, 101));
        let first = change(&Sbr::default(), &ips, IfIndex(2), &found);
        let tables: Vec<u32> = first.rules.iter().map(|rule| rule.table).collect();
        assert_eq!(tables, [102, 103]);
        found.rules.extend(first.rules);
        let again = change(&Sbr::default(), &ips, IfIndex(2), &found);
        assert!(again.rules.is_empty());
        assert!(again.routes.iter().all(|route| [102, 103].contains(&route.table)));
        let full: HashSet<u32> = (100..253).collect();
        assert_eq!(next_table(&full), 256, "the kernel's own tables are not ours");
    }

    #[test]
    fn source_hints_keep_routes_of_the_link() {
        let (ips, found) = dual();
        let sbr = Sbr { add_source_hints: true, ..Sbr::default() };
        let change = change(&sbr, &ips, IfIndex(2), &found);
        assert_eq!(shown(&change.moved), ["254 0.0.0.0/0", "254 192.0.2.0/24"]);
        let sources: Vec<Option<IpAddr>> = change.hints.iter().map(|hint| hint.src).collect();
        assert_eq!(sources, ips.map(|ip| Some(ip.address.addr())));
    }

    #[test]
    fn a_table_of_others_gets_rules_only() {
        let (ips, found) = dual();
        let sbr = Sbr { table: Some(7), ..Sbr::default() };
        let change = change(&sbr, &ips, IfIndex(2), &found);
        assert_eq!(change.rules.iter().map(|rule| rule.table).collect::<Vec<_>>(), [7, 7]);
        assert_eq!(Change { rules: Vec::new(), ..change }, Change::default());
    }
}
