// SPDX-License-Identifier: Apache-2.0
//! From what is desired and what is observed to what has to change, in an order in which traffic that
//! flows goes on: devices, then where packets go inside of them, then routes into them; what is no
//! longer desired last.
//!
//! Nothing of others is touched. Ours are devices with our mark or a name of flannel's, all that
//! hangs on these, and routes and next hops of our [protocol](PROTOCOL).

mod change;
mod devices;
mod routes;

use std::collections::BTreeMap;

use kernel::IfName;

pub use self::change::{Change, Conflict, DeviceChange};
use self::devices::Devices;
use crate::desired::{DesiredDevice, DesiredState, DesiredWireguardPeer, DeviceAddress, Gateway};
use crate::observed::{ObservedState, ObservedWireguardPeer};
use crate::ownership::Ownership;
use crate::plan::PeerChange;

/// What has to change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diff {
    /// In this order.
    pub changes: Vec<Change>,
    /// What keeps the rest from being right.
    pub conflicts: Vec<Conflict>,
}

/// Compares.
pub fn diff(desired: &DesiredState, observed: &ObservedState, ownership: &Ownership) -> Diff {
    let devices = devices::compare(desired, observed, ownership);
    let routes = routes::compare(desired, observed, ownership, &devices);
    let compare = Compare { desired, observed, ownership, devices: &devices };
    let mut changes = devices.changes.clone();
    changes.extend(compare.missing_addresses());
    let (in_the_way, surplus): (Vec<DeviceAddress>, Vec<DeviceAddress>) =
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
    Diff { changes, conflicts }
}

/// What has to change for one peer where all else is as it should be: from its part of the plan
/// before to that after ([`crate::plan::Network`] tells). `nexthops` has the numbers in use, all of
/// them below [`Ownership::first_free_nexthop`]. It costs what the parts are, however many peers there are.
pub fn diff_peer(
    devices: &BTreeMap<IfName, DesiredDevice>,
    part: &PeerChange,
    ownership: &Ownership,
    nexthops: &BTreeMap<Gateway, u32>,
) -> Diff {
    let with_devices =
        |part: &DesiredState| DesiredState { devices: devices.clone(), ..part.clone() };
    let observed = ObservedState::from_desired(&with_devices(&part.before), ownership, nexthops);
    diff(&with_devices(&part.after), &observed, ownership)
}

struct Compare<'a> {
    desired: &'a DesiredState,
    observed: &'a ObservedState,
    ownership: &'a Ownership,
    devices: &'a Devices,
}

