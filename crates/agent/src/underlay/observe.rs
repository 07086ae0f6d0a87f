// SPDX-License-Identifier: Apache-2.0
//! Reads the state of the host that the choice of the underlay depends on.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kernel::route::{self, RouteFilter, TABLE_MAIN};
use kernel::{Family, IfIndex, Netlink, Result, addr, link};

use super::{Address, Facts, Interface};

const IFA_F_TEMPORARY: u32 = 0x01; // linux/if_addr.h; for IPv4 it means secondary
const IFA_F_DEPRECATED: u32 = 0x20; // linux/if_addr.h
const IFA_F_PERMANENT: u32 = 0x80; // linux/if_addr.h

impl Facts {
    /// Reads the state from the kernel. `can_reach` is looked up in the routes; `internal` are the addresses of the
    /// Kubernetes node.
    pub fn read(nl: &Netlink, can_reach: Option<IpAddr>, internal: Vec<IpAddr>) -> Result<Self> {
        let mut addresses: BTreeMap<IfIndex, Vec<Address>> = BTreeMap::new();
        for found in addr::list(nl, None)? {
            addresses.entry(found.index).or_default().push(address(&found));
        }
        let interfaces = link::list(nl)?.into_iter().map(|link| Interface {
            index: link.index,
            name: link.name,
            mtu: link.mtu,
            is_up: link.is_up() && link.has_carrier(),
            addresses: addresses.remove(&link.index).unwrap_or_default(),
        });
        let reaching = match can_reach {
            Some(address) => route::lookup(nl, address)?,
            None => None,
        };
        Ok(Self {
            interfaces: interfaces.collect(),
            default_v4: default_route(nl, Family::V4)?,
            default_v6: default_route(nl, Family::V6)?,
            reaching: reaching.and_then(|route| Some((route.oif?, route.src))),
            internal,
        })
    }
}

fn address(found: &addr::Addr) -> Address {
    let ip = found.prefix.addr();
    let has = |flag| found.flags & flag != 0;
    Address {
        ip,
        prefix_len: found.prefix.prefix_len(),
        is_deprecated: has(IFA_F_DEPRECATED),
        is_temporary: ip.is_ipv6() && has(IFA_F_TEMPORARY),
        is_permanent: has(IFA_F_PERMANENT),
    }
}

/// Returns the interface of the default route with the lowest metric.
fn default_route(nl: &Netlink, family: Family) -> Result<Option<IfIndex>> {
    let filter =
        RouteFilter { family: Some(family), table: Some(TABLE_MAIN), ..RouteFilter::default() };
    let routes = route::list(nl, filter)?;
    let defaults = routes.iter().filter(|route| route.dst.prefix_len() == 0 && route.oif.is_some());
    Ok(defaults.min_by_key(|route| route.priority.unwrap_or(0)).and_then(|route| route.oif))
}
