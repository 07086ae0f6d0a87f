// SPDX-License-Identifier: Apache-2.0
//! The configuration of a device on the host: addresses, routes, master, and whether it is up. The
//! kernel removes all of it when the device moves.

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

/// Addresses and routes of a device, to be restored elsewhere.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SavedConfig {
    /// Addresses of global scope, except IPv6 addresses from a router or a lease, which reappear by
    /// themselves.
    pub addresses: Vec<IpNet>,
    /// Routes that the kernel did not add for an address or a router.
    pub routes: Vec<Route>,
}

impl SavedConfig {
    pub(super) fn read(nl: &Netlink, index: IfIndex) -> Result<SavedConfig, Error> {
        let addresses = addr::list(nl, Some(index)).context("list the device's addresses")?;
        let addresses: Vec<IpNet> =
            addresses.iter().filter(|one| is_static(one)).map(|one| one.prefix).collect();
        if addresses.is_empty() {
            // A device without addresses rarely has routes, and listing them takes as long as
            // listing the host's.
            return Ok(SavedConfig::default());
        }
        let filter = RouteFilter { oif: Some(index), ..RouteFilter::default() };
        let mut routes = route::list(nl, filter).context("list the device's routes")?;
        routes.retain(|route| route.oif == Some(index) && is_configured(route));
        // A gateway is reached through a route of narrower scope, which must come first.
        routes.sort_by_key(|route| std::cmp::Reverse(route.scope));
        Ok(SavedConfig { addresses, routes })
    }

    /// The configuration in the container according to the result, which the container cannot
    /// change.
    pub(super) fn of_result(result: &CniResult) -> SavedConfig {
        let routes = interface::routes(IfIndex(0), &[], &result.routes);
        SavedConfig { addresses: result.ips.iter().map(|ip| ip.address).collect(), routes }
    }

    /// Removes the addresses and routes that the IPAM plugin provides too.
    pub(super) fn without(mut self, ipam: &CniResult) -> SavedConfig {
        self.addresses.retain(|address| !ipam.ips.iter().any(|ip| ip.address == *address));
        self.routes.retain(|route| {
            let table = |other: &cni::Route| other.table.unwrap_or(route::TABLE_MAIN);
            let is_same = |other: &cni::Route| {
                other.dst.trunc() == route.dst
                    && table(other) == route.table
                    && other.priority == route.priority.unwrap_or(0)
            };
            !ipam.routes.iter().any(is_same)
        });
        self
    }

    /// The addresses as entries of a result.
    pub(super) fn ips(&self) -> Vec<IpConfig> {
        self.addresses.iter().map(|address| IpConfig::new(*address, None)).collect()
    }

    /// The routes as entries of a result.
    pub(super) fn result_routes(&self) -> Vec<cni::Route> {
        let convert = |route: &Route| {
            let mut converted = cni::Route::new(route.dst, route.gateway);
            converted.mtu = route.mtu.unwrap_or(0);
            converted.advmss = route.advmss.unwrap_or(0);
            converted.priority = route.priority.unwrap_or(0);
            converted.table = Some(route.table).filter(|table| *table != route::TABLE_MAIN);
            converted.scope = route.scope.filter(|scope| *scope != route::SCOPE_UNIVERSE);
            converted
        };
        self.routes.iter().map(convert).collect()
    }

    /// The routes through an interface of this index.
    pub(super) fn routes_by(&self, index: IfIndex) -> Vec<Route> {
        let by = |route: &Route| Route { oif: Some(index), nexthop: None, ..route.clone() };
        self.routes.iter().map(by).collect()
    }

    /// The rules that select the tables of these routes for packets from these addresses.
    pub(super) fn rules(&self, nl: &Netlink) -> Result<Vec<Rule>, Error> {
        let is_in_other_table = |route: &Route| route.table != route::TABLE_MAIN;
        if !self.routes.iter().any(is_in_other_table) {
            return Ok(Vec::new());
        }
        let mut rules = Vec::new();
        for family in Family::ALL {
            rules.extend(rule::list(nl, family).context("list the host's rules")?);
        }
        let is_own = |rule: &Rule| {
            let covers = |from: IpNet| self.addresses.iter().any(|one| from.contains(&one.addr()));
            let is_in_table = |route: &Route| is_in_other_table(route) && route.table == rule.table;
            rule.from.is_some_and(covers) && self.routes.iter().any(is_in_table)
        };
        rules.retain(is_own);
        Ok(rules)
    }

    /// Restores the configuration on the host. Best effort: an address that is in use there must
    /// not prevent the device from coming back.
    pub(super) fn restore(&self, host: &Netlink, index: IfIndex, up: bool) {
        let options = AddrOptions::default();
        let mut requests: Vec<_> =
            self.addresses.iter().map(|one| addr::add(index, *one, options)).collect();
        requests.extend(up.then(|| link::set_up(index)));
        requests.extend(self.routes_by(index).iter().map(route::create));
        host.apply_each(requests);
    }
}

fn is_static(address: &Addr) -> bool {
    let is_permanent = address.prefix.addr().is_ipv4() || address.flags & IFA_F_PERMANENT != 0;
    address.scope == route::SCOPE_UNIVERSE && is_permanent
}

fn is_configured(route: &Route) -> bool {
    let is_link_local = match route.dst {
        IpNet::V4(_) => false,
        IpNet::V6(dst) => dst.addr().is_unicast_link_local() && dst.prefix_len() != 0,
    };
    route.kind == route::KIND_UNICAST
        && route.table != route::TABLE_LOCAL
        && ![route::PROTOCOL_KERNEL, PROTOCOL_RA].contains(&route.protocol)
        && !is_link_local
}

/// The state of a device before ADD, to restore it if ADD fails.
#[derive(Debug)]
pub(super) struct SavedDevice {
    up: bool,
    master: Option<IfIndex>,
    pub config: SavedConfig,
}

impl SavedDevice {
    pub(super) fn read(host: &Netlink, link: &Link) -> Result<SavedDevice, Error> {
        let config = SavedConfig::read(host, link.index)?;
        Ok(SavedDevice { up: link.is_up(), master: link.master, config })
    }

    pub(super) fn restore(&self, host: &Netlink, index: IfIndex) {
        host.apply_each(self.master.map(|master| link::set_master(index, master)));
        self.config.restore(host, index, self.up);
    }
}
