// SPDX-License-Identifier: Apache-2.0
//! After each change of a peer, the network has the plan that planning all peers again gives.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// The lease of a peer that may conflict with others.
fn lease_of(conf: &NetConf, n: u8, subnet: u8, has: &str) -> Lease {
    let (_, _, mut lease) = node(conf, n, has);
    let nets = [format!("10.5.{subnet}.0/24"), format!("fd00:5:0:{subnet}::/64")];
    lease.subnets = Prefixes::of(nets.iter().map(|net| net.parse().unwrap())).unwrap();
    lease
}

fn route_mtu(desired: &DesiredState, subnet: IpNet) -> Option<u32> {
    desired.routes[&subnet].next_hop().unwrap().mtu
}

fn network_of(lab: &Lab) -> Network {
    let (_, underlay, lease) = lab.nodes[0].clone();
    let peers = lab.nodes[1..].iter().map(|(name, _, lease)| (name.clone(), (0, lease.clone())));
    Network::new(lab.conf.clone(), lease, underlay, peers.collect()).unwrap()
}

#[test]
fn peer_change_contains_only_its_own_part() {
    let lab = Lab::new(V4, r#"{"Type": "vxlan"}"#, &["4", "4", "4"]);
    let mut network = network_of(&lab);
    assert_eq!(*network.plan(), lab.plan());
    let (name, _, lease) = node(&lab.conf, 9, "4");
    let PlanChange::Peer(part) = network.set_peer(&name, 0, lease.clone()) else { panic!() };
    let PeerChange { before, after } = *part;
    assert_eq!(before, DesiredState::default());
    assert_eq!((after.routes.len(), after.neighbours.len(), after.forwarding.len()), (1, 1, 1));
    assert_eq!(network.set_peer(&name, 0, lease), PlanChange::None);
    assert!(matches!(network.remove_peer(&name), PlanChange::Peer(_)));
    assert_eq!(network.remove_peer(&name), PlanChange::None);
    assert_eq!(*network.plan(), lab.plan());
}

#[test]
fn rejected_peer_does_not_force_full_replanning() {
    let lab = Lab::new(V4, r#"{"Type": "vxlan"}"#, &["4", "4"]);
    let (_, underlay, lease) = lab.nodes[0].clone();
    let mut network = Network::new(lab.conf.clone(), lease, underlay, BTreeMap::new()).unwrap();
    let (name, _, mut outside) = node(&lab.conf, 8, "4");
    outside.subnets = Prefixes::of(["172.16.0.0/24".parse().unwrap()]).unwrap();
    network.set_peer(&name, 0, outside);
    assert_eq!(network.plan().rejected.len(), 1);
    let (name, _, lease) = node(&lab.conf, 9, "4");
    assert!(matches!(network.set_peer(&name, 0, lease), PlanChange::Peer(_)));
    assert!(matches!(network.remove_peer(&name), PlanChange::Peer(_)));
    assert_eq!(network.plan().rejected.len(), 1);
}

#[test]
fn path_mtu_is_set_on_the_route_of_the_subnet() {
    for (backend, has_route) in
        [("vxlan", true), ("ipip", true), ("wireguard", false), ("udp", false)]
    {
        let lab = Lab::new(V4, &format!(r#"{{"Type": "{backend}"}}"#), &["4", "4", "4"]);
        let mut network = network_of(&lab);
        let (name, _, lease) = &lab.nodes[1];
        let subnet = lease.subnets.iter().next().unwrap();
        let PlanChange::Peer(part) = network.set_path_mtu(name, subnet, Some(1300)) else {
            panic!()
        };
        assert_eq!(part.before.routes.len(), usize::from(has_route), "{backend}");
        assert_eq!(route_mtu(&part.after, subnet), Some(1300), "{backend}");
        assert_eq!(route_mtu(&network.plan().desired, subnet), Some(1300), "{backend}");
        assert_eq!(network.set_path_mtu(name, subnet, Some(1300)), PlanChange::None);
        assert_eq!(network.set_path_mtu("unknown", subnet, None), PlanChange::None);
        // Everything is planned again because another peer has the same address.
        let other = lease_of(&lab.conf, 3, 77, "4");
        network.set_peer("other", 1, other.clone());
        assert_eq!(route_mtu(&network.plan().desired, subnet), Some(1300), "{backend}");
        network.remove_peer("other");
        assert!(
            matches!(network.set_path_mtu(name, subnet, None), PlanChange::Peer(_)),
            "{backend}"
        );
        assert_eq!(*network.plan(), lab.plan(), "{backend}");
        // The MTU is dropped together with the peer.
        network.set_path_mtu(name, subnet, Some(1300));
        network.remove_peer(name);
        network.set_peer(name, 0, lease.clone());
        assert_eq!(*network.plan(), lab.plan(), "{backend}");
    }
}

#[test]
fn path_mtus_are_inherited_if_the_path_is_the_same() {
    let lab = Lab::new(V4, r#"{"Type": "vxlan"}"#, &["4", "4", "4"]);
    let (_, underlay, own) = lab.nodes[0].clone();
    let new = |underlay: &Underlay, nodes: &[(String, Underlay, Lease)]| {
        let peers = nodes.iter().map(|(name, _, lease)| (name.clone(), (0, lease.clone())));
        let underlay = underlay.clone();
        Network::new(lab.conf.clone(), own.clone(), underlay, peers.collect()).unwrap()
    };
    let mut before = new(&underlay, &lab.nodes[1..]);
    let [stays, leaves] = [1, 2].map(|at| (&lab.nodes[at].0, lab.nodes[at].2.subnets));
    let subnets = [stays, leaves].map(|(name, subnets)| {
        let subnet = subnets.iter().next().unwrap();
        before.set_path_mtu(name, subnet, Some(1300));
        subnet
    });
    let mut after = new(&underlay, &lab.nodes[1..2]);
    after.inherit_path_mtus(&before);
    assert_eq!(route_mtu(&after.plan().desired, subnets[0]), Some(1300));
    assert!(!after.plan().desired.routes.contains_key(&subnets[1]));
    // The paths differ if the interface differs.
    let another = Underlay { mtu: underlay.mtu - 8, ..underlay };
    let mut after = new(&another, &lab.nodes[1..]);
    after.inherit_path_mtus(&before);
    assert_eq!(route_mtu(&after.plan().desired, subnets[0]), None);
}

#[test]
fn links_of_peers_are_learned_and_refreshed() {
    let mut lab = Lab::new(V4, r#"{"Type": "host-gw"}"#, &["4", "4", "4"]);
    let eth0 = lab.nodes[0].1.name;
    let mut network = network_of(&lab);
    assert!(network.needs_on_link());
    assert_eq!(network.plan().rejected.len(), 2);
    let near: HashMap<IpAddr, IfName> =
        network.public_addresses().map(|address| (address, eth0)).collect();
    assert!(network.set_on_link(near.clone()));
    assert!(!network.set_on_link(near));
    lab.put_on_link();
    assert_eq!(*network.plan(), lab.plan());

    let (name, _, lease) = node(&lab.conf, 9, "4");
    let address = lease.attributes.public.v4.unwrap().into();
    network.learn_on_link(address, Some(eth0));
    assert!(matches!(network.set_peer(&name, 0, lease), PlanChange::Peer(_)));
    // A known peer's link changes only when all are set.
    network.learn_on_link(address, None);
    assert!(matches!(network.remove_peer(&name), PlanChange::Peer(_)));
    assert_eq!(network.plan().desired, lab.plan().desired);
}

#[test]
fn own_blackholes_cover_all_own_subnets() {
    let lab = Lab::new(DUAL, r#"{"Type": "vxlan"}"#, &["46", "46"]);
    let mut network = network_of(&lab);
    network.set_own_blackholes(true);
    let blackholes: Vec<String> =
        routes(network.plan()).into_iter().filter(|route| route.starts_with("blackhole")).collect();
    assert_eq!(blackholes, ["blackhole 10.5.1.0/24", "blackhole fd00:5:0:1::/64"]);
    // Changes of peers keep them.
    let (name, _, lease) = node(&lab.conf, 9, "46");
    assert!(matches!(network.set_peer(&name, 0, lease), PlanChange::Peer(_)));
    assert!(matches!(network.remove_peer(&name), PlanChange::Peer(_)));
    assert_eq!(routes(network.plan()).len(), 2 + lab.plan().desired.routes.len());
    network.set_own_blackholes(false);
    assert_eq!(*network.plan(), lab.plan());
}

/// If the network consists of one subnet, its route has the same destination and a better metric. A
/// blackhole route would have no effect.
#[test]
fn own_blackhole_gives_way_to_the_networks_route() {
    let mut lab = Lab::new(V4, r#"{"Type": "wireguard"}"#, &["4", "4"]);
    lab.nodes[0].2.subnets = lab.conf.networks;
    lab.nodes.truncate(1);
    let mut network = network_of(&lab);
    network.set_own_blackholes(true);
    assert_eq!(routes(network.plan()), ["10.5.0.0/16 dev flannel-wg scope link"]);
    network.set_own_blackholes(false);
    assert_eq!(*network.plan(), lab.plan());
}

proptest! {
    #[test]
    fn each_change_gives_the_full_plan(
        backend in select(&["vxlan", "host-gw", "wireguard", "ipip", "udp", "extension"][..]),
        events in vec((0usize..6, 0u64..3, option::of((2u8..9, 1u8..9, 0usize..3))), 1..25),
    ) {
        let text = format!(r#"{{"Type": "{backend}"}}"#);
        let mut lab = Lab::new(DUAL, &text, &["46"]);
        let near = (2..5).map(|n| format!("192.0.2.{n}").parse().unwrap());
        let eth0 = lab.nodes[0].1.name;
        lab.nodes[0].1.on_link = near.map(|address| (address, eth0)).collect();
        let (_, underlay, lease) = lab.nodes[0].clone();
        let mut network =
            Network::new(lab.conf.clone(), lease.clone(), underlay.clone(), BTreeMap::new())
                .unwrap();
        let mut known: BTreeMap<String, (u64, Lease)> = BTreeMap::new();
        for (name, created, set) in events {
            let name = format!("peer-{name}");
            match set {
                Some((n, subnet, has)) => {
                    let lease = lease_of(&lab.conf, n, subnet, ["46", "4", "46"][has]);
                    network.set_peer(&name, created, lease.clone());
                    known.insert(name, (created, lease));
                }
                None => {
                    network.remove_peer(&name);
                    known.remove(&name);
                }
            }
            let peers = known.iter();
            let peers: Vec<Peer<'_>> = peers
                .map(|(name, (created, lease))| Peer { name, created: *created, lease })
                .collect();
            let node = Node { conf: &lab.conf, lease: &lease, underlay: &underlay };
            prop_assert_eq!(network.plan(), &plan(&node, &peers).unwrap());
        }
    }
}
