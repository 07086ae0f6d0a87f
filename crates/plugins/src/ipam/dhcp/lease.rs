// SPDX-License-Identifier: Apache-2.0
//! A lease: the terms that the server granted, and the time of the grant. The same for both families.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cni::{CniResult, Dns, IpConfig, Route};
use ipnet::IpNet;
use kernel::MacAddr;
use kernel::route::SCOPE_LINK;
use serde::{Deserialize, Serialize};

/// The terms of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Terms {
    /// Address with prefix length.
    pub address: IpNet,
    /// Default gateway.
    pub gateway: Option<IpAddr>,
    /// Routes in the server's order.
    pub routes: Vec<LeaseRoute>,
    /// DNS settings.
    pub dns: Dns,
    /// Address or DUID of the server.
    pub server: Vec<u8>,
    /// MAC address that the server's reply came from.
    pub server_mac: Option<[u8; 6]>,
    /// Lifetimes; `None` for an infinite lease.
    #[serde(rename = "span")]
    pub lifetimes: Option<Lifetimes>,
}

/// A route of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct LeaseRoute {
    /// Destination.
    pub dst: IpNet,
    /// Gateway. The unspecified address means that the destination is on the link.
    pub gateway: IpAddr,
}

/// Lifetimes of a lease in seconds since the grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Lifetimes {
    /// Time until the client asks the same server to renew the lease (T1).
    pub renew: u32,
    /// Time until the client asks any server (T2).
    pub rebind: u32,
    /// Time until the address must no longer be used.
    pub valid: u32,
}

impl Lifetimes {
    /// Corrects the order of the lifetimes, and makes each at least one second.
    pub(super) fn new(renew: u32, rebind: u32, valid: u32) -> Lifetimes {
        let valid = valid.max(1);
        let rebind = rebind.clamp(1, valid);
        Lifetimes { renew: renew.clamp(1, rebind), rebind, valid }
    }
}

impl Terms {
    /// Returns whether both terms lead to the same configuration of the container's interface.
    pub(super) fn has_same_interface_config(&self, other: &Terms) -> bool {
        self.address == other.address
            && self.gateway == other.gateway
            && self.routes == other.routes
    }

    /// Returns the MAC address of the server.
    pub(super) fn server_mac(&self) -> Option<MacAddr> {
        self.server_mac.map(MacAddr)
    }

    /// Returns the address for a CNI result.
    pub(super) fn ip(&self) -> IpConfig {
        IpConfig::new(self.address, self.gateway)
    }

    /// Returns the routes for a CNI result.
    pub(super) fn cni_routes(&self, priority: u32) -> Vec<Route> {
        let convert = |via: &LeaseRoute| {
            let mut route = Route::new(via.dst, Some(via.gateway));
            route.scope = via.gateway.is_unspecified().then_some(SCOPE_LINK);
            route.priority = priority;
            route
        };
        self.routes.iter().map(convert).collect()
    }
}

/// Returns the result of an ADD for the leases of one attachment.
pub(super) fn result<'a>(leases: impl Iterator<Item = &'a Terms>, priority: u32) -> CniResult {
    let mut result = CniResult::default();
    for terms in leases {
        result.ips.push(terms.ip());
        result.routes.extend(terms.cni_routes(priority));
        let Dns { nameservers, domain, search, .. } = terms.dns.clone();
        result.dns.nameservers.extend(nameservers);
        result.dns.search.extend(
            search.iter().filter(|s| !result.dns.search.contains(s)).cloned().collect::<Vec<_>>(),
        );
        if result.dns.domain.is_empty() {
            result.dns.domain = domain;
        }
    }
    result
}

/// An acquired lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lease {
    pub terms: Terms,
    /// Time of the request, which is when the lease starts.
    pub granted: Instant,
}

/// Points in time at which a lease must be handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deadlines {
    /// T1.
    pub renew: Instant,
    /// T2.
    pub rebind: Instant,
    /// End of the lease.
    pub expire: Instant,
}

impl Lease {
    /// Returns the deadlines, or `None` for an infinite lease.
    pub(super) fn deadlines(&self) -> Option<Deadlines> {
        let at = |seconds: u32| self.granted + Duration::from_secs(seconds.into());
        let lifetimes = self.terms.lifetimes?;
        Some(Deadlines {
            renew: at(lifetimes.renew),
            rebind: at(lifetimes.rebind),
            expire: at(lifetimes.valid),
        })
    }

    /// Returns whether the address must no longer be used.
    pub(super) fn has_expired(&self, now: Instant) -> bool {
        self.deadlines().is_some_and(|deadlines| now >= deadlines.expire)
    }
}
