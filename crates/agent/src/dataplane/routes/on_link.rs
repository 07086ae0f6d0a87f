// SPDX-License-Identifier: Apache-2.0
//! Which peers are on a link, as the routes say: those need no tunnel.

use std::collections::HashMap;
use std::net::IpAddr;

use kernel::route::{self, KIND_UNICAST};
use kernel::{IfIndex, IfName, Netlink};
use overlay::plan::Network;

use super::target::PeerUpdate;

/// Looks up all peers again. Whether anything has changed. `is_ours` tells of tunnels, which are no link to a
/// peer.
pub(super) fn refresh(
    nl: &Netlink,
    network: &mut Network,
    is_ours: impl Fn(IfName) -> bool,
) -> kernel::Result<bool> {
    if !network.needs_on_link() {
        return Ok(false);
    }
    let addresses: Vec<IpAddr> = network.public_addresses().collect();
    let found = look_up(nl, &addresses, is_ours)?;
    Ok(network.set_on_link(found))
}

/// Looks up addresses that no peer has had.
pub(super) fn learn(
    nl: &Netlink,
    network: &mut Network,
    updates: &[PeerUpdate],
    is_ours: impl Fn(IfName) -> bool,
) -> kernel::Result<()> {
    if !network.needs_on_link() {
        return Ok(());
    }
    let mut addresses = Vec::new();
    for update in updates {
        if let PeerUpdate::Set { lease, .. } = update {
            let public = lease.attributes.public;
            addresses.extend(public.iter().filter(|address| !network.has_public_address(*address)));
        }
    }
    let found = look_up(nl, &addresses, is_ours)?;
    for address in addresses {
        network.learn_on_link(address, found.get(&address).copied());
    }
    Ok(())
}

/// The link of each address that has no gateway in between, asked for all of them at once.
fn look_up(
    nl: &Netlink,
    addresses: &[IpAddr],
    is_ours: impl Fn(IfName) -> bool,
) -> kernel::Result<HashMap<IpAddr, IfName>> {
    let mut names: HashMap<IfIndex, Option<IfName>> = HashMap::new();
    let mut found = HashMap::new();
    for (address, answer) in addresses.iter().zip(route::lookup_each(nl, addresses)?) {
        // An address that cannot be looked up is not reached, on a link or elsewhere.
        let Ok(Some(route)) = answer else { continue };
        let Some(index) = route.oif.filter(|_| route.gateway.is_none()) else { continue };
        if route.kind != KIND_UNICAST {
            continue;
        }
        let name = match names.get(&index) {
            Some(name) => *name,
            None => *names.entry(index).or_insert(kernel::link::name_of(nl, index)?),
        };
        found.extend(name.filter(|name| !is_ours(*name)).map(|name| (*address, name)));
    }
    Ok(found)
}
