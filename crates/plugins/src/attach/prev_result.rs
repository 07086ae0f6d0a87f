// SPDX-License-Identifier: Apache-2.0
//! The previous result, for chained plugins: plugins that change the interface of an earlier plugin
//! and return its result.

use cni::{CniResult, Error, Interface, IpConfig, Request};
use kernel::link::Link;
use kernel::{Netlink, Netns};

use crate::attach::{interface, netns};
use crate::error::Context;

/// Returns the result of the previous plugins. `missing` is the Go plugin's message for the error.
pub(crate) fn required(request: &Request, missing: &str) -> Result<CniResult, Error> {
    request.prev_result()?.ok_or_else(|| Error::invalid_config(missing))
}

/// Returns the container's interface, and a socket in its namespace.
pub(crate) fn interface(request: &Request, ns: &Netns) -> Result<(Netlink, Link), Error> {
    let inside = ns.netlink().context("open a socket in the container's namespace")?;
    let link = interface::find(&inside, netns::ifname(request)?)?;
    Ok((inside, link))
}

/// The entries of the container's interface in a result, for recording a change. If no entry of
/// this name has the container's sandbox, these are all entries of this name, as in the Go plugin.
pub(crate) fn interfaces_mut<'a>(
    result: &'a mut CniResult,
    request: &'a Request,
) -> impl Iterator<Item = &'a mut Interface> {
    let in_sandbox =
        |one: &Interface| one.name == request.ifname && netns::is_sandbox(request, &one.sandbox);
    let has_sandbox = result.interfaces.iter().any(in_sandbox);
    let is_selected = move |one: &&mut Interface| {
        if has_sandbox { in_sandbox(one) } else { one.name == request.ifname }
    };
    result.interfaces.iter_mut().filter(is_selected)
}

/// The addresses of the container's interface. An address without an interface, as in results
/// before version 0.3.0, counts as one of them.
pub(crate) fn addresses<'a>(
    result: &'a CniResult,
    request: &'a Request,
) -> impl Iterator<Item = &'a IpConfig> {
    let is_on_interface = |ip: &&IpConfig| {
        let interface = ip.interface.and_then(|index| result.interfaces.get(index));
        interface.is_none_or(|one| one.name == request.ifname && !one.sandbox.is_empty())
    };
    result.ips.iter().filter(is_on_interface)
}