impl Compare<'_> {
    /// Whether something desired on this device can be made there.
    fn is_usable(&self, device: &IfName) -> bool {
        !self.devices.blocked.contains(device)
    }

    /// Whether what was observed on this device is ours and will still be there.
    fn is_ours(&self, device: &IfName) -> bool {
        self.devices.ours.contains(device) && !self.devices.gone.contains(device)
    }

    fn missing_addresses(&self) -> impl Iterator<Item = Change> {
        let is_there = |address: &_| self.observed.addresses.contains(address);
        let desired =
            self.desired.addresses.iter().filter(|address| self.is_usable(&address.device));
        desired
            .filter(move |address| !(self.is_ours(&address.device) && is_there(address)))
            .map(|address| Change::AddAddress(*address))
    }

    /// Others may put addresses on our devices, but not of the network.
    fn surplus_addresses(&self) -> impl Iterator<Item = DeviceAddress> {
        let ours = self.observed.addresses.iter().filter(|address| self.is_ours(&address.device));
        ours.filter(|address| !self.desired.addresses.contains(address))
            .filter(|address| self.ownership.has_prefix(address.prefix))
            .copied()
    }

    /// The kernel takes no gateway that is an address of its own: this node's subnet has become a peer's.
    fn is_gateway(&self, address: &DeviceAddress) -> bool {
        let gateways = self.desired.routes.values().filter_map(Gateway::of);
        gateways.map(|gateway| gateway.address).any(|one| one == address.prefix.addr())
    }

    fn missing_neighbours(&self) -> impl Iterator<Item = Change> {
        let has = |key: &(IfName, _)| {
            self.is_ours(&key.0) && !self.devices.without_neighbours.contains(&key.0)
        };
        let desired = self.desired.neighbours.iter().filter(|(key, _)| self.is_usable(&key.0));
        desired
            .filter(move |(key, mac)| !(has(key) && self.observed.neighbours.get(key) == Some(mac)))
            .map(|((device, ip), mac)| Change::SetNeighbour { device: *device, ip: *ip, mac: *mac })
    }

    fn surplus_neighbours(&self) -> impl Iterator<Item = Change> {
        let ours = self.observed.neighbours.keys().filter(|key| self.is_ours(&key.0));
        ours.filter(|key| !self.devices.without_neighbours.contains(&key.0))
            .filter(|key| !self.desired.neighbours.contains_key(key))
            .map(|(device, ip)| Change::RemoveNeighbour { device: *device, ip: *ip })
    }

    fn missing_forwarding(&self) -> impl Iterator<Item = Change> {
        let has = |device: IfName, mac, dst| {
            self.is_ours(&device) && self.observed.forwarding.contains(&(device, mac, dst))
        };
        let desired = self.desired.forwarding.iter().filter(|(key, _)| self.is_usable(&key.0));
        desired
            .map(|((device, mac), dst)| (*device, *mac, *dst))
            .filter(move |(device, mac, dst)| !has(*device, *mac, *dst))
            .map(|(device, mac, dst)| Change::SetForwarding { device, mac, dst })
    }

    fn surplus_forwarding(&self) -> impl Iterator<Item = Change> {
        let ours = self.observed.forwarding.iter().filter(|entry| self.is_ours(&entry.0));
        ours.filter(|(device, mac, dst)| self.desired.forwarding.get(&(*device, *mac)) != Some(dst))
            .map(|(device, mac, dst)| (*device, *mac, *dst))
            .map(|(device, mac, dst)| Change::RemoveForwarding { device, mac, dst })
    }

    /// Giving a subnet to a peer takes it from the one that had it.
    fn missing_peers(&self) -> impl Iterator<Item = Change> {
        let desired = self.desired.wireguard.iter().filter(|(key, _)| self.is_usable(&key.0));
        desired.filter_map(|(key, peer)| {
            let observed = self.observed.wireguard.get(key).filter(|_| self.is_ours(&key.0));
            let keeps_endpoint = observed.is_some_and(|observed| is_endpoint_right(peer, observed));
            let is_right =
                observed.is_some_and(|observed| is_rest_right(peer, observed)) && keeps_endpoint;
            let (device, key) = *key;
            let set = || {
                let peer = Box::new(peer.clone());
                Change::SetPeer { device, key, peer, keeps_endpoint }
            };
            (!is_right).then(set)
        })
    }

    fn surplus_peers(&self) -> impl Iterator<Item = Change> {
        let ours = self.observed.wireguard.keys().filter(|key| self.is_ours(&key.0));
        ours.filter(|key| !self.desired.wireguard.contains_key(key))
            .map(|(device, key)| Change::RemovePeer { device: *device, key: *key })
    }

    fn calls(&self) -> impl Iterator<Item = Change> {
        let (desired, observed) = (&self.desired.extension, &self.observed.extension);
        let added = desired.iter().filter(|(subnet, peer)| observed.get(*subnet) != Some(*peer));
        let removed = observed.iter().filter(|(subnet, _)| !desired.contains_key(*subnet));
        added
            .map(|(_, peer)| Change::CallAdded(peer.clone()))
            .chain(removed.map(|(_, peer)| Change::CallRemoved(peer.clone())))
    }
}

/// A peer that is heard of is where it is.
fn is_endpoint_right(desired: &DesiredWireguardPeer, observed: &ObservedWireguardPeer) -> bool {
    observed.endpoint == Some(desired.endpoint) || observed.is_alive
}

fn is_rest_right(desired: &DesiredWireguardPeer, observed: &ObservedWireguardPeer) -> bool {
    desired.allowed == observed.allowed
        && desired.psk == observed.psk
        && desired.keepalive == observed.keepalive
}

#[cfg(test)]
mod tests;
