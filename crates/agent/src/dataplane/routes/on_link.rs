// SPDX-License-Identifier: Apache-2.0
//! Finds the peers that the routing table reaches without a gateway. They need no tunnel.

use std::collections::HashMap;
use std::net::IpAddr;

use kernel::route::{self, KIND_UNICAST};
use kernel::{IfIndex, IfName, Netlink};
use overlay::plan::AnyNetwork;

use super::target::PeerUpdate;

/// Looks up all peers again. Returns whether anything has changed. `is_tunnel` selects the agent's
/// devices: a peer behind a tunnel is not on a link.
pub(super) fn refresh(
    nl: &Netlink,
    network: &mut AnyNetwork,
    is_tunnel: impl Fn(IfName) -> bool,
) -> kernel::Result<bool> {
    if !network.needs_on_link() {
        return Ok(false);
    }
    let addresses = network.public_addresses();
    let on_link = look_up(nl, &addresses, is_tunnel)?;
    Ok(network.set_on_link(on_link))
}

/// Looks up the addresses in these updates that no peer has yet.
pub(super) fn learn(
    nl: &Netlink,
    network: &mut AnyNetwork,
    updates: &[PeerUpdate],
    is_tunnel: impl Fn(IfName) -> bool,
) -> kernel::Result<()> {
    if !network.needs_on_link() {
        return Ok(());
    }
    let mut addresses = Vec::new();
    for update in updates {
        let public = match update {
            PeerUpdate::Set { lease, .. } => lease.attributes.public,
            PeerUpdate::Node { node: Some(node), .. } => node.addresses,
            _ => continue,
        };
        addresses.extend(public.iter().filter(|address| !network.has_public_address(*address)));
    }
    let on_link = look_up(nl, &addresses, is_tunnel)?;
    for address in addresses {
        network.learn_on_link(address, on_link.get(&address).copied());
    }
    Ok(())
}

/// Returns the link of each address that is reached without a gateway. Sends all lookups at once.
fn look_up(
    nl: &Netlink,
    addresses: &[IpAddr],
    is_tunnel: impl Fn(IfName) -> bool,
) -> kernel::Result<HashMap<IpAddr, IfName>> {
    let mut names: HashMap<IfIndex, Option<IfName>> = HashMap::new();
    let mut on_link = HashMap::new();
    for (address, answer) in addresses.iter().zip(route::lookup_each(nl, addresses)?) {
        // An error means that the address is unreachable.
        let Ok(Some(route)) = answer else { continue };
        let Some(index) = route.oif.filter(|_| route.gateway.is_none()) else { continue };
        if route.kind != KIND_UNICAST {
            continue;
        }
        let name = match names.get(&index) {
            Some(name) => *name,
            None => *names.entry(index).or_insert(kernel::link::name_of(nl, index)?),
        };
        on_link.extend(name.filter(|name| !is_tunnel(*name)).map(|name| (*address, name)));
    }
    Ok(on_link)
}
