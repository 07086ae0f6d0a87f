// SPDX-License-Identifier: Apache-2.0
//! The host's switches for passing packets on and for taking no orders from containers.

use std::net::IpAddr;

use cni::Error;
use kernel::{Errno, IfName, sysctl};

use crate::fault::OrFault;

/// Lets the host forward packets of the families of these addresses.
pub fn enable(addresses: impl Iterator<Item = IpAddr>) -> Result<(), Error> {
    let (mut v4, mut v6) = (false, false);
    for address in addresses {
        v4 |= address.is_ipv4();
        v6 |= address.is_ipv6();
    }
    let switches = [("net/ipv4/ip_forward", v4), ("net/ipv6/conf/all/forwarding", v6)];
    for (switch, _) in switches.into_iter().filter(|(_, is_wanted)| *is_wanted) {
        sysctl::ensure(switch, "1").or_fault("enable forwarding")?;
    }
    Ok(())
}

/// A container that says it is a router must not give the host addresses and routes.
pub fn ignore_routers(interface: IfName) -> Result<(), Error> {
    turn_off(interface, "accept_ra")
}

/// An interface whose hardware address we chose has addresses that nobody else has. Without this the host
/// could not ask for containers on it before the kernel has tried its own address, a second or two.
pub fn try_no_addresses(interface: IfName) -> Result<(), Error> {
    turn_off(interface, "accept_dad")
}

/// Where there is no IPv6, or the switches cannot be written from within a container, there is nothing to be
/// done.
fn turn_off(interface: IfName, switch: &str) -> Result<(), Error> {
    match sysctl::write(&format!("net/ipv6/conf/{interface}/{switch}"), "0") {
        Err(error) if error.is_not_found() || is_out_of_reach(&error) => Ok(()),
        other => other.or_fault("set up the host's interface"),
    }
}

fn is_out_of_reach(error: &kernel::Error) -> bool {
    matches!(error.errno, Errno::ROFS | Errno::ACCESS | Errno::PERM)
}
