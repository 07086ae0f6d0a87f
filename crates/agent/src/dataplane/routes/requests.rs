// SPDX-License-Identifier: Apache-2.0
//! Converts changes to netlink requests. Pure.

use ipnet::IpNet;
use kernel::addr::{self, AddrOptions};
use kernel::fdb::{self, Fdb};
use kernel::link::{self, Ipip, Kind, NewLink, Vxlan};
use kernel::neigh::{self, Neigh};
use kernel::nexthop::{self, Nexthop};
use kernel::wireguard::{PeerChange, PresharedKey, PublicKey};
use kernel::{Family, IfIndex, IfName, Request, route};
use overlay::desired::{DesiredDevice, DesiredWireguardPeer, DeviceKind, Gateway, VxlanDevice};
use overlay::diff::{Change, DeviceChange};
use overlay::ownership::PROTOCOL;

/// How a change is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// A request that can be sent together with others.
    Send(Request),
    Create(DesiredDevice),
    RemoveDevice(IfName),
    /// Sets the private key and the port of a WireGuard device.
    SetKeys {
        device: IfName,
        listen_port: u16,
    },
    /// Sets a WireGuard peer. Can be sent together with other peers of the device.
    Peer {
        device: IfName,
        peer: PeerChange,
    },
    /// The caller makes the change.
    ByCaller,
    /// The object was removed together with its device.
    Gone,
    /// The object needs this device, which does not exist.
    NoDevice(IfName),
}

/// Converts a change. A route that `is_exclusive` does not replace an existing route.
pub(super) fn step(
    change: &Change,
    owner: &str,
    is_exclusive: bool,
    mut index_of: impl FnMut(IfName) -> Option<IfIndex>,
) -> Step {
    let mut on = |device: &IfName, request: &dyn Fn(IfIndex) -> Request| match index_of(*device) {
        Some(index) => Step::Send(request(index)),
        None if is_removal(change) => Step::Gone,
        None => Step::NoDevice(*device),
    };
    match change {
        Change::CreateDevice(device) => Step::Create(*device),
        Change::RemoveDevice(name) => Step::RemoveDevice(*name),
        Change::ChangeDevice { name, to: DeviceChange::Wireguard { listen_port, .. } } => {
            Step::SetKeys { device: *name, listen_port: *listen_port }
        }
        Change::ChangeDevice { name, to } => on(name, &|index| change_device(index, to, owner)),
        Change::AddAddress(one) => on(&one.device, &|index| add_address(index, one.prefix)),
        Change::RemoveAddress(one) => on(&one.device, &|index| addr::remove(index, one.prefix)),
        Change::SetNeighbour { device, ip, mac } => {
            on(device, &|index| neigh::replace(&Neigh::permanent(index, *ip, *mac)))
        }
        Change::RemoveNeighbour { device, ip } => on(device, &|index| {
            let mac = None;
            neigh::remove(&Neigh { index, ip: *ip, mac, state: neigh::PERMANENT, flags: 0 })
        }),
        Change::SetForwarding { device, mac, dst } => {
            on(device, &|index| fdb::replace(&Fdb::vxlan(index, *mac, *dst)))
        }
        Change::RemoveForwarding { device, mac, dst } => {
            on(device, &|index| fdb::remove(&Fdb::vxlan(index, *mac, *dst)))
        }
        Change::AddNexthop { id, gateway } => {
            on(&gateway.device, &|index| nexthop::add(&new_nexthop(*id, gateway, index)))
        }
        Change::RemoveNexthop { id } => Step::Send(nexthop::remove(*id)),
        Change::SetRoute { route, nexthop } => {
            let set = |index| {
                let desired = route.to_kernel(index, *nexthop);
                if is_exclusive { route::add(&desired) } else { route::replace(&desired) }
            };
            match route.device() {
                Some(device) => on(&device, &|index| set(Some(index))),
                None => Step::Send(set(None)),
            }
        }
        Change::RemoveRoute(observed) => match observed.route.device() {
            Some(device) => on(&device, &|index| route::remove(&observed.to_kernel(Some(index)))),
            None => Step::Send(route::remove(&observed.to_kernel(None))),
        },
        Change::SetPeer { device, key, peer, keeps_endpoint } => {
            Step::Peer { device: *device, peer: set_peer(*key, peer, *keeps_endpoint) }
        }
        Change::RemovePeer { device, key } => {
            Step::Peer { device: *device, peer: PeerChange::remove(*key) }
        }
        Change::CallAdded(_) | Change::CallRemoved(_) => Step::ByCaller,
    }
}

