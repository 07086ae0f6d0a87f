// SPDX-License-Identifier: Apache-2.0
//! From what is wanted and what is found to what has to change, in an order in which traffic that
//! flows goes on: devices, then where packets go inside of them, then routes into them; what is no
//! longer wanted last.
//!
//! Nothing of others is touched. Ours are devices with our mark or a name of flannel's, all that
//! hangs on these, and routes and next hops of our [protocol](PROTOCOL).

mod change;
mod devices;
mod found;
mod routes;

use std::collections::BTreeMap;

use kernel::IfName;

pub use self::change::{Change, Conflict, DeviceChange};
use self::devices::Devices;
pub use self::found::{
    Found, FoundDevice, FoundKind, FoundNexthop, FoundPeer, FoundRoute, Gateway, NEXTHOPS,
    PROTOCOL, Scope, default_metric, share_nexthops,
};
use crate::plan::{Address, Device, Part, Wanted, WireguardPeer};

/// What has to change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Difference {
    /// In this order.
    pub changes: Vec<Change>,
    /// What keeps the rest from being right.
    pub conflicts: Vec<Conflict>,
}

/// Compares.
pub fn difference(wanted: &Wanted, found: &Found, scope: &Scope) -> Difference {
    let devices = devices::compare(wanted, found, scope);
    let routes = routes::compare(wanted, found, scope, &devices);
    let compare = Compare { wanted, found, scope, devices: &devices };
    let mut changes = devices.changes.clone();
    changes.extend(compare.missing_addresses());
    let (in_the_way, surplus): (Vec<Address>, Vec<Address>) =
        compare.surplus_addresses().partition(|address| compare.is_gateway(address));
    changes.extend(in_the_way.into_iter().map(Change::RemoveAddress));
    changes.extend(compare.missing_peers());
    changes.extend(compare.missing_forwarding());
    changes.extend(compare.missing_neighbours());
    changes.extend(routes.additions);
    changes.extend(compare.calls());
    changes.extend(routes.removals);
    changes.extend(compare.surplus_neighbours());
    changes.extend(compare.surplus_forwarding());
    changes.extend(compare.surplus_peers());
    changes.extend(surplus.into_iter().map(Change::RemoveAddress));
    changes.extend(devices.surplus.iter().map(|name| Change::RemoveDevice(*name)));
    let conflicts = [devices.conflicts.clone(), routes.conflicts].concat();
    Difference { changes, conflicts }
}

/// What has to change for one peer where all else is as it should be: from its part of the plan
/// before to that after ([`crate::plan::Network`] tells). `nexthops` has the numbers in use, all of
/// them below [`Scope::nexthops_from`]. It costs what the parts are, however many peers there are.
pub fn difference_of_part(
    devices: &BTreeMap<IfName, Device>,
    part: &Part,
    scope: &Scope,
    nexthops: &BTreeMap<Gateway, u32>,
) -> Difference {
    let with_devices = |part: &Wanted| Wanted { devices: devices.clone(), ..part.clone() };
    let found = Found::made(&with_devices(&part.before), scope, nexthops);
    difference(&with_devices(&part.after), &found, scope)
}

struct Compare<'a> {
    wanted: &'a Wanted,
    found: &'a Found,
    scope: &'a Scope,
    devices: &'a Devices,
}

