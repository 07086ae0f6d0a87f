// SPDX-License-Identifier: Apache-2.0
//! What plugins have in common that change what others have made: the result that comes in is the
//! one that goes out, and the interface meant is the container's of the request.

use cni::{CniResult, Error, Interface, IpConfig, Request};
use kernel::link::Link;
use kernel::{Netlink, Netns};

use crate::fault::OrFault;
use crate::pod;

/// The result of the plugins before this one, which ADD cannot do without. `missing` is the Go plugin's
/// message for the error.
pub fn prev_result(request: &Request, missing: &str) -> Result<CniResult, Error> {
    request.prev_result()?.ok_or_else(|| {
        Error::invalid_config(missing)
            .with_details("put a plugin that makes an interface before it in the list")
    })
}

/// The container's interface, and a socket beside it.
pub fn interface(request: &Request, ns: &Netns) -> Result<(Netlink, Link), Error> {
    let inside = ns.netlink().or_fault("open a socket in the container's namespace")?;
    let link = pod::find(&inside, pod::ifname(request)?)?;
    Ok((inside, link))
}

/// The container's interface in a result, to tell of a change. If no entry of that name is known to be in the
/// container's namespace, all entries of that name are taken for it, as in the Go plugin.
pub fn interfaces_mut<'a>(
    result: &'a mut CniResult,
    request: &'a Request,
) -> impl Iterator<Item = &'a mut Interface> {
    let is_ours =
        |one: &Interface| one.name == request.ifname && pod::is_sandbox(request, &one.sandbox);
    let is_any_ours = result.interfaces.iter().any(is_ours);
    let is_told = move |one: &&mut Interface| {
        if is_any_ours { is_ours(one) } else { one.name == request.ifname }
    };
    result.interfaces.iter_mut().filter(is_told)
}

/// The addresses of the container's interface. One that names no interface, as in results before
/// 0.3.0, is taken to be on it.
pub fn addresses<'a>(
    result: &'a CniResult,
    request: &'a Request,
) -> impl Iterator<Item = &'a IpConfig> {
    let is_ours = |ip: &&IpConfig| {
        let interface = ip.interface.and_then(|index| result.interfaces.get(index));
        interface.is_none_or(|one| one.name == request.ifname && !one.sandbox.is_empty())
    };
    result.ips.iter().filter(is_ours)
}
