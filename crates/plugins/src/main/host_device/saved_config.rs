// SPDX-License-Identifier: Apache-2.0
//! What a device has on the host besides its name: addresses, routes, a master, being up. The kernel
//! takes all of it away when the device moves.

use cni::{CniResult, Error, IpConfig};
use ipnet::IpNet;
use kernel::addr::{self, Addr, AddrOptions, IFA_F_PERMANENT};
use kernel::link::{self, Link};
use kernel::route::{self, Route, RouteFilter};
use kernel::rule::{self, Rule};
use kernel::{Family, IfIndex, Netlink};

use crate::attach::interface;
use crate::error::Context;

const PROTOCOL_RA: u8 = 9; // RTPROT_RA, linux/rtnetlink.h

/// Addresses and routes of a device, to be made again elsewhere.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Carried {
    /// Of global scope; IPv6 ones from a router or a lease come by themselves again.
    pub addresses: Vec<IpNet>,
    /// Those that did not come with an address or from a router.
    pub routes: Vec<Route>,
}

impl Carried {
    /// Reads a device.
    pub fn read(nl: &Netlink, index: IfIndex) -> Result<Carried, Error> {
        let addresses = addr::list(nl, Some(index)).context("list the device's addresses")?;
        let addresses: Vec<IpNet> =
            addresses.iter().filter(|one| is_worth_keeping(one)).map(|one| one.prefix).collect();
        if addresses.is_empty() {
            // Without an address there are hardly routes, and their list is as long as the host's.
            return Ok(Carried::default());
        }
        let filter = RouteFilter { oif: Some(index), ..RouteFilter::default() };
        let mut routes = route::list(nl, filter).context("list the device's routes")?;
        routes.retain(|route| route.oif == Some(index) && is_made_by_hand(route));
        // Gateways are reached by routes of a narrower scope, which must come first.
        routes.sort_by_key(|route| std::cmp::Reverse(route.scope));
        Ok(Carried { addresses, routes })
    }

    /// What a result says the container has: trusted, as the container cannot change it.
    pub fn of_result(result: &CniResult) -> Carried {
        let routes = interface::routes(IfIndex(0), &[], &result.routes);
        Carried { addresses: result.ips.iter().map(|ip| ip.address).collect(), routes }
    }

    /// Without what the IPAM plugin gives as well.
    pub fn without(mut self, given: &CniResult) -> Carried {
        self.addresses.retain(|address| !given.ips.iter().any(|ip| ip.address == *address));
        self.routes.retain(|route| {
            let table = |other: &cni::Route| other.table.unwrap_or(route::TABLE_MAIN);
            let is_same = |other: &cni::Route| {
                other.dst.trunc() == route.dst
                    && table(other) == route.table
                    && other.priority == route.priority.unwrap_or(0)
            };
            !given.routes.iter().any(is_same)
        });
        self
    }

    /// The addresses as a result tells them.
    pub fn ips(&self) -> Vec<IpConfig> {
        self.addresses.iter().map(|address| IpConfig::new(*address, None)).collect()
    }

    /// The routes as a result tells them.
    pub fn routes_told(&self) -> Vec<cni::Route> {
        let told = |route: &Route| {
            let mut told = cni::Route::new(route.dst, route.gateway);
            told.mtu = route.mtu.unwrap_or(0);
            told.advmss = route.advmss.unwrap_or(0);
            told.priority = route.priority.unwrap_or(0);
            told.table = Some(route.table).filter(|table| *table != route::TABLE_MAIN);
            told.scope = route.scope.filter(|scope| *scope != route::SCOPE_UNIVERSE);
            told
        };
        self.routes.iter().map(told).collect()
    }

    /// The routes through an interface of this index.
    pub fn routes_by(&self, index: IfIndex) -> Vec<Route> {
        let by = |route: &Route| Route { oif: Some(index), nexthop: None, ..route.clone() };
        self.routes.iter().map(by).collect()
    }

    /// The rules that send the addresses' packets to tables of these routes.
    pub fn rules(&self, nl: &Netlink) -> Result<Vec<Rule>, Error> {
        let is_in_other_table = |route: &Route| route.table != route::TABLE_MAIN;
        if !self.routes.iter().any(is_in_other_table) {
            return Ok(Vec::new());
        }
        let mut rules = Vec::new();
        for family in Family::ALL {
            rules.extend(rule::list(nl, family).context("list the host's rules")?);
        }
        let is_of_us = |rule: &Rule| {
            let covers = |from: IpNet| self.addresses.iter().any(|one| from.contains(&one.addr()));
            let is_wanted = |route: &Route| is_in_other_table(route) && route.table == rule.table;
            rule.from.is_some_and(covers) && self.routes.iter().any(is_wanted)
        };
        rules.retain(is_of_us);
        Ok(rules)
    }

    /// Makes them again on the host, as far as the host lets us: a name taken or an address in use there
    /// must not keep the device from coming home.
    pub fn restore(&self, host: &Netlink, index: IfIndex, up: bool) {
        let options = AddrOptions::default();
        let mut requests: Vec<_> =
            self.addresses.iter().map(|one| addr::add(index, *one, options)).collect();
        requests.extend(up.then(|| link::set_up(index)));
        requests.extend(self.routes_by(index).iter().map(route::create));
        host.apply_each(requests);
    }
}

fn is_worth_keeping(address: &Addr) -> bool {
    let stays = address.prefix.addr().is_ipv4() || address.flags & IFA_F_PERMANENT != 0;
    address.scope == route::SCOPE_UNIVERSE && stays
}

fn is_made_by_hand(route: &Route) -> bool {
    let is_link_local = match route.dst {
        IpNet::V4(_) => false,
        IpNet::V6(dst) => dst.addr().is_unicast_link_local() && dst.prefix_len() != 0,
    };
    route.kind == route::KIND_UNICAST
        && route.table != route::TABLE_LOCAL
        && ![route::PROTOCOL_KERNEL, PROTOCOL_RA].contains(&route.protocol)
        && !is_link_local
}

/// A device as it was before an ADD, for the case that it fails.
#[derive(Debug)]
pub struct Before {
    up: bool,
    master: Option<IfIndex>,
    /// Its addresses and routes.
    pub carried: Carried,
}

impl Before {
    /// Reads a device.
    pub fn read(host: &Netlink, link: &Link) -> Result<Before, Error> {
        let carried = Carried::read(host, link.index)?;
        Ok(Before { up: link.is_up(), master: link.master, carried })
    }

    /// Makes the device so again.
    pub fn restore(&self, host: &Netlink, index: IfIndex) {
        host.apply_each(self.master.map(|master| link::set_master(index, master)));
        self.carried.restore(host, index, self.up);
    }
}
