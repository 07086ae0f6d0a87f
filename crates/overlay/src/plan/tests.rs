// SPDX-License-Identifier: Apache-2.0
//! Plans of each backend. `tests/overlay/recorded.rs` compares plans with recorded flannel nodes.

mod network;
mod previous;

use super::*;
use crate::backend::BackendData;
use crate::publish::{self, Identity};
use crate::{PerFamily, Prefixes};
use kernel::wireguard::PublicKey;

/// A test network: name, underlay and lease of each node. The first node plans.
struct Lab {
    conf: NetConf,
    nodes: Vec<(String, Underlay, Lease)>,
}

const DUAL: &str = r#""Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:5::/48""#;
const V4: &str = r#""Network": "10.5.0.0/16""#;
const V6: &str = r#""EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:5::/48""#;

impl Lab {
    /// `underlays` has the underlay families of each node, such as `["4", "46"]`.
    fn new(families: &str, backend: &str, underlays: &[&str]) -> Self {
        let conf = format!(r#"{{{families}, "Backend": {backend}}}"#);
        let conf = NetConf::parse(&conf).unwrap();
        let nodes = underlays.iter().zip(1..).map(|(has, n)| node(&conf, n, has)).collect();
        Self { conf, nodes }
    }

    fn plan(&self) -> Plan {
        self.try_plan().unwrap()
    }

    fn try_plan(&self) -> Result<Plan, Error> {
        let (_, underlay, lease) = &self.nodes[0];
        plan(&Node { conf: &self.conf, lease, underlay }, &self.peers())
    }

    fn peers(&self) -> Vec<Peer<'_>> {
        let peers = self.nodes[1..].iter().zip(1..);
        peers.map(|((name, _, lease), created)| Peer { name, created, lease }).collect()
    }

    fn put_on_link(&mut self) {
        let addresses: Vec<IpAddr> =
            self.nodes[1..].iter().flat_map(|node| node.1.addresses.iter()).collect();
        let underlay = &mut self.nodes[0].1;
        underlay.on_link = addresses.into_iter().map(|one| (one, underlay.name)).collect();
    }
}

fn node(conf: &NetConf, n: u8, has: &str) -> (String, Underlay, Lease) {
    let addresses = Addresses {
        v4: has.contains('4').then(|| format!("192.0.2.{n}").parse().unwrap()),
        v6: has.contains('6').then(|| format!("2001:db8::{n}").parse().unwrap()),
    };
    let underlay = Underlay {
        name: "eth0".parse().unwrap(),
        index: IfIndex(2),
        mtu: 1500,
        addresses,
        on_link: HashMap::new(),
    };
    let name = format!("node-{n}");
    let identity = Identity {
        seed: name.as_bytes(),
        addresses,
        public: addresses,
        wireguard_key: Some(PublicKey([n; 32])),
        extension_output: Some("hello"),
    };
    let attributes = publish::attributes(conf, &identity).unwrap();
    let nets = [format!("10.5.{n}.0/24"), format!("fd00:5:0:{n}::/64")];
    let nets = nets.iter().map(|net| net.parse::<IpNet>().unwrap());
    let nets = nets.filter(|net| conf.networks.get(cidr::of(*net)).is_some());
    let subnets = Prefixes::of(nets).unwrap();
    (name, underlay, Lease { subnets, attributes })
}

fn routes(plan: &Plan) -> Vec<String> {
    plan.desired.routes.values().map(DesiredRoute::to_string).collect()
}

fn rejected(plan: &Plan) -> Vec<String> {
    plan.rejected.iter().map(RejectedPeer::to_string).collect()
}

fn devices(plan: &Plan) -> Vec<String> {
    let devices = plan.desired.devices.values();
    devices.map(|device| format!("{} {}", device.name, device.mtu)).collect()
}

fn addresses(plan: &Plan) -> Vec<String> {
    let addresses = plan.desired.addresses.iter();
    addresses.map(|one| format!("{} {}", one.device, one.prefix)).collect()
}

