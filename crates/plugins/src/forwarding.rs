// SPDX-License-Identifier: Apache-2.0
//! The host's switches for passing packets on, for plugins whose host is a gateway.

use std::net::IpAddr;

use cni::Error;
use kernel::link::Forwards;
use kernel::sysctl;

use crate::fault::OrFault;

/// Lets the host forward packets of the families of these addresses. The host's switch sets those of
/// all its interfaces, so what one of them already forwards needs no second look.
pub fn enable(addresses: impl Iterator<Item = IpAddr>, already: Forwards) -> Result<(), Error> {
    let (mut v4, mut v6) = (false, false);
    for address in addresses {
        v4 |= address.is_ipv4();
        v6 |= address.is_ipv6();
    }
    let switches = [
        ("net/ipv4/ip_forward", v4 && !already.ipv4),
        ("net/ipv6/conf/all/forwarding", v6 && !already.ipv6),
    ];
    for (switch, _) in switches.into_iter().filter(|(_, is_wanted)| *is_wanted) {
        sysctl::ensure(switch, "1").or_fault("enable forwarding")?;
    }
    Ok(())
}
