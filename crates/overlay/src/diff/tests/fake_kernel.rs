// SPDX-License-Identifier: Apache-2.0
//! An in-memory kernel. Changes have the effect that they have in the real one.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;

use kernel::wireguard::PublicKey;
use kernel::{Family, IfIndex, MacAddr};

use super::super::*;
use crate::desired::{DesiredRoute, DeviceAddress, DeviceKind, Gateway};
use crate::lease::Lease;
use crate::netconf::NetConf;
use crate::observed::{
    ObservedDevice, ObservedKind, ObservedNexthop, ObservedRoute, ObservedWireguardPeer,
};
use crate::ownership::{NEXTHOP_IDS, Ownership, PROTOCOL};
use crate::plan::{Node, Peer, Underlay, plan};
use crate::publish::{self, Identity};
use crate::{Addresses, Prefixes, mac};

/// The desired state of node 1 and the state of its kernel.
pub(super) struct FakeKernel {
    pub(super) desired: DesiredState,
    pub(super) observed: ObservedState,
    pub(super) ownership: Ownership,
}

fn conf(backend: &str) -> NetConf {
    let text = format!(r#"{{"Network": "10.5.0.0/16", "Backend": {{"Type": "{backend}"}}}}"#);
    NetConf::parse(&text).unwrap()
}

fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(192, 0, 2, 0)) + n)
}

fn lease(conf: &NetConf, n: u32, subnet: &str) -> Lease {
    let addresses = Addresses { v4: Some(address(n)), v6: None };
    let mut key = [0; 32];
    key[..4].copy_from_slice(&n.to_be_bytes());
    let identity = Identity {
        seed: &n.to_be_bytes(),
        addresses,
        public: addresses,
        wireguard_key: Some(PublicKey(key)),
        extension_output: None,
    };
    let attributes = publish::attributes(conf, &identity).unwrap();
    Lease { subnets: Prefixes::of([subnet.parse().unwrap()]).unwrap(), attributes }
}

/// Returns the desired state of node 1 with these peers.
pub(super) fn desired(backend: &str, peers: &[u32]) -> DesiredState {
    let subnets = peers.iter().map(|n| (*n, format!("10.5.{n}.0/24")));
    planned(&conf(backend), "10.5.1.0/24", &subnets.collect::<Vec<_>>())
}

fn planned(conf: &NetConf, own: &str, peers: &[(u32, String)]) -> DesiredState {
    let eth0 = "eth0".parse().unwrap();
    let underlay = Underlay {
        name: eth0,
        index: IfIndex(2),
        mtu: 1500,
        addresses: Addresses { v4: Some(address(1)), v6: None },
        on_link: peers.iter().map(|(n, _)| (address(*n).into(), eth0)).collect::<HashMap<_, _>>(),
    };
    let own = lease(conf, 1, own);
    let leases: Vec<Lease> = peers.iter().map(|(n, subnet)| lease(conf, *n, subnet)).collect();
    let peers: Vec<Peer<'_>> =
        leases.iter().map(|lease| Peer { name: "peer", created: 0, lease }).collect();
    let plan = plan(&Node { conf, lease: &own, underlay: &underlay }, &peers).unwrap();
    assert_eq!(plan.rejected, []);
    plan.desired
}

impl FakeKernel {
    /// A kernel without any of the desired objects.
    pub(super) fn new(backend: &str, peers: &[u32]) -> Self {
        let ownership = Ownership::new(&conf(backend), "podwire");
        Self { desired: desired(backend, peers), observed: ObservedState::default(), ownership }
    }

    /// A kernel without any of the desired objects, with `peers` vxlan peers.
    pub(super) fn with_many_peers(peers: u32) -> Self {
        let conf = r#"{"Network": "10.0.0.0/8", "Backend": {"Type": "vxlan"}}"#;
        let conf = NetConf::parse(conf).unwrap();
        let subnet = |n: u32| format!("{}/24", Ipv4Addr::from_bits((10 << 24) + (n << 8)));
        let list: Vec<(u32, String)> = (2..peers + 2).map(|n| (n, subnet(n))).collect();
        let desired = planned(&conf, &subnet(1), &list);
        let ownership = Ownership::new(&conf, "podwire");
        Self { desired, observed: ObservedState::default(), ownership }
    }

    pub(super) fn mac_of(&self, n: u32) -> MacAddr {
        mac::of_node(&n.to_be_bytes(), 1, Family::V4)
    }

    pub(super) fn diff(&self) -> Diff {
        diff(&self.desired, &self.observed, &self.ownership)
    }

