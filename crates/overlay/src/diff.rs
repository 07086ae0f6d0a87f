// SPDX-License-Identifier: Apache-2.0
//! Compares desired with observed state and returns the changes, ordered so that existing traffic
//! continues: devices first, then forwarding and neighbour entries and peers, then the routes that
//! use them. Removals come last.
//!
//! Foreign objects are never changed. The agent owns devices with its owner tag or one of flannel's
//! names, everything on these devices, and routes and next hops of its own
//! [protocol](crate::ownership::PROTOCOL).

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

/// Difference between desired and observed state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diff {
    /// Changes, to be applied in this order.
    pub changes: Vec<Change>,
    /// Foreign objects that prevent further changes.
    pub conflicts: Vec<Conflict>,
}

/// Compares the complete desired state with the observed state.
pub fn diff(desired: &DesiredState, observed: &ObservedState, ownership: &Ownership) -> Diff {
    let devices = devices::compare(desired, observed, ownership);
    let routes = routes::compare(desired, observed, ownership, &devices);
    let comparison = Comparison { desired, observed, ownership, devices: &devices };
    let mut changes = devices.changes.clone();
    changes.extend(comparison.missing_addresses());
    let (blocking, surplus): (Vec<DeviceAddress>, Vec<DeviceAddress>) =
        comparison.surplus_addresses().partition(|address| comparison.is_gateway(address));
    changes.extend(blocking.into_iter().map(Change::RemoveAddress));
    changes.extend(comparison.missing_peers());
    changes.extend(comparison.missing_forwarding());
    changes.extend(comparison.missing_neighbours());
    changes.extend(routes.additions);
    changes.extend(comparison.extension_calls());
    changes.extend(routes.removals);
    changes.extend(comparison.surplus_neighbours());
    changes.extend(comparison.surplus_forwarding());
    changes.extend(comparison.surplus_peers());
    changes.extend(surplus.into_iter().map(Change::RemoveAddress));
    changes.extend(devices.surplus.iter().map(|name| Change::RemoveDevice(*name)));
    let conflicts = [devices.conflicts.clone(), routes.conflicts].concat();
    Diff { changes, conflicts }
}

/// Returns the changes for one peer, assuming that everything else is as desired. [`PeerChange`] has
/// the peer's desired state before and after. `nexthops` has the next-hop IDs in use, all of them
/// below [`Ownership::first_free_nexthop`]. The cost does not depend on the number of peers.
pub fn diff_peer(
    devices: &BTreeMap<IfName, DesiredDevice>,
    change: &PeerChange,
    ownership: &Ownership,
    nexthops: &BTreeMap<Gateway, u32>,
) -> Diff {
    let with_devices =
        |peer: &DesiredState| DesiredState { devices: devices.clone(), ..peer.clone() };
    let before = with_devices(&change.before);
    let observed = ObservedState::from_desired(&before, ownership, nexthops);
    diff(&with_devices(&change.after), &observed, ownership)
}

struct Comparison<'a> {
    desired: &'a DesiredState,
    observed: &'a ObservedState,
    ownership: &'a Ownership,
    devices: &'a Devices,
}

