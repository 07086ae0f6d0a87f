// SPDX-License-Identifier: Apache-2.0
//! The interface of a container: how to find it, and how to apply a lease to it. No namespace stays open between two
//! uses, so the interface is looked up each time.

use std::path::{Path, PathBuf};

use cni::{Code, Error};
use kernel::addr::{self, AddrOptions};
use kernel::route::{self, Route};
use kernel::{IfIndex, IfName, MacAddr, Netlink, Netns, Request, link, sysctl};
use serde::{Deserialize, Serialize};

use super::super::lease::Terms;
use crate::attach::interface;
use crate::error::Context;

/// The interface of a container.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContainerInterface {
    /// Path of the namespace.
    pub netns: PathBuf,
    /// Device and inode of the namespace, because another namespace may get the same path.
    identity: (u64, u64),
    index: u32,
    mac: [u8; 6],
    ifname: String,
}

impl ContainerInterface {
    /// Finds an interface that must exist and brings it up.
    pub(super) fn find(
        netns: &Path,
        ifname: &str,
        with_ipv6: bool,
    ) -> Result<ContainerInterface, Error> {
        let ns = Netns::open(netns).map_err(|cause| {
            let code = if cause.is_not_found() { Code::UNKNOWN_CONTAINER } else { Code::INTERNAL };
            Error::because(code, format!("failed to open netns {:?}", netns.display()), &cause)
        })?;
        let name: IfName = ifname.parse().map_err(|cause: kernel::IfNameError| {
            Error::because(Code::BAD_ENVIRONMENT, "CNI_IFNAME", &cause)
        })?;
        let nl = ns.netlink().context("open a socket in the container's namespace")?;
        let link = link::by_name(&nl, name)
            .context("find the container's interface")?
            .ok_or_else(|| Error::internal(format!("interface {name} is not in the container")))?;
        let mac = link.mac.ok_or_else(|| {
            Error::internal(format!("interface {name} has no MAC address of six bytes"))
        })?;
        if with_ipv6 {
            ns.enter(|| enable_ipv6(name)).and_then(|enabled| enabled).context("enable IPv6")?;
        }
        if !link.is_up() {
            nl.apply([link::set_up(link.index)]).context("bring the interface up")?;
        }
        let identity = ns.identity().context("identify the container's namespace")?;
        let (netns, index) = (netns.to_owned(), link.index.0);
        Ok(ContainerInterface { netns, identity, index, mac: mac.0, ifname: ifname.to_owned() })
    }

    /// Opens the namespace if it still is the same and has the same interface.
    pub(super) fn enter(&self) -> Option<(Netns, Netlink)> {
        let ns = Netns::open(&self.netns).ok()?;
        if ns.identity().ok()? != self.identity {
            return None;
        }
        let nl = ns.netlink().ok()?;
        let link = link::by_index(&nl, self.index()).ok()??;
        (link.mac == Some(self.mac())).then_some((ns, nl))
    }

    /// Returns whether both are the same interface in the same namespace.
    pub(super) fn is_same(&self, other: &ContainerInterface) -> bool {
        (self.identity, self.index, self.mac) == (other.identity, other.index, other.mac)
    }

    pub(super) fn index(&self) -> IfIndex {
        IfIndex(self.index)
    }

    pub(super) fn mac(&self) -> MacAddr {
        MacAddr(self.mac)
    }

    pub(super) fn name(&self) -> Option<IfName> {
        self.ifname.parse().ok()
    }
}

fn enable_ipv6(name: IfName) -> kernel::Result<()> {
    sysctl::ensure("net/ipv6/conf/lo/disable_ipv6", "0")?;
    sysctl::ensure(&format!("net/ipv6/conf/{name}/disable_ipv6"), "0").map(drop)
}

/// Replaces the addresses and routes of one lease with those of another. Either may be absent. Returns all errors.
pub(super) fn change(
    interface: &ContainerInterface,
    before: Option<&Terms>,
    after: Option<&Terms>,
    priority: u32,
) -> Vec<kernel::Error> {
    let Some((_, nl)) = interface.enter() else { return Vec::new() };
    let (removals, additions) = plan(interface.index(), before, after, priority);
    let removed = nl.apply_each(removals).into_iter().filter_map(Result::err);
    let mut problems: Vec<kernel::Error> = removed.filter(|error| !error.is_not_found()).collect();
    problems.extend(nl.apply_each(additions).into_iter().filter_map(Result::err));
    problems
}

/// Returns the requests that remove, then those that add. Routes are removed before their address, because the kernel
/// removes only some of them with the address.
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
