// SPDX-License-Identifier: Apache-2.0
//! The addresses to probe. A peer's kernel answers there, whether it runs podwire or flannel.

use std::net::IpAddr;

use ipnet::IpNet;
use kernel::{Family, IfName};
use overlay::backend::BackendData;
use overlay::desired::{DesiredDevice, DeviceKind};
use overlay::lease::Lease;
use overlay::plan::Plan;
use overlay::routed::{NodePath, RoutedNetwork};

/// A path to check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name of the peer.
    pub peer: String,
    /// Subnet of the peer's pods.
    pub subnet: IpNet,
    /// Address of the peer's kernel that is reached over the same path as its pods.
    pub address: IpAddr,
    /// The pods' MTU.
    pub full: u32,
    /// Bytes that the tunnel adds to a packet.
    pub overhead: u32,
    /// The tunnel device, if its checksum offload can be turned off.
    pub device: Option<IfName>,
    /// Whether the peer's agent starts, and this agent waits a moment.
    pub starts_second: bool,
}

impl Target {
    /// Unique key: a peer has at most one target of each family.
    pub(super) fn key(&self) -> (String, Family) {
        (self.peer.clone(), Family::of(self.subnet.addr()))
    }
}

/// Returns one target for each subnet of a peer that has a route. Through a tunnel that is the subnet's base address,
/// which the peer's tunnel device has; over a direct route it is the gateway. `underlay_mtu` is the MTU of the
/// interface to other nodes.
pub fn targets(plan: &Plan, underlay_mtu: u32, peer: &str, lease: &Lease) -> Vec<Target> {
    let target = |subnet: IpNet| {
        let device = route_device(plan, subnet)?;
        let tunnel = plan.desired.devices.get(&device);
        let address = match tunnel {
            Some(_) => subnet.network(),
            // The IPv6 base address is also the subnet-router anycast address of the peer's bridge. The kernel answers
            // from the address of the outgoing interface: the same address in a tunnel, but another one otherwise.
            None => plan.desired.routes.get(&subnet)?.gateway()?,
        };
        let is_vxlan = tunnel.is_some_and(|device| matches!(device.kind, DeviceKind::Vxlan(_)));
        Some(Target {
            peer: peer.to_owned(),
            subnet,
            address,
            full: plan.pod_mtu,
            overhead: tunnel.map_or(0, |tunnel| underlay_mtu.saturating_sub(tunnel.mtu)),
            device: Some(device).filter(|_| is_vxlan),
            starts_second: tunnel.is_some_and(|device| starts_second(device, lease)),
        })
    };
    lease.subnets.iter().filter_map(target).collect()
}

/// Returns one target for each address family of a node with routed pods: the end of its tunnel or, with plain routes,
/// its own address.
pub fn routed_targets(network: &RoutedNetwork, peer: &str) -> Vec<Target> {
    let plan = network.plan();
    let target = |family: Family| {
        let NodePath { address, tunnel } = network.path(peer, family)?;
        let tunnel = tunnel.and_then(|name| plan.desired.devices.get(&name));
        let is_vxlan = |device: &&DesiredDevice| matches!(device.kind, DeviceKind::Vxlan(_));
        Some(Target {
            peer: peer.to_owned(),
            subnet: address.into(),
            address,
            full: plan.pod_mtu,
            overhead: tunnel.map_or(0, |tunnel| network.underlay().mtu.saturating_sub(tunnel.mtu)),
            device: tunnel.filter(is_vxlan).map(|device| device.name),
            starts_second: false,
        })
    };
    Family::ALL.into_iter().filter_map(target).collect()
}

/// Whether the peer starts first. If both ends of a WireGuard tunnel start a handshake at the same time, each drops its
/// own for the other's, and the kernel retries only after 5 s. So the end with the smaller key starts.
fn starts_second(device: &DesiredDevice, peer: &Lease) -> bool {
    let DeviceKind::Wireguard { public_key, .. } = device.kind else { return false };
    let BackendData::Wireguard(theirs) = &peer.attributes.data else { return false };
    theirs.iter().any(|(_, end)| end.key < public_key)
}