    pub(super) fn reconciled(mut self) -> Self {
        self.reconcile();
        self
    }

    /// Applies all changes and checks that none is left.
    pub(super) fn reconcile(&mut self) {
        for change in self.diff().changes {
            self.apply(&change);
        }
        assert_eq!(self.diff().changes, []);
    }

    /// Adds foreign objects, some of them on the agent's devices or in its network.
    pub(super) fn add_foreign(&mut self) {
        let observed = &mut self.observed;
        let device = |name: &str, kind: &str| ObservedDevice {
            name: name.parse().unwrap(),
            alias: None,
            is_up: true,
            mtu: 1500,
            kind: ObservedKind::Other(kind.to_owned()),
        };
        observed.devices.push(device("cni0", "bridge"));
        observed.devices.push(device("flannel.9", "vxlan"));
        let with_protocol =
            |route, protocol| ObservedRoute { route, metric: 0, protocol, nexthop: None };
        let route = |dst: &str, device: &str, protocol| {
            let (dst, device) = (dst.parse().unwrap(), device.parse().unwrap());
            with_protocol(DesiredRoute::into_device(dst, device, true), protocol)
        };
        observed.routes.push(route("10.5.1.0/24", "cni0", 2));
        observed.routes.push(route("10.5.77.0/24", "eth0", 3));
        observed.routes.push(route("10.5.78.0/24", "eth0", 4));
        let blackhole = |dst: &str| DesiredRoute::blackhole(dst.parse().unwrap());
        observed.routes.push(with_protocol(blackhole("10.5.79.0/24"), 4));
        observed.routes.push(with_protocol(blackhole("10.9.2.0/24"), 3));
        // Routes of an agent of another network.
        observed.routes.push(route("10.9.1.0/24", "eth0", PROTOCOL));
        observed.routes.push(with_protocol(blackhole("10.9.3.0/24"), PROTOCOL));
        for (id, protocol) in [(7, PROTOCOL), (*NEXTHOP_IDS.start() + 9, 4)] {
            let device = "eth0".parse().unwrap();
            let gateway = Gateway { address: address(9).into(), device, onlink: false };
            observed.nexthops.insert(id, ObservedNexthop { gateway: Some(gateway), protocol });
        }
        let name: IfName = "flannel.1".parse().unwrap();
        let prefix = "172.16.0.1/24".parse().unwrap();
        if self.desired.devices.contains_key(&name) {
            observed.addresses.insert(DeviceAddress { device: name, prefix });
        }
        let device = "cni0".parse().unwrap();
        observed.addresses.insert(DeviceAddress { device, prefix: "10.5.1.1/24".parse().unwrap() });
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        observed.neighbours.insert((device, address(200).into()), mac);
        observed.forwarding.insert((device, mac, address(200).into()));
    }

    pub(super) fn apply(&mut self, change: &Change) {
        let observed = &mut self.observed;
        match change.clone() {
            Change::CreateDevice(device) => {
                let name_is_free = observed.devices.iter().all(|other| other.name != device.name);
                assert!(name_is_free, "device {} exists", device.name);
                observed.devices.push(ObservedDevice {
                    name: device.name,
                    alias: Some(self.ownership.owner.clone()),
                    is_up: true,
                    mtu: device.mtu,
                    kind: ObservedKind::Known(device.kind),
                });
            }
            Change::ChangeDevice { name, to } => self.change_device(name, to),
            Change::RemoveDevice(name) => self.remove_device(name),
            Change::AddAddress(address) => drop(observed.addresses.insert(address)),
            Change::RemoveAddress(address) => drop(observed.addresses.remove(&address)),
            Change::SetNeighbour { device, ip, mac } => {
                observed.neighbours.insert((device, ip), mac);
            }
            Change::RemoveNeighbour { device, ip } => {
                observed.neighbours.remove(&(device, ip));
            }
            Change::SetForwarding { device, mac, dst } => {
                observed.forwarding.retain(|entry| (entry.0, entry.1) != (device, mac));
                observed.forwarding.insert((device, mac, dst));
            }
            Change::RemoveForwarding { device, mac, dst } => {
                observed.forwarding.remove(&(device, mac, dst));
            }
            Change::AddNexthop { id, gateway } => {
                let nexthop = ObservedNexthop { gateway: Some(gateway), protocol: PROTOCOL };
                assert_eq!(observed.nexthops.insert(id, nexthop), None, "next hop {id} exists");
            }
            Change::RemoveNexthop { id } => {
                observed.nexthops.remove(&id);
                observed.routes.retain(|route| route.nexthop != Some(id));
            }
            Change::SetRoute { route, nexthop } => self.set_route(route, nexthop),
            Change::RemoveRoute(route) => observed.routes.retain(|other| *other != route),
            Change::SetPeer { device, key, peer, keeps_endpoint } => {
                self.set_peer((device, key), *peer, keeps_endpoint);
            }
            Change::RemovePeer { device, key } => drop(observed.wireguard.remove(&(device, key))),
            Change::CallAdded(peer) => drop(observed.extension.insert(peer.subnet, peer)),
            Change::CallRemoved(peer) => drop(observed.extension.remove(&peer.subnet)),
        }
    }

