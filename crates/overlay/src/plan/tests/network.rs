// SPDX-License-Identifier: Apache-2.0
//! A plan that is kept up to date is the plan of all peers at every moment.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// Peers of which some are in each other's way.
fn lease_of(conf: &NetConf, n: u8, subnet: u8, has: &str) -> Lease {
    let (_, _, mut lease) = node(conf, n, has);
    let nets = [format!("10.5.{subnet}.0/24"), format!("fd00:5:0:{subnet}::/64")];
    lease.subnets = Prefixes::of(nets.iter().map(|net| net.parse().unwrap())).unwrap();
    lease
}

#[test]
fn one_peer_costs_its_own_part() {
    let lab = Lab::new(V4, r#"{"Type": "vxlan"}"#, &["4", "4", "4"]);
    let (_, underlay, lease) = lab.nodes[0].clone();
    let peers = lab.nodes[1..].iter().map(|(name, _, lease)| (name.clone(), (0, lease.clone())));
    let mut network = Network::new(lab.conf.clone(), lease, underlay, peers.collect()).unwrap();
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
fn a_peer_that_is_refused_makes_no_other_dearer() {
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
fn a_narrow_path_gives_its_route_an_mtu_until_it_widens() {
    for (backend, has_route) in
        [("vxlan", true), ("ipip", true), ("wireguard", false), ("udp", false)]
    {
        let lab = Lab::new(V4, &format!(r#"{{"Type": "{backend}"}}"#), &["4", "4", "4"]);
        let (_, underlay, lease) = lab.nodes[0].clone();
        let peers =
            lab.nodes[1..].iter().map(|(name, _, lease)| (name.clone(), (0, lease.clone())));
        let mut network = Network::new(lab.conf.clone(), lease, underlay, peers.collect()).unwrap();
        let (name, _, lease) = &lab.nodes[1];
        let subnet = lease.subnets.iter().next().unwrap();
        let PlanChange::Peer(part) = network.set_path_mtu(name, subnet, Some(1300)) else {
            panic!()
        };
        assert_eq!(part.before.routes.len(), usize::from(has_route), "{backend}");
        assert_eq!(part.after.routes[&subnet].mtu, Some(1300), "{backend}");
        assert_eq!(network.plan().desired.routes[&subnet].mtu, Some(1300), "{backend}");
        assert_eq!(network.set_path_mtu(name, subnet, Some(1300)), PlanChange::None);
        assert_eq!(network.set_path_mtu("nobody", subnet, None), PlanChange::None);
        // All is planned anew, as another peer has the same address.
        let other = lease_of(&lab.conf, 3, 77, "4");
        network.set_peer("other", 1, other.clone());
        assert_eq!(network.plan().desired.routes[&subnet].mtu, Some(1300), "{backend}");
        network.remove_peer("other");
        assert!(
            matches!(network.set_path_mtu(name, subnet, None), PlanChange::Peer(_)),
            "{backend}"
        );
        assert_eq!(*network.plan(), lab.plan(), "{backend}");
        // It is forgotten with the peer.
        network.set_path_mtu(name, subnet, Some(1300));
        network.remove_peer(name);
        network.set_peer(name, 0, lease.clone());
        assert_eq!(*network.plan(), lab.plan(), "{backend}");
    }
}

#[test]
fn narrow_paths_stay_known_when_all_is_planned_from_another_list() {
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
    assert_eq!(after.plan().desired.routes[&subnets[0]].mtu, Some(1300));
    assert!(!after.plan().desired.routes.contains_key(&subnets[1]));
    // Through another interface the paths are others.
    let another = Underlay { mtu: underlay.mtu - 8, ..underlay };
    let mut after = new(&another, &lab.nodes[1..]);
    after.inherit_path_mtus(&before);
    assert_eq!(after.plan().desired.routes[&subnets[0]].mtu, None);
}

#[test]
fn peers_on_a_link_are_learnt_before_they_come_and_looked_up_again() {
    let mut lab = Lab::new(V4, r#"{"Type": "host-gw"}"#, &["4", "4", "4"]);
    let (_, underlay, lease) = lab.nodes[0].clone();
    let eth0 = underlay.name;
    let peers = lab.nodes[1..].iter().map(|(name, _, lease)| (name.clone(), (0, lease.clone())));
    let mut network = Network::new(lab.conf.clone(), lease, underlay, peers.collect()).unwrap();
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
    // Of one that is there, only all are looked up again.
    network.learn_on_link(address, None);
    assert!(matches!(network.remove_peer(&name), PlanChange::Peer(_)));
    assert_eq!(network.plan().desired, lab.plan().desired);
}

proptest! {
    #[test]
    fn it_is_the_plan_of_all_at_every_moment(
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
        for (name, since, set) in events {
            let name = format!("peer-{name}");
            match set {
                Some((n, subnet, has)) => {
                    let lease = lease_of(&lab.conf, n, subnet, ["46", "4", "46"][has]);
                    network.set_peer(&name, since, lease.clone());
                    known.insert(name, (since, lease));
                }
                None => {
                    network.remove_peer(&name);
                    known.remove(&name);
                }
            }
            let peers = known.iter();
            let peers: Vec<Peer<'_>> = peers
                .map(|(name, (since, lease))| Peer { name, since: *since, lease })
                .collect();
            let node = Node { conf: &lab.conf, lease: &lease, underlay: &underlay };
            prop_assert_eq!(network.plan(), &plan(&node, &peers).unwrap());
        }
    }
}
