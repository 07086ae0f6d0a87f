// SPDX-License-Identifier: Apache-2.0
//! The host's end of the container's interface, where it is limited.

use cni::{CniResult, Error, Request};
use kernel::link::{self, Link};
use kernel::{IfIndex, IfName, Netlink, Netns};

use crate::fault::OrFault;
use crate::{identity, pod};

/// Its index, for ADD. A name that follows from the attachment, in a result that lists it, is enough: nobody else
/// gives such names.
pub fn index(host: &Netlink, request: &Request, result: &CniResult) -> Result<IfIndex, Error> {
    if let Some(index) = own_name(request, result).and_then(|name| link::index_of(host, name).ok())
    {
        return Ok(index);
    }
    find(host, &pod::open(request)?, request, result).map(|end| end.index)
}

/// What our plugins have called it.
fn own_name(request: &Request, result: &CniResult) -> Option<IfName> {
    let is_listed = |name: &IfName| {
        let mut on_host = result.interfaces.iter().filter(|one| one.sandbox.is_empty());
        on_host.any(|one| one.name == name.as_str())
    };
    identity::host_ifnames(&request.network, &request.attachment()).find(is_listed)
}

/// Finds it by what the kernel says of the container's interface. A result that lists interfaces of the
/// host must list this one: an index alone may also be that of something in another namespace.
pub fn find(
    host: &Netlink,
    ns: &Netns,
    request: &Request,
    result: &CniResult,
) -> Result<Link, Error> {
    let container = pod::find_from(host, ns, pod::ifname(request)?)?;
    let name = container.name;
    if !container.is_kind("veth") {
        let found = container.kind.as_deref().unwrap_or("a device");
        let msg = format!("container interface {name} has no veth peer: it is {found}");
        return Err(Error::internal(msg).with_details("only a veth pair has an end on the host"));
    }
    let peer = container.link.map(|peer| link::by_index(host, peer)).transpose();
    let peer = peer.or_fault("look for the host's interface")?.flatten();
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