/// Returns whether the change removes an object, so that it succeeds if the object is gone.
pub(super) fn is_removal(change: &Change) -> bool {
    matches!(
        change,
        Change::RemoveDevice(_)
            | Change::RemoveAddress(_)
            | Change::RemoveNeighbour { .. }
            | Change::RemoveForwarding { .. }
            | Change::RemoveNexthop { .. }
            | Change::RemoveRoute(_)
            | Change::RemovePeer { .. }
    )
}

/// Returns the request that creates a device, down and without an alias: `accept_ra` has to be set
/// before the device is up, and the kernel accepts no alias for a new device. `None` for a TUN
/// device, which netlink cannot create.
pub(super) fn create(device: &DesiredDevice) -> Option<Request> {
    let (kind, mac) = match device.kind {
        DeviceKind::Vxlan(vxlan) => (Kind::Vxlan(to_vxlan(&vxlan)), Some(vxlan.mac)),
        DeviceKind::Wireguard { .. } => (Kind::Wireguard, None),
        DeviceKind::Ipip { local } => (Kind::Ipip(Ipip::new(local)), None),
        DeviceKind::Tun => return None,
    };
    let new = NewLink::new(device.name, kind);
    Some(link::create(&NewLink { mtu: Some(device.mtu), mac, ..new }))
}

/// Returns the requests that complete a new device.
pub(super) fn finish(device: &DesiredDevice, owner: &str, index: IfIndex) -> Vec<Request> {
    let mut requests = vec![link::set_alias(index, owner)];
    if device.kind == DeviceKind::Tun {
        requests.push(link::set_mtu(index, device.mtu));
    }
    requests.push(link::set_up(index));
    requests
}

fn change_device(index: IfIndex, to: &DeviceChange, owner: &str) -> Request {
    match to {
        DeviceChange::Owner => link::set_alias(index, owner),
        DeviceChange::Mtu(mtu) => link::set_mtu(index, *mtu),
        DeviceChange::Mac(mac) => link::set_mac(index, *mac),
        DeviceChange::Vxlan(vxlan) => link::set_vxlan(index, &to_vxlan(vxlan)),
        DeviceChange::Ipip { local } => link::set_ipip(index, &Ipip::new(*local)),
        // The keys are set by Step::SetKeys.
        DeviceChange::Up | DeviceChange::Wireguard { .. } => link::set_up(index),
    }
}

fn to_vxlan(vxlan: &VxlanDevice) -> Vxlan {
    Vxlan {
        link: Some(vxlan.lower.index),
        local: Some(vxlan.local),
        port: vxlan.port,
        learning: vxlan.learning,
        gbp: vxlan.gbp,
        ..Vxlan::new(vxlan.vni)
    }
}

/// Without duplicate address detection, because only the agent assigns addresses of the network.
fn add_address(index: IfIndex, prefix: IpNet) -> Request {
    addr::add(index, prefix, AddrOptions { nodad: true, ..AddrOptions::default() })
}

fn new_nexthop(id: u32, gateway: &Gateway, index: IfIndex) -> Nexthop {
    Nexthop {
        gateway: Some(gateway.address),
        onlink: gateway.onlink,
        ..Nexthop::dev(id, Family::of(gateway.address), index, PROTOCOL)
    }
}

/// Sets all attributes, so that those that are not desired are reset.
fn set_peer(key: PublicKey, peer: &DesiredWireguardPeer, keeps_endpoint: bool) -> PeerChange {
    let none = PresharedKey([0; 32]);
    PeerChange {
        preshared_key: Some(peer.psk.clone().unwrap_or(none)),
        endpoint: (!keeps_endpoint).then_some(peer.endpoint),
        keepalive: Some(peer.keepalive.unwrap_or(0)),
        ..PeerChange::new(key, peer.allowed.iter().copied().collect())
    }
}

#[cfg(test)]
mod tests;