fn peers(plan: &Plan) -> Vec<String> {
    let shown = plan.desired.wireguard.iter().map(|((device, key), peer)| {
        let allowed: Vec<String> = peer.allowed.iter().map(IpNet::to_string).collect();
        format!("{device} {} {} {}", key.0[0], peer.endpoint, allowed.join(","))
    });
    shown.collect()
}

#[test]
fn vxlan_dual_stack_has_a_tunnel_per_family() {
    let plan = Lab::new(DUAL, r#"{"Type": "vxlan", "VNI": 7}"#, &["46", "46"]).plan();
    assert_eq!(devices(&plan), ["flannel-v6.7 1430", "flannel.7 1450"]);
    assert_eq!(addresses(&plan), ["flannel-v6.7 fd00:5:0:1::/128", "flannel.7 10.5.1.0/32"]);
    let expected = [
        "10.5.2.0/24 via 10.5.2.0 dev flannel.7 onlink",
        "fd00:5:0:2::/64 via fd00:5:0:2:: dev flannel-v6.7 onlink",
    ];
    assert_eq!(routes(&plan), expected);
    assert_eq!((plan.pod_mtu, rejected(&plan).len()), (1430, 0));
}

#[test]
fn vxlan_carries_ipv6_over_ipv4_underlay() {
    let plan = Lab::new(DUAL, r#"{"Type": "vxlan"}"#, &["4", "46", "4"]).plan();
    assert_eq!(devices(&plan), ["flannel.1 1450"]);
    assert_eq!(addresses(&plan), ["flannel.1 10.5.1.0/32", "flannel.1 fd00:5:0:1::/128"]);
    assert_eq!(routes(&plan)[2], "fd00:5:0:2::/64 via fd00:5:0:2:: dev flannel.1 onlink");
    // Both gateway addresses of a peer have the MAC address of its only device.
    let macs: Vec<_> = plan.desired.neighbours.values().collect();
    assert_eq!((macs.len(), plan.desired.forwarding.len()), (4, 2));
    assert!(plan.desired.forwarding.keys().all(|(_, mac)| macs.contains(&mac)));
}

#[test]
fn vxlan_peer_without_ipv6_uses_the_ipv4_tunnel() {
    let plan = Lab::new(DUAL, r#"{"Type": "vxlan"}"#, &["46", "4", "46"]).plan();
    let expected = [
        "10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink",
        "10.5.3.0/24 via 10.5.3.0 dev flannel.1 onlink",
        "fd00:5:0:2::/64 via fd00:5:0:2:: dev flannel.1 onlink",
        "fd00:5:0:3::/64 via fd00:5:0:3:: dev flannel-v6.1 onlink",
    ];
    assert_eq!(routes(&plan), expected);
}

#[test]
fn vxlan_works_over_ipv6_only() {
    let plan = Lab::new(V4, r#"{"Type": "vxlan"}"#, &["6", "6"]).plan();
    assert_eq!(routes(&plan), ["10.5.2.0/24 via 10.5.2.0 dev flannel-v6.1 onlink"]);
    assert_eq!(plan.pod_mtu, 1430);
    let plan = Lab::new(V6, r#"{"Type": "vxlan"}"#, &["46", "6"]).plan();
    assert_eq!(devices(&plan), ["flannel-v6.1 1430"]);
}

#[test]
fn vxlan_peer_without_a_common_family_is_rejected() {
    let plan = Lab::new(V4, r#"{"Type": "vxlan"}"#, &["4", "6"]).plan();
    let expected =
        "10.5.2.0/24 of node-2 is not served: the two nodes have no address family in common";
    assert_eq!(rejected(&plan), [expected]);
}

/// An administrator may have written the lease by hand.
#[test]
fn vxlan_peer_without_backend_data_is_rejected() {
    let mut lab = Lab::new(V4, r#"{"Type": "vxlan"}"#, &["4", "4"]);
    lab.nodes[1].2.attributes.data = BackendData::Vxlan(PerFamily::default());
    assert!(rejected(&lab.plan())[0].contains("neither BackendData nor BackendV6Data"));
}

#[test]
fn vxlan_direct_routing_skips_the_tunnel_on_a_link() {
    let mut lab =
        Lab::new(DUAL, r#"{"Type": "vxlan", "DirectRouting": true}"#, &["46", "46", "46"]);
    lab.put_on_link();
    lab.nodes[0].1.on_link.retain(|address, _| address.to_string().ends_with('2'));
    let plan = lab.plan();
    let expected = [
        "10.5.2.0/24 via 192.0.2.2 dev eth0",
        "10.5.3.0/24 via 10.5.3.0 dev flannel.1 onlink",
        "fd00:5:0:2::/64 via 2001:db8::2 dev eth0",
        "fd00:5:0:3::/64 via fd00:5:0:3:: dev flannel-v6.1 onlink",
    ];
    assert_eq!(routes(&plan), expected);
    assert_eq!((plan.desired.neighbours.len(), plan.desired.forwarding.len()), (2, 2));
    let mut lab = Lab::new(DUAL, r#"{"Type": "vxlan"}"#, &["46", "46"]);
    lab.put_on_link();
    assert!(routes(&lab.plan()).iter().all(|route| route.contains("flannel")));
}

#[test]
fn vxlan_device_names_fit_any_vni() {
    let check = |vni, carrier, expected: &str| {
        assert_eq!(vxlan::device_name(vni, carrier).as_str(), expected);
    };
    check(1, Family::V4, "flannel.1");
    check(9999, Family::V6, "flannel-v6.9999");
    check(9_999_999, Family::V4, "flannel.9999999");
    check(16_777_215, Family::V4, "fl.16777215");
    check(16_777_215, Family::V6, "fl-v6.16777215");
}

#[test]
fn host_gw_serves_only_peers_on_a_link() {
    let mut lab = Lab::new(DUAL, r#"{"Type": "host-gw"}"#, &["46", "46"]);
    assert_eq!(
        rejected(&lab.plan())[0],
        "10.5.2.0/24 of node-2 is not served: 192.0.2.2 is not on a link of this node, which a route without encapsulation requires"
    );
    lab.put_on_link();
    let plan = lab.plan();
    let expected =
        ["10.5.2.0/24 via 192.0.2.2 dev eth0", "fd00:5:0:2::/64 via 2001:db8::2 dev eth0"];
    assert_eq!((routes(&plan), plan.pod_mtu), (expected.map(str::to_owned).to_vec(), 1500));
}

/// The kernel accepts an IPv6 gateway for an IPv4 destination, but not the other way round.
#[test]
fn host_gw_uses_ipv6_gateways_for_ipv4() {
    let mut lab = Lab::new(DUAL, r#"{"Type": "host-gw"}"#, &["6", "6"]);
    lab.put_on_link();
    assert_eq!(routes(&lab.plan())[0], "10.5.2.0/24 via inet6 2001:db8::2 dev eth0");
    let mut lab = Lab::new(DUAL, r#"{"Type": "host-gw"}"#, &["4", "4"]);
    lab.put_on_link();
    assert_eq!(rejected(&lab.plan()).len(), 1);
}

#[test]
fn wireguard_dual_stack_has_a_tunnel_per_family() {
    let plan = Lab::new(DUAL, r#"{"Type": "wireguard"}"#, &["46", "46", "4"]).plan();
    assert_eq!(devices(&plan), ["flannel-wg 1420", "flannel-wg-v6 1420"]);
    let expected = [
        "flannel-wg 2 192.0.2.2:51820 10.5.2.0/24",
        "flannel-wg 3 192.0.2.3:51820 10.5.3.0/24,fd00:5:0:3::/64",
        "flannel-wg-v6 2 [2001:db8::2]:51821 fd00:5:0:2::/64",
    ];
    assert_eq!(peers(&plan), expected);
    let expected = [
        "10.5.0.0/16 dev flannel-wg scope link",
        "fd00:5::/48 dev flannel-wg-v6",
        "fd00:5:0:3::/64 dev flannel-wg",
    ];
    assert_eq!(routes(&plan), expected);
    assert_eq!(plan.desired.addresses.len(), 2);
}

#[test]
fn wireguard_modes_of_one_tunnel_carry_both_families() {
    let check = |mode: &str, endpoint: &str| {
        let backend = format!(r#"{{"Type": "wireguard", "Mode": "{mode}"}}"#);
        let plan = Lab::new(DUAL, &backend, &["46", "46"]).plan();
        assert_eq!(devices(&plan), ["flannel-wg 1420"]);
        let expected = format!("flannel-wg 2 {endpoint} 10.5.2.0/24,fd00:5:0:2::/64");
        assert_eq!(peers(&plan), [expected]);
        let expected = ["10.5.0.0/16 dev flannel-wg scope link", "fd00:5::/48 dev flannel-wg"];
        assert_eq!(routes(&plan), expected);
    };
    check("ipv4", "192.0.2.2:51820");
    // flannel would publish and use a port on which it does not listen.
    check("ipv6", "[2001:db8::2]:51820");
    // 192.0.2.2 is not a private address, so IPv4 is preferred.
    check("auto", "192.0.2.2:51820");
    let plan = Lab::new(V4, r#"{"Type": "wireguard", "Mode": "auto"}"#, &["46", "6"]).plan();
    assert_eq!(peers(&plan), ["flannel-wg 2 [2001:db8::2]:51820 10.5.2.0/24"]);
}

#[test]
fn ipip_and_udp_carry_only_ipv4() {
    let mut lab = Lab::new(DUAL, r#"{"Type": "ipip", "DirectRouting": true}"#, &["4", "4", "4"]);
    lab.put_on_link();
    lab.nodes[0].1.on_link.retain(|address, _| address.to_string().ends_with('2'));
    let plan = lab.plan();
    assert_eq!((devices(&plan), plan.pod_mtu), (vec!["flannel.ipip 1480".to_owned()], 1480));
    let expected =
        ["10.5.2.0/24 via 192.0.2.2 dev eth0", "10.5.3.0/24 via 192.0.2.3 dev flannel.ipip onlink"];
    assert_eq!(routes(&plan), expected);
    assert_eq!(
        rejected(&plan)[0],
        "fd00:5:0:2::/64 of node-2 is not served: ipip carries IPv4 only"
    );
    let lab = Lab::new(V6, r#"{"Type": "udp"}"#, &["4", "4"]);
    assert_eq!(lab.try_plan(), Err(Error::Ipv4Only { backend: "udp" }));
}

#[test]
fn alloc_and_extension_need_no_kernel_state() {
    let plan = Lab::new(V4, r#"{"Type": "alloc"}"#, &["4", "4"]).plan();
    assert_eq!((plan.desired, plan.pod_mtu), (DesiredState::default(), 1500));
    let plan = Lab::new(V4, r#"{"Type": "extension"}"#, &["4", "4"]).plan();
    let calls: Vec<_> = plan.desired.extension.values().collect();
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].subnet.to_string(), &*calls[0].data), ("10.5.2.0/24".to_owned(), "hello"));
    assert_eq!(
        DesiredState { extension: Default::default(), ..plan.desired },
        DesiredState::default()
    );
}

#[test]
fn unusable_peer_is_rejected_others_are_served() {
    let backend = r#"{"Type": "vxlan"}"#;
    let check = |spoil: &dyn Fn(&mut Lease), words: &str| {
        let mut lab = Lab::new(V4, backend, &["4", "4", "4"]);
        spoil(&mut lab.nodes[1].2);
        let plan = lab.plan();
        let rejected = rejected(&plan);
        assert!(
            rejected.len() == 1 && rejected[0].contains(words),
            "{rejected:?} should say {words:?}"
        );
        assert_eq!(routes(&plan), ["10.5.3.0/24 via 10.5.3.0 dev flannel.1 onlink"]);
    };
    let subnets = |net: &str| Prefixes::of([net.parse().unwrap()]).unwrap();
    check(&|lease| lease.subnets = subnets("10.5.1.0/24"), "overlaps this node's own subnet");
    check(&|lease| lease.subnets = subnets("10.5.1.128/25"), "overlaps this node's own");
    check(&|lease| lease.subnets = subnets("10.5.0.0/20"), "overlaps this node's own");
    check(&|lease| lease.subnets = subnets("10.6.1.0/24"), "is not inside the network 10.5.0.0/16");
    check(&|lease| lease.subnets = subnets("10.0.0.0/8"), "is not inside the network");
    let own = "192.0.2.1".parse().ok();
    check(&|lease| lease.attributes.public.v4 = own, "its public address 192.0.2.1 is this node's");
    for address in ["127.0.0.1", "224.0.0.1", "255.255.255.255"] {
        let public = address.parse().ok();
        let words = format!("its public address {address} cannot be the address of a node");
        check(&|lease| lease.attributes.public.v4 = public, &words);
    }
    check(&|lease| lease.attributes.data = BackendData::HostGw, "BackendType \"host-gw\"");
    check(&|lease| lease.attributes.data = BackendData::Bare, "BackendType \"\"");
    let change = |lease: &mut Lease, change: &dyn Fn(&mut crate::backend::Vtep)| {
        let BackendData::Vxlan(vteps) = &mut lease.attributes.data else { panic!() };
        change(vteps.v4.as_mut().unwrap());
    };
    check(&|lease| change(lease, &|vtep| vtep.vni = Some(9)), "VNI 9, and this node's is 1");
    let mac = crate::mac::of_node(b"node-1", 1, Family::V4);
    check(&|lease| change(lease, &|vtep| vtep.mac = mac), "which is this node's own");
}

#[test]
fn older_of_overlapping_peers_is_served() {
    let mut lab = Lab::new(V4, r#"{"Type": "vxlan"}"#, &["4", "4", "4", "4"]);
    lab.nodes[2].2.subnets = Prefixes::of(["10.5.2.0/23".parse().unwrap()]).unwrap();
    let (_, underlay, lease) = &lab.nodes[0];
    let node = Node { conf: &lab.conf, lease, underlay };
    let mut peers = lab.peers();
    let first = plan(&node, &peers).unwrap();
    let expected =
        "10.5.2.0/23 of node-3 is not served: it overlaps 10.5.2.0/24 of node-2, which is older";
    assert_eq!(rejected(&first), [expected]);
    peers.reverse();
    assert_eq!(plan(&node, &peers).unwrap(), first);
    // Names decide between peers of the same age.
    for peer in &mut peers {
        peer.created = 0;
    }
    assert_eq!(plan(&node, &peers).unwrap(), first);
}

/// A cloned machine has the identity of the original, and thus its MAC address.
#[test]
fn cloned_peer_is_rejected() {
    let mut lab = Lab::new(V4, r#"{"Type": "vxlan"}"#, &["4", "4", "4", "4"]);
    lab.nodes[2].2 = lab.nodes[1].2.clone();
    lab.nodes[2].2.subnets = Prefixes::of(["10.5.9.0/24".parse().unwrap()]).unwrap();
    lab.nodes[2].2.attributes.public.v4 = "192.0.2.9".parse().ok();
    let rejected = rejected(&lab.plan());
    assert!(
        rejected[0].contains("node-3") && rejected[0].contains("another peer has"),
        "{rejected:?}"
    );
}

#[test]
fn node_that_cannot_join_gets_the_reason() {
    let mut lab = Lab::new(DUAL, r#"{"Type": "vxlan"}"#, &["46", "46"]);
    lab.nodes[0].1.mtu = 1340;
    let error = lab.try_plan().unwrap_err().to_string();
    assert_eq!(error, "MTU 1340 of eth0 leaves 1270 for pods; at least 1280 is needed");
    let mut lab = Lab::new(V4, r#"{"Type": "vxlan"}"#, &["4", "4"]);
    lab.nodes[0].1.addresses.v4 = "10.5.77.1".parse().ok();
    let error = lab.try_plan().unwrap_err().to_string();
    assert_eq!(error, "the network 10.5.0.0/16 contains 10.5.77.1, which is this node's own");
    let mut lab = Lab::new(V4, r#"{"Type": "vxlan"}"#, &["4", "4"]);
    lab.nodes[0].2.attributes.data = BackendData::HostGw;
    assert!(matches!(lab.try_plan(), Err(Error::OwnData { .. })));
}

/// The kernel would limit it silently.
#[test]
fn configured_mtu_is_limited_to_the_interface() {
    let lab = Lab::new(V4, r#"{"Type": "vxlan", "MTU": 9000}"#, &["4", "4"]);
    assert_eq!(lab.plan().pod_mtu, 1450);
}