    /// Moves the allowed subnets from their old peers to this one.
    fn set_peer(
        &mut self,
        key: (IfName, PublicKey),
        peer: DesiredWireguardPeer,
        keeps_endpoint: bool,
    ) {
        let observed = &mut self.observed;
        for (other, entry) in &mut observed.wireguard {
            if other.0 == key.0 {
                entry.allowed.retain(|net| !peer.allowed.contains(net));
            }
        }
        let old = observed.wireguard.get(&key).and_then(|old| old.endpoint);
        let endpoint = if keeps_endpoint { old } else { Some(peer.endpoint) };
        let DesiredWireguardPeer { allowed, psk, keepalive, .. } = peer;
        let entry = ObservedWireguardPeer { endpoint, allowed, psk, keepalive, is_alive: false };
        observed.wireguard.insert(key, entry);
    }

    fn change_device(&mut self, name: IfName, to: DeviceChange) {
        let observed = &mut self.observed;
        let device = observed.devices.iter_mut().find(|device| device.name == name).unwrap();
        match (to, &mut device.kind) {
            (DeviceChange::Owner, _) => device.alias = Some(self.ownership.owner.clone()),
            (DeviceChange::Mtu(mtu), _) => device.mtu = mtu,
            (DeviceChange::Up, _) => device.is_up = true,
            (DeviceChange::Mac(mac), ObservedKind::Known(DeviceKind::Vxlan(vxlan))) => {
                vxlan.mac = mac;
                observed.neighbours.retain(|key, _| key.0 != name);
            }
            (DeviceChange::Vxlan(to), ObservedKind::Known(DeviceKind::Vxlan(vxlan))) => {
                (vxlan.local, vxlan.lower, vxlan.learning) = (to.local, to.lower, to.learning);
            }
            (DeviceChange::Wireguard { public_key, listen_port }, kind) => {
                *kind = ObservedKind::Known(DeviceKind::Wireguard { public_key, listen_port });
            }
            (DeviceChange::Ipip { local }, kind) => {
                *kind = ObservedKind::Known(DeviceKind::Ipip { local });
            }
            (to, kind) => panic!("{to} is impossible for {kind:?}"),
        }
    }

    fn remove_device(&mut self, name: IfName) {
        let observed = &mut self.observed;
        observed.devices.retain(|device| device.name != name);
        observed.addresses.retain(|address| address.device != name);
        observed.routes.retain(|route| route.route.device() != Some(name));
        observed.nexthops.retain(|_, nexthop| nexthop.gateway.is_none_or(|via| via.device != name));
        observed.neighbours.retain(|key, _| key.0 != name);
        observed.forwarding.retain(|entry| entry.0 != name);
        observed.wireguard.retain(|key, _| key.0 != name);
    }

    /// Replaces the first route with the same destination and metric, whatever its protocol.
    fn set_route(&mut self, route: DesiredRoute, nexthop: Option<u32>) {
        let observed = &mut self.observed;
        let devices: BTreeSet<IfName> = observed.devices.iter().map(|device| device.name).collect();
        if let Some(device) = route.device() {
            let exists = devices.contains(&device) || device.as_str() == "eth0";
            assert!(exists, "{route}: no such device");
        }
        if let Some(id) = nexthop {
            let gateway = observed.nexthops[&id].gateway.unwrap();
            assert_eq!(Some(gateway.address), route.gateway(), "{route}: wrong next hop");
        }
        let metric = route.metric();
        let new = ObservedRoute { route, metric, protocol: PROTOCOL, nexthop };
        let is_same =
            |other: &ObservedRoute| other.route.dst == route.dst && other.metric == metric;
        match observed.routes.iter_mut().find(|other| is_same(other)) {
            Some(old) => {
                assert!(matches!(old.protocol, PROTOCOL | 3), "{route}: replaces a foreign route");
                *old = new;
            }
            None => observed.routes.push(new),
        }
    }
}
