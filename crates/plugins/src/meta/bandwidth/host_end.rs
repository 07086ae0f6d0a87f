// SPDX-License-Identifier: Apache-2.0
//! The host end of the container's interface, where the limits are applied.

use cni::{CniResult, Error, Request};
use kernel::link::{self, Link};
use kernel::{IfName, Netlink, Netns};

use crate::attach::{interface, names, netns};
use crate::error::Context;

/// The host end, for ADD. A name derived from the attachment is enough if the result lists it: only
/// podwire's plugins use such names.
pub(super) fn of_add(host: &Netlink, request: &Request, result: &CniResult) -> Result<Link, Error> {
    let own = own_name(request, result).and_then(|name| link::by_name(host, name).ok().flatten());
    match own {
        Some(end) => Ok(end),
        None => find(host, &netns::open(request)?, request, result),
    }
}

/// The name that podwire's plugins give to the host end.
fn own_name(request: &Request, result: &CniResult) -> Option<IfName> {
    let is_listed = |name: &IfName| {
        let mut on_host = result.interfaces.iter().filter(|one| one.sandbox.is_empty());
        on_host.any(|one| one.name == name.as_str())
    };
    names::host_ifnames(&request.network, &request.attachment()).find(is_listed)
}

/// Finds the host end through the container's interface. If the result lists host interfaces, it
/// must list this one: the index alone may belong to an interface in another namespace.
pub(super) fn find(
    host: &Netlink,
    ns: &Netns,
    request: &Request,
    result: &CniResult,
) -> Result<Link, Error> {
    let container = interface::find_from(host, ns, netns::ifname(request)?)?;
    let name = container.name;
    if !container.is_kind("veth") {
        let found = container.kind.as_deref().unwrap_or("a device");
        let msg = format!("container interface {name} has no veth peer: it is {found}");
        return Err(Error::internal(msg).with_details("only a veth pair has an end on the host"));
    }
    let peer = container.link.map(|peer| link::by_index(host, peer)).transpose();
    let peer = peer.context("look for the host's interface")?.flatten();
    let is_other_end = |peer: &Link| peer.is_kind("veth") && peer.link == Some(container.index);
    let peer = peer.filter(is_other_end).ok_or_else(|| {
        let peer = container.link.map(|peer| peer.to_string()).unwrap_or_default();
        let details = format!("the other end of container interface {name} is not on the host");
        Error::internal(format!("veth peer with index {peer} is not in host ns"))
            .with_details(details)
    })?;
    let mut on_host = result.interfaces.iter().filter(|one| one.sandbox.is_empty()).peekable();
    if on_host.peek().is_some() && on_host.all(|one| one.name != peer.name.as_str()) {
        let msg = "no veth peer of container interface found in host ns";
        return Err(Error::internal(msg).with_details(format!(
            "prevResult lists interfaces of the host, but not {}, the other end of {name}",
            peer.name
        )));
    }
    Ok(peer)
}
