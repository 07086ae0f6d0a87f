// SPDX-License-Identifier: Apache-2.0
//! From a change to what is asked of the kernel. Pure.

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

/// What a change is done by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Can be sent together with those of other changes.
    Send(Request),
    Create(DesiredDevice),
    RemoveDevice(IfName),
    /// WireGuard: the private key, and this port.
    SetKeys {
        device: IfName,
        listen_port: u16,
    },
    /// WireGuard: can be told together with others of the device.
    Peer {
        device: IfName,
        peer: PeerChange,
    },
    /// Somebody else does it.
    Leave,
    /// The device it was on is gone, and it with it.
    Gone,
    /// The device it should be on is not there.
    NoDevice(IfName),
}

/// `exclusive`: no route to this destination has been seen, so one that is there is another's.
pub(super) fn step(
    change: &Change,
    mark: &str,
    exclusive: bool,
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
        Change::ChangeDevice { name, to } => on(name, &|index| change_device(index, to, mark)),
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
                if exclusive { route::add(&desired) } else { route::replace(&desired) }
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
        Change::CallAdded(_) | Change::CallRemoved(_) => Step::Leave,
    }
}

/// Whether something that is gone is what the change wants.
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

/// The device, down and without its mark: `accept_ra` has to be set before it goes up, and the mark cannot be
/// given at birth. None for one that netlink does not make.
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

/// What is left to do for a device that was made.
pub(super) fn finish(device: &DesiredDevice, mark: &str, index: IfIndex) -> Vec<Request> {
    let mut requests = vec![link::set_alias(index, mark)];
    if device.kind == DeviceKind::Tun {
        requests.push(link::set_mtu(index, device.mtu));
    }
    requests.push(link::set_up(index));
    requests
}

fn change_device(index: IfIndex, to: &DeviceChange, mark: &str) -> Request {
    match to {
        DeviceChange::Owner => link::set_alias(index, mark),
        DeviceChange::Mtu(mtu) => link::set_mtu(index, *mtu),
        DeviceChange::Mac(mac) => link::set_mac(index, *mac),
        DeviceChange::Vxlan(vxlan) => link::set_vxlan(index, &to_vxlan(vxlan)),
        DeviceChange::Ipip { local } => link::set_ipip(index, &Ipip::new(*local)),
        // Keys are no link's: [`Step::SetKeys`].
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

/// Only we give them out, so nobody is asked whether they are free.
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

/// All of it, so that what is not wanted goes.
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