impl Comparison<'_> {
    /// Returns whether desired objects can be created on this device.
    fn is_usable(&self, device: &IfName) -> bool {
        !self.devices.blocked.contains(device)
    }

    /// Returns whether observed objects on this device are the agent's and stay.
    fn is_own(&self, device: &IfName) -> bool {
        self.devices.ours.contains(device) && !self.devices.gone.contains(device)
    }

    fn missing_addresses(&self) -> impl Iterator<Item = Change> {
        let exists = |address: &_| self.observed.addresses.contains(address);
        let desired =
            self.desired.addresses.iter().filter(|address| self.is_usable(&address.device));
        desired
            .filter(move |address| !(self.is_own(&address.device) && exists(address)))
            .map(|address| Change::AddAddress(*address))
    }

    /// Other programs may add addresses to the agent's devices, except addresses of the network.
    fn surplus_addresses(&self) -> impl Iterator<Item = DeviceAddress> {
        let own = self.observed.addresses.iter().filter(|address| self.is_own(&address.device));
        own.filter(|address| !self.desired.addresses.contains(address))
            .filter(|address| self.ownership.has_prefix(address.prefix))
            .copied()
    }

    /// Returns whether an address is the gateway of a desired route. The kernel refuses a gateway that
    /// is a local address. This happens after this node's old subnet was leased to a peer.
    fn is_gateway(&self, address: &DeviceAddress) -> bool {
        let gateways = self.desired.routes.values().filter_map(Gateway::of);
        gateways.map(|gateway| gateway.address).any(|one| one == address.prefix.addr())
    }

    fn missing_neighbours(&self) -> impl Iterator<Item = Change> {
        let keeps_neighbours = |key: &(IfName, _)| {
            self.is_own(&key.0) && !self.devices.without_neighbours.contains(&key.0)
        };
        let exists = move |key: &(IfName, _), mac| {
            keeps_neighbours(key) && self.observed.neighbours.get(key) == Some(mac)
        };
        let desired = self.desired.neighbours.iter().filter(|(key, _)| self.is_usable(&key.0));
        desired
            .filter(move |(key, mac)| !exists(key, mac))
            .map(|((device, ip), mac)| Change::SetNeighbour { device: *device, ip: *ip, mac: *mac })
    }

    fn surplus_neighbours(&self) -> impl Iterator<Item = Change> {
        let own = self.observed.neighbours.keys().filter(|key| self.is_own(&key.0));
        own.filter(|key| !self.devices.without_neighbours.contains(&key.0))
            .filter(|key| !self.desired.neighbours.contains_key(key))
            .map(|(device, ip)| Change::RemoveNeighbour { device: *device, ip: *ip })
    }

    fn missing_forwarding(&self) -> impl Iterator<Item = Change> {
        let exists = |device: IfName, mac, dst| {
            self.is_own(&device) && self.observed.forwarding.contains(&(device, mac, dst))
        };
        let desired = self.desired.forwarding.iter().filter(|(key, _)| self.is_usable(&key.0));
        desired
            .map(|((device, mac), dst)| (*device, *mac, *dst))
            .filter(move |(device, mac, dst)| !exists(*device, *mac, *dst))
            .map(|(device, mac, dst)| Change::SetForwarding { device, mac, dst })
    }

    fn surplus_forwarding(&self) -> impl Iterator<Item = Change> {
        let own = self.observed.forwarding.iter().filter(|entry| self.is_own(&entry.0));
        own.filter(|(device, mac, dst)| self.desired.forwarding.get(&(*device, *mac)) != Some(dst))
            .map(|(device, mac, dst)| (*device, *mac, *dst))
            .map(|(device, mac, dst)| Change::RemoveForwarding { device, mac, dst })
    }

    /// The kernel moves an allowed subnet from its old peer to the new one, so setting the new peer
    /// is enough.
    fn missing_peers(&self) -> impl Iterator<Item = Change> {
        let desired = self.desired.wireguard.iter().filter(|(key, _)| self.is_usable(&key.0));
        desired.filter_map(|(key, peer)| {
            let observed = self.observed.wireguard.get(key).filter(|_| self.is_own(&key.0));
            let keeps_endpoint = observed.is_some_and(|observed| endpoint_matches(peer, observed));
            let rest_matches = observed.is_some_and(|observed| rest_matches(peer, observed));
            let (device, key) = *key;
            let set = || {
                let peer = Box::new(peer.clone());
                Change::SetPeer { device, key, peer, keeps_endpoint }
            };
            (!(keeps_endpoint && rest_matches)).then(set)
        })
    }

    fn surplus_peers(&self) -> impl Iterator<Item = Change> {
        let own = self.observed.wireguard.keys().filter(|key| self.is_own(&key.0));
        own.filter(|key| !self.desired.wireguard.contains_key(key))
            .map(|(device, key)| Change::RemovePeer { device: *device, key: *key })
    }

    fn extension_calls(&self) -> impl Iterator<Item = Change> {
        let (desired, called) = (&self.desired.extension, &self.observed.extension);
        let added = desired.iter().filter(|(subnet, peer)| called.get(*subnet) != Some(*peer));
        let removed = called.iter().filter(|(subnet, _)| !desired.contains_key(*subnet));
        added
            .map(|(_, peer)| Change::CallAdded(peer.clone()))
            .chain(removed.map(|(_, peer)| Change::CallRemoved(peer.clone())))
    }
}

/// WireGuard keeps the endpoint of a live peer up to date by itself.
fn endpoint_matches(desired: &DesiredWireguardPeer, observed: &ObservedWireguardPeer) -> bool {
    observed.endpoint == Some(desired.endpoint) || observed.is_alive
}

fn rest_matches(desired: &DesiredWireguardPeer, observed: &ObservedWireguardPeer) -> bool {
    desired.allowed == observed.allowed
        && desired.psk == observed.psk
        && desired.keepalive == observed.keepalive
}

#[cfg(test)]
mod tests;
