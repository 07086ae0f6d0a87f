// SPDX-License-Identifier: Apache-2.0
//! The previous backend: nodes read a changed configuration at different times.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const VXLAN: &str = r#"{"Type": "vxlan"}"#;
const OTHER_VNI: &str = r#"{"Type": "vxlan", "VNI": 7}"#;
const HOST_GW: &str = r#"{"Type": "host-gw"}"#;
const CARRIERS: [&str; 6] = [
    VXLAN,
    OTHER_VNI,
    HOST_GW,
    r#"{"Type": "udp"}"#,
    r#"{"Type": "ipip"}"#,
    r#"{"Type": "wireguard"}"#,
];

fn conf(backend: &str) -> NetConf {
    NetConf::parse(&format!(r#"{{{V4}, "Backend": {backend}}}"#)).unwrap()
}

fn lease(backend: &str, n: usize) -> Lease {
    node(&conf(backend), n as u8, "4").2
}

fn name(n: usize) -> String {
    format!("node-{n}")
}

/// Node `own` of a network on one link, with peers that publish these backends.
fn network(own: usize, backend: &str, peers: &[(usize, &str)]) -> Network {
    let conf = conf(backend);
    let (_, mut underlay, own) = node(&conf, own as u8, "4");
    let near = (1..=9).map(|n| format!("192.0.2.{n}").parse().unwrap());
    underlay.on_link = near.map(|address| (address, underlay.name)).collect();
    let peers = peers.iter().map(|(n, backend)| (name(*n), (*n as u64, lease(backend, *n))));
    Network::new(conf, own, underlay, peers.collect()).unwrap()
}

/// Like [`network`], with `before` as the previous backend.
fn network_after(own: usize, before: &str, backend: &str, peers: &[(usize, &str)]) -> Network {
    let mut network = network(own, backend, peers);
    network.set_previous_backend(previous(own, before, backend).unwrap()).unwrap();
    network
}

fn previous(own: usize, before: &str, backend: &str) -> Option<PreviousBackend> {
    let data = lease(before, own).attributes.data;
    PreviousBackend::new(conf(before).backend, data, &conf(backend).backend)
}

/// Returns the device by which packets to a node's pods leave, and the desired state of its tunnel.
fn path(network: &Network, n: usize) -> (IfName, DesiredState) {
    let desired = &network.plan().desired;
    let subnet: IpNet = format!("10.5.{n}.0/24").parse().unwrap();
    let routes = desired.routes.values().filter(|route| route.dst.contains(&subnet));
    let device = routes.max_by_key(|route| route.dst.prefix_len()).unwrap().device().unwrap();
    let mut inside = desired.clone();
    inside.devices.retain(|name, _| *name == device);
    inside.addresses.retain(|address| address.device == device);
    inside.routes.clear();
    (device, inside)
}

#[test]
fn peer_is_served_by_the_backend_it_publishes() {
    let mut network = network_after(1, VXLAN, HOST_GW, &[(2, VXLAN), (3, HOST_GW)]);
    let plan = network.plan();
    assert_eq!(devices(plan), ["flannel.1 1450"]);
    assert_eq!(addresses(plan), ["flannel.1 10.5.1.0/32"]);
    let expected =
        ["10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink", "10.5.3.0/24 via 192.0.2.3 dev eth0"];
    assert_eq!(routes(plan), expected);
    assert_eq!((plan.pod_mtu, rejected(plan).len()), (1450, 0));

    assert_eq!(
        [network.expire_previous(), network.expire_previous()],
        [PreviousBackendState::Kept; 2]
    );
    let PlanChange::Peer(part) = network.set_peer("node-2", 2, lease(HOST_GW, 2)) else { panic!() };
    let PeerChange { before, after } = *part;
    assert_eq!((before.neighbours.len(), before.forwarding.len()), (1, 1));
    assert_eq!((after.routes.len(), after.neighbours.len(), after.forwarding.len()), (1, 0, 0));
    // Packets may be in flight: the device stays for one more interval.
    assert_eq!(
        (network.expire_previous(), devices(network.plan()).len()),
        (PreviousBackendState::Kept, 1)
    );
    assert_eq!(network.expire_previous(), PreviousBackendState::Dropped);
    assert_eq!(network.plan(), self::network(1, HOST_GW, &[(2, HOST_GW), (3, HOST_GW)]).plan());
    assert_eq!(network.plan().pod_mtu, 1500);
    assert_eq!(network.expire_previous(), PreviousBackendState::Absent);
}

/// The configuration returns to its old backend while both nodes still keep that one. Only the first
/// node has read it.
#[test]
fn reverted_backend_leaves_one_tunnel_for_both_nodes() {
    let mut behind = network_after(2, VXLAN, HOST_GW, &[(1, HOST_GW)]);
    assert_eq!(behind.expire_previous(), PreviousBackendState::Kept);
    behind.set_peer("node-1", 1, lease(VXLAN, 1));
    let ahead = network_after(1, HOST_GW, VXLAN, &[(2, HOST_GW)]);
    assert_eq!(
        [path(&ahead, 2).0, path(&behind, 1).0].map(|device| device.to_string()),
        ["eth0"; 2]
    );
    // The store is listed again.
    let mut again = network_after(2, VXLAN, HOST_GW, &[(1, VXLAN)]);
    again.inherit_served_leases(&behind);
    assert_eq!(again.plan(), behind.plan());
    assert_eq!(behind.expire_previous(), PreviousBackendState::Dropped);
    assert_eq!(path(&behind, 1).0.to_string(), "eth0");
}

#[test]
fn peer_with_newer_configuration_is_served_as_before() {
    let mut network = network(2, VXLAN, &[(1, VXLAN), (3, VXLAN)]);
    let before = network.plan().clone();
    for newer in [HOST_GW, OTHER_VNI, r#"{"Type": "udp"}"#] {
        assert_eq!(network.set_peer("node-1", 1, lease(newer, 1)), PlanChange::None, "{newer}");
        assert_eq!(*network.plan(), before);
        assert_eq!(network.peers()["node-1"].1, lease(newer, 1), "as it is published");
        assert_eq!(network.served_lease("node-1"), Some(&lease(VXLAN, 1)));
    }
    // The store is listed again.
    let mut again = self::network(2, VXLAN, &[(1, HOST_GW), (3, VXLAN)]);
    assert_eq!(rejected(again.plan()).len(), 1);
    again.inherit_served_leases(&network);
    assert_eq!(*again.plan(), before);
    // This node has read the new configuration too.
    let mut after = network_after(2, VXLAN, HOST_GW, &[(1, HOST_GW), (3, VXLAN)]);
    after.inherit_served_leases(&again);
    assert_eq!(after.served_lease("node-1"), Some(&lease(HOST_GW, 1)));
    assert_eq!(path(&after, 1).0.to_string(), "eth0");
    assert_eq!(path(&after, 3).0.to_string(), "flannel.1");
}

#[test]
fn peer_never_served_stays_rejected() {
    let mut network = network(2, VXLAN, &[]);
    network.set_peer("node-1", 1, lease(HOST_GW, 1));
    let reason = r#"it publishes BackendType "host-gw", and this node's backend is vxlan"#;
    assert_eq!(rejected(network.plan()), [format!("node-1 is not served: {reason}")]);
    network.set_peer("node-1", 1, lease(VXLAN, 1));
    let mut unknown = lease(VXLAN, 1);
    unknown.attributes.data = BackendData::Other("ipsec".to_owned());
    network.set_peer("node-1", 1, unknown);
    assert_eq!(network.plan().rejected.len(), 1);
}

/// For any two backends: while only one node has the new one, both send by the old one.
#[test]
fn both_nodes_of_a_pair_use_the_same_tunnel() {
    let mut distinguishable = 0;
    for (before, after) in CARRIERS.iter().flat_map(|one| CARRIERS.map(|other| (*one, other))) {
        let Some(_) = previous(1, before, after) else {
            assert_eq!(before, after);
            continue;
        };
        distinguishable += 1;
        let mut behind = network(2, before, &[(1, before)]);
        let (ahead, was) = (network(1, before, &[(2, before)]), path(&behind, 1));
        behind.set_peer("node-1", 1, lease(after, 1));
        assert_eq!(path(&behind, 1), was, "{before} {after}");
        let now = network_after(1, before, after, &[(2, before)]);
        let (device, inside) = path(&now, 2);
        assert_eq!((device, inside), path(&ahead, 2), "{before} {after}");
        assert!(rejected(now.plan()).is_empty() && rejected(behind.plan()).is_empty());
    }
    assert_eq!(distinguishable, 30);
}

#[test]
fn indistinguishable_previous_backend_is_not_kept() {
    let check = |before: &str, after: &str| assert_eq!(previous(1, before, after), None);
    check(VXLAN, r#"{"Type": "vxlan", "Port": 4789}"#);
    check(r#"{"Type": "udp"}"#, r#"{"Type": "udp", "Port": 1}"#);
    check(r#"{"Type": "udp"}"#, r#"{"Type": "alloc"}"#);
    check(r#"{"Type": "alloc"}"#, VXLAN);
    check(r#"{"Type": "extension"}"#, VXLAN);
    check(r#"{"Type": "wireguard"}"#, r#"{"Type": "wireguard", "ListenPort": 1}"#);
}

#[test]
fn own_blackholes_survive_the_previous_backend() {
    let mut network = network_after(1, VXLAN, HOST_GW, &[(2, HOST_GW)]);
    network.set_own_blackholes(true);
    assert_eq!(network.expire_previous(), PreviousBackendState::Kept);
    assert_eq!(network.expire_previous(), PreviousBackendState::Dropped);
    assert_eq!(
        routes(network.plan()),
        ["blackhole 10.5.1.0/24", "10.5.2.0/24 via 192.0.2.2 dev eth0"]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_change_gives_the_full_plan(changes in vec((2usize..9, 0usize..7), 0..20)) {
        let mut network = network_after(1, VXLAN, HOST_GW, &[]);
        let mut published = BTreeMap::new();
        for (n, backend) in changes {
            match CARRIERS.get(backend) {
                Some(backend) => {
                    network.set_peer(&name(n), n as u64, lease(backend, n));
                    published.insert(n, *backend);
                }
                None => {
                    network.remove_peer(&name(n));
                    published.remove(&n);
                }
            }
            let peers: Vec<(usize, &str)> = published.clone().into_iter().collect();
            let mut whole = network_after(1, VXLAN, HOST_GW, &peers);
            whole.inherit_served_leases(&network);
            prop_assert_eq!(whole.plan(), network.plan());
        }
    }
}