/// Returns the device of the most specific route. Some tunnels have one route for the whole network.
fn route_device(plan: &Plan, subnet: IpNet) -> Option<IfName> {
    if let Some(route) = plan.desired.routes.get(&subnet) {
        return route.device();
    }
    let routes = plan.desired.routes.iter().filter(|(dst, _)| dst.contains(&subnet));
    routes.max_by_key(|(dst, _)| dst.prefix_len()).and_then(|(_, route)| route.device())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use kernel::IfIndex;
    use kernel::wireguard::PublicKey;
    use overlay::netconf::NetConf;
    use overlay::plan::{Network, Underlay};
    use overlay::publish::{self, Identity};
    use overlay::{Addresses, Prefixes};

    use super::*;

    fn lease(conf: &NetConf, n: u8) -> (Lease, Addresses) {
        let address = format!("192.0.2.{n}").parse().unwrap();
        let addresses = Addresses { v4: Some(address), v6: None };
        let identity = Identity {
            seed: &[n],
            addresses,
            public: addresses,
            wireguard_key: Some(PublicKey([n; 32])),
            extension_output: Some(""),
        };
        let attributes = publish::attributes(conf, &identity).unwrap();
        let subnets = [format!("10.5.{n}.0/24"), format!("fd00:5:0:{n}::/64")];
        let subnets = subnets.iter().map(|net| net.parse::<IpNet>().unwrap());
        let subnets = subnets.filter(|net| conf.networks.iter().any(|all| all.contains(net)));
        (Lease { subnets: Prefixes::of(subnets).unwrap(), attributes }, addresses)
    }

    /// Returns the targets of the second node on the first.
    fn targets_of(conf: &str, numbers: [u8; 2], is_on_link: bool) -> Vec<Target> {
        let conf = NetConf::parse(conf).unwrap();
        let [(own, addresses), (other, others)] = numbers.map(|n| lease(&conf, n));
        let name: IfName = "eth0".parse().unwrap();
        let on_link: HashMap<_, _> =
            others.iter().filter(|_| is_on_link).map(|address| (address, name)).collect();
        let underlay = Underlay { name, index: IfIndex(2), mtu: 1500, addresses, on_link };
        let peers = BTreeMap::from([("peer".to_owned(), (0, other.clone()))]);
        let network = Network::new(conf, own, underlay, peers).unwrap();
        let found = targets(network.plan(), 1500, "peer", &other);
        assert!(found.iter().all(|target| target.full == network.plan().pod_mtu));
        found
    }

    /// Compares subnet, address, overhead and device of each target.
    fn check(conf: &str, is_on_link: bool, expected: &[&str]) {
        let found: Vec<String> = targets_of(conf, [1, 2], is_on_link)
            .iter()
            .map(|Target { subnet, address, overhead, device, .. }| {
                format!("{subnet} at {address}, {overhead}, {device:?}")
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn wireguard_end_with_the_smaller_key_starts() {
        let conf = |backend: &str| {
            format!(r#"{{"Network": "10.5.0.0/16", "Backend": {{"Type": "{backend}"}}}}"#)
        };
        let second = |backend, numbers| targets_of(&conf(backend), numbers, false)[0].starts_second;
        assert_eq!([[1, 2], [2, 1]].map(|ends| second("wireguard", ends)), [false, true]);
        assert_eq!([[1, 2], [2, 1]].map(|ends| second("vxlan", ends)), [false, false]);
    }

    #[test]
    fn target_address_depends_on_the_backend() {
        let network = |backend: &str| {
            format!(r#"{{"Network": "10.5.0.0/16", "Backend": {{"Type": "{backend}"}}}}"#)
        };
        let vxlan = r#"10.5.2.0/24 at 10.5.2.0, 50, Some("flannel.1")"#;
        check(&network("vxlan"), true, &[vxlan]);
        check(&network("wireguard"), false, &["10.5.2.0/24 at 10.5.2.0, 80, None"]);
        check(&network("ipip"), false, &["10.5.2.0/24 at 10.5.2.0, 20, None"]);
        check(&network("udp"), false, &["10.5.2.0/24 at 10.5.2.0, 28, None"]);
        check(&network("host-gw"), true, &["10.5.2.0/24 at 192.0.2.2, 0, None"]);
        check(&network("host-gw"), false, &[]);
        check(&network("alloc"), false, &[]);
    }

    #[test]
    fn direct_route_is_probed_without_the_tunnel() {
        let conf = r#"{"Network": "10.5.0.0/16",
            "Backend": {"Type": "vxlan", "DirectRouting": true}}"#;
        check(conf, true, &["10.5.2.0/24 at 192.0.2.2, 0, None"]);
    }

    #[test]
    fn each_family_has_a_target() {
        let conf = r#"{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:5::/48",
            "Backend": {"Type": "vxlan"}}"#;
        let device = r#"50, Some("flannel.1")"#;
        let v4 = format!("10.5.2.0/24 at 10.5.2.0, {device}");
        let v6 = format!("fd00:5:0:2::/64 at fd00:5:0:2::, {device}");
        check(conf, false, &[&v4, &v6]);
    }
}
