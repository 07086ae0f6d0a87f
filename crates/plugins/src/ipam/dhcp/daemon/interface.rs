// SPDX-License-Identifier: Apache-2.0
//! Where a container's interface is: found once, and found again each time it is needed, as no
//! namespace is kept open in between.

use std::path::{Path, PathBuf};

use cni::{Code, Error};
use kernel::addr::{self, AddrOptions};
use kernel::route::{self, Route};
use kernel::{IfIndex, IfName, MacAddr, Netlink, Netns, Request, link, sysctl};
use serde::{Deserialize, Serialize};

use super::super::lease::Terms;
use crate::attach::interface;
use crate::error::Context;

/// An interface in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spot {
    /// The namespace's file.
    pub netns: PathBuf,
    /// Device and inode of the namespace: another may have taken its path.
    identity: (u64, u64),
    index: u32,
    mac: [u8; 6],
    ifname: String,
}

impl Spot {
    /// Looks for an interface that must be there and brings it up.
    pub fn find(netns: &Path, ifname: &str, with_ipv6: bool) -> Result<Spot, Error> {
        let ns = Netns::open(netns).map_err(|cause| {
            let code = if cause.is_not_found() { Code::UNKNOWN_CONTAINER } else { Code::INTERNAL };
            Error::because(code, format!("failed to open netns {:?}", netns.display()), &cause)
        })?;
        let name: IfName = ifname.parse().map_err(|cause: kernel::IfNameError| {
            Error::because(Code::BAD_ENVIRONMENT, "CNI_IFNAME", &cause)
        })?;
        let nl = ns.netlink().context("open a socket in the container's namespace")?;
        let link = link::by_name(&nl, name)
            .context("look for the container's interface")?
            .ok_or_else(|| Error::internal(format!("interface {name} is not in the container")))?;
        let mac = link.mac.ok_or_else(|| {
            Error::internal(format!("interface {name} has no hardware address of six bytes"))
        })?;
        if with_ipv6 {
            ns.enter(|| enable_ipv6(name)).and_then(|done| done).context("enable IPv6")?;
        }
        if !link.is_up() {
            nl.apply([link::set_up(link.index)]).context("bring the interface up")?;
        }
        let identity = ns.identity().context("look at the container's namespace")?;
        let (netns, index) = (netns.to_owned(), link.index.0);
        Ok(Spot { netns, identity, index, mac: mac.0, ifname: ifname.to_owned() })
    }

    /// The namespace, as long as it is the same one with the same interface.
    pub fn enter(&self) -> Option<(Netns, Netlink)> {
        let ns = Netns::open(&self.netns).ok()?;
        if ns.identity().ok()? != self.identity {
            return None;
        }
        let nl = ns.netlink().ok()?;
        let link = link::by_index(&nl, self.index()).ok()??;
        (link.mac == Some(self.mac())).then_some((ns, nl))
    }

    /// The same interface of the same namespace.
    pub fn is_same(&self, other: &Spot) -> bool {
        (self.identity, self.index, self.mac) == (other.identity, other.index, other.mac)
    }

    /// The interface's index.
    pub fn index(&self) -> IfIndex {
        IfIndex(self.index)
    }

    /// Its hardware address.
    pub fn mac(&self) -> MacAddr {
        MacAddr(self.mac)
    }

    /// Its name.
    pub fn name(&self) -> Option<IfName> {
        self.ifname.parse().ok()
    }
}

fn enable_ipv6(name: IfName) -> kernel::Result<()> {
    sysctl::ensure("net/ipv6/conf/lo/disable_ipv6", "0")?;
    sysctl::ensure(&format!("net/ipv6/conf/{name}/disable_ipv6"), "0").map(drop)
}

/// Brings the interface from one lease, or none, to another, or none. Returns what went wrong.
pub fn change(
    spot: &Spot,
    before: Option<&Terms>,
    after: Option<&Terms>,
    priority: u32,
) -> Vec<kernel::Error> {
    let Some((_, nl)) = spot.enter() else { return Vec::new() };
    let (removals, additions) = plan(spot.index(), before, after, priority);
    let removed = nl.apply_each(removals).into_iter().filter_map(Result::err);
    let mut problems: Vec<kernel::Error> = removed.filter(|error| !error.is_not_found()).collect();
    problems.extend(nl.apply_each(additions).into_iter().filter_map(Result::err));
    problems
}

/// What goes, then what comes. Old routes go before their address, which would take only some of
/// them with it.
fn plan(
    index: IfIndex,
    before: Option<&Terms>,
    after: Option<&Terms>,
    priority: u32,
) -> (Vec<Request>, Vec<Request>) {
    let routes = |terms: &Terms| -> Vec<Route> {
        interface::routes(index, &[terms.ip()], &terms.cni_routes(priority))
    };
    let old = before.map(routes).unwrap_or_default();
    let new = after.map(routes).unwrap_or_default();
    let mut removals: Vec<Request> =
        old.iter().filter(|route| !new.contains(route)).map(route::remove).collect();
    if let Some(before) = before
        && after.map(|after| after.address) != Some(before.address)
    {
        removals.push(addr::remove(index, before.address));
    }
    let mut additions = Vec::new();
    if let Some(after) = after {
        additions.push(addr::replace(index, after.address, AddrOptions::default()));
    }
    additions.extend(new.iter().map(route::replace));
    (removals, additions)
}