impl Compare<'_> {
    /// Whether something wanted on this device can be made there.
    fn is_usable(&self, device: &IfName) -> bool {
        !self.devices.blocked.contains(device)
    }

    /// Whether what was found on this device is ours and will still be there.
    fn is_ours(&self, device: &IfName) -> bool {
        self.devices.ours.contains(device) && !self.devices.gone.contains(device)
    }

    fn missing_addresses(&self) -> impl Iterator<Item = Change> {
        let is_there = |address: &_| self.found.addresses.contains(address);
        let wanted = self.wanted.addresses.iter().filter(|address| self.is_usable(&address.device));
        wanted
            .filter(move |address| !(self.is_ours(&address.device) && is_there(address)))
            .map(|address| Change::AddAddress(*address))
    }

    /// Others may put addresses on our devices, but not of the network.
    fn surplus_addresses(&self) -> impl Iterator<Item = Address> {
        let ours = self.found.addresses.iter().filter(|address| self.is_ours(&address.device));
        ours.filter(|address| !self.wanted.addresses.contains(address))
            .filter(|address| self.scope.has_prefix(address.prefix))
            .copied()
    }

    /// The kernel takes no gateway that is an address of its own: this node's subnet has become a peer's.
    fn is_gateway(&self, address: &Address) -> bool {
        let gateways = self.wanted.routes.values().filter_map(Gateway::of);
        gateways.map(|gateway| gateway.address).any(|one| one == address.prefix.addr())
    }

    fn missing_neighbours(&self) -> impl Iterator<Item = Change> {
        let has = |key: &(IfName, _)| {
            self.is_ours(&key.0) && !self.devices.without_neighbours.contains(&key.0)
        };
        let wanted = self.wanted.neighbours.iter().filter(|(key, _)| self.is_usable(&key.0));
        wanted
            .filter(move |(key, mac)| !(has(key) && self.found.neighbours.get(key) == Some(mac)))
            .map(|((device, ip), mac)| Change::SetNeighbour { device: *device, ip: *ip, mac: *mac })
    }

    fn surplus_neighbours(&self) -> impl Iterator<Item = Change> {
        let ours = self.found.neighbours.keys().filter(|key| self.is_ours(&key.0));
        ours.filter(|key| !self.devices.without_neighbours.contains(&key.0))
            .filter(|key| !self.wanted.neighbours.contains_key(key))
            .map(|(device, ip)| Change::RemoveNeighbour { device: *device, ip: *ip })
    }

    fn missing_forwarding(&self) -> impl Iterator<Item = Change> {
        let has = |device: IfName, mac, dst| {
            self.is_ours(&device) && self.found.forwarding.contains(&(device, mac, dst))
        };
        let wanted = self.wanted.forwarding.iter().filter(|(key, _)| self.is_usable(&key.0));
        wanted
            .map(|((device, mac), dst)| (*device, *mac, *dst))
            .filter(move |(device, mac, dst)| !has(*device, *mac, *dst))
            .map(|(device, mac, dst)| Change::SetForwarding { device, mac, dst })
    }

    fn surplus_forwarding(&self) -> impl Iterator<Item = Change> {
        let ours = self.found.forwarding.iter().filter(|entry| self.is_ours(&entry.0));
        ours.filter(|(device, mac, dst)| self.wanted.forwarding.get(&(*device, *mac)) != Some(dst))
            .map(|(device, mac, dst)| (*device, *mac, *dst))
            .map(|(device, mac, dst)| Change::RemoveForwarding { device, mac, dst })
    }

    /// Giving a subnet to a peer takes it from the one that had it.
    fn missing_peers(&self) -> impl Iterator<Item = Change> {
        let wanted = self.wanted.wireguard.iter().filter(|(key, _)| self.is_usable(&key.0));
        wanted.filter_map(|(key, peer)| {
            let found = self.found.wireguard.get(key).filter(|_| self.is_ours(&key.0));
            let keeps_endpoint = found.is_some_and(|found| is_endpoint_right(peer, found));
            let is_right = found.is_some_and(|found| is_rest_right(peer, found)) && keeps_endpoint;
            let (device, key) = *key;
            let set = || {
                let peer = Box::new(peer.clone());
                Change::SetPeer { device, key, peer, keeps_endpoint }
            };
            (!is_right).then(set)
        })
    }

    fn surplus_peers(&self) -> impl Iterator<Item = Change> {
        let ours = self.found.wireguard.keys().filter(|key| self.is_ours(&key.0));
        ours.filter(|key| !self.wanted.wireguard.contains_key(key))
            .map(|(device, key)| Change::RemovePeer { device: *device, key: *key })
    }

    fn calls(&self) -> impl Iterator<Item = Change> {
        let (wanted, found) = (&self.wanted.extension, &self.found.extension);
        let added = wanted.iter().filter(|(subnet, peer)| found.get(*subnet) != Some(*peer));
        let removed = found.iter().filter(|(subnet, _)| !wanted.contains_key(*subnet));
        added
            .map(|(_, peer)| Change::CallAdded(peer.clone()))
            .chain(removed.map(|(_, peer)| Change::CallRemoved(peer.clone())))
    }
}

/// A peer that is heard of is where it is.
fn is_endpoint_right(wanted: &WireguardPeer, found: &FoundPeer) -> bool {
    found.endpoint == Some(wanted.endpoint) || found.is_alive
}

fn is_rest_right(wanted: &WireguardPeer, found: &FoundPeer) -> bool {
    wanted.allowed == found.allowed
        && wanted.psk == found.psk
        && wanted.keepalive == found.keepalive
}

#[cfg(test)]
mod tests;
