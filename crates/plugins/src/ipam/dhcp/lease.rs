// SPDX-License-Identifier: Apache-2.0
//! A lease: what the server grants, and since when. The same for both families.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cni::{CniResult, Dns, IpConfig, Route};
use ipnet::IpNet;
use kernel::MacAddr;
use kernel::route::SCOPE_LINK;
use serde::{Deserialize, Serialize};

/// What the server grants.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Terms {
    /// The address, with the length of its network.
    pub address: IpNet,
    /// The way out.
    pub gateway: Option<IpAddr>,
    /// Routes, in the server's order.
    pub routes: Vec<Via>,
    /// Name resolution.
    pub dns: Dns,
    /// The server: its address, or its DUID.
    pub server: Vec<u8>,
    /// The hardware address that its answer came from.
    pub server_mac: Option<[u8; 6]>,
    /// How long until each step; `None` for ever.
    pub span: Option<Span>,
}

/// A route of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub struct Via {
    /// Where to.
    pub dst: IpNet,
    /// By whom; the unspecified address means that it is on the link.
    pub gateway: IpAddr,
}

/// Seconds from the grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub struct Span {
    /// Until the server that granted it is asked to renew it (T1).
    pub renew: u32,
    /// Until any server is asked (T2).
    pub rebind: u32,
    /// Until the address may no longer be used.
    pub valid: u32,
}

impl Span {
    /// Puts the steps in order where a server confused them, and at least a second away.
    pub fn new(renew: u32, rebind: u32, valid: u32) -> Span {
        let valid = valid.max(1);
        let rebind = rebind.clamp(1, valid);
        Span { renew: renew.clamp(1, rebind), rebind, valid }
    }
}

impl Terms {
    /// Whether the container's interface has to be changed to get from one to the other.
    pub fn looks_like(&self, other: &Terms) -> bool {
        self.address == other.address
            && self.gateway == other.gateway
            && self.routes == other.routes
    }

    /// The hardware address to send to the server by.
    pub fn server_mac(&self) -> Option<MacAddr> {
        self.server_mac.map(MacAddr)
    }

    /// The address as a result has it.
    pub fn ip(&self) -> IpConfig {
        IpConfig::new(self.address, self.gateway)
    }

    /// The routes as a result has them.
    pub fn cni_routes(&self, priority: u32) -> Vec<Route> {
        let shown = |via: &Via| {
            let mut route = Route::new(via.dst, Some(via.gateway));
            route.scope = via.gateway.is_unspecified().then_some(SCOPE_LINK);
            route.priority = priority;
            route
        };
        self.routes.iter().map(shown).collect()
    }
}

/// The leases of one attachment as the result of an ADD.
pub fn result<'a>(leases: impl Iterator<Item = &'a Terms>, priority: u32) -> CniResult {
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

/// A lease that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// What was granted.
    pub terms: Terms,
    /// When it was asked for, which is when it begins.
    pub granted: Instant,
}

/// The moments of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moments {
    /// T1.
    pub renew: Instant,
    /// T2.
    pub rebind: Instant,
    /// The end.
    pub expire: Instant,
}

impl Lease {
    /// When its steps are; `None` where it is for ever.
    pub fn moments(&self) -> Option<Moments> {
        let at = |seconds: u32| self.granted + Duration::from_secs(seconds.into());
        let span = self.terms.span?;
        Some(Moments { renew: at(span.renew), rebind: at(span.rebind), expire: at(span.valid) })
    }

    /// Whether the address may no longer be used.
    pub fn has_expired(&self, now: Instant) -> bool {
        self.moments().is_some_and(|moments| now >= moments.expire)
    }
}
