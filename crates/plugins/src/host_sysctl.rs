// SPDX-License-Identifier: Apache-2.0
//! Sysctls of the host: forwarding, and protection from router advertisements of containers.

use std::net::IpAddr;

use cni::Error;
use kernel::{Errno, IfName, sysctl};

use crate::error::Context;

/// Enables forwarding for the families of these addresses.
pub(crate) fn enable_forwarding(addresses: impl Iterator<Item = IpAddr>) -> Result<(), Error> {
    let (mut v4, mut v6) = (false, false);
    for address in addresses {
        v4 |= address.is_ipv4();
        v6 |= address.is_ipv6();
    }
    let sysctls = [("net/ipv4/ip_forward", v4), ("net/ipv6/conf/all/forwarding", v6)];
    for (name, _) in sysctls.into_iter().filter(|(_, is_needed)| *is_needed) {
        sysctl::ensure(name, "1").context("enable forwarding")?;
    }
    Ok(())
}

/// Keeps a container that sends router advertisements from configuring addresses and routes on the
/// host.
pub(crate) fn ignore_router_advertisements(interface: IfName) -> Result<(), Error> {
    disable(interface, "accept_ra")
}

/// Disables duplicate address detection. The interface's MAC address was chosen by a plugin, so its
/// addresses are unique. With detection, the host could not send neighbour solicitations to
/// containers for one or two seconds.
pub(crate) fn disable_dad(interface: IfName) -> Result<(), Error> {
    disable(interface, "accept_dad")
}

/// Does nothing if the kernel has no IPv6, or if the sysctls are read-only, as inside a container.
fn disable(interface: IfName, key: &str) -> Result<(), Error> {
    match sysctl::write(&format!("net/ipv6/conf/{interface}/{key}"), "0") {
        Err(error) if error.is_not_found() || is_denied(&error) => Ok(()),
        other => other.context("set up the host's interface"),
    }
}

fn is_denied(error: &kernel::Error) -> bool {
    matches!(error.errno, Errno::ROFS | Errno::ACCESS | Errno::PERM)
}
