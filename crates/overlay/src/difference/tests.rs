// SPDX-License-Identifier: Apache-2.0
//! Differences, done to a kernel made of values.

mod properties;
mod world;

use kernel::route::PROTOCOL_BOOT;

use super::*;
use crate::netconf::NetConf;
use world::{World, wanted};

fn shown(changes: &[Change]) -> Vec<String> {
    changes.iter().map(Change::to_string).collect()
}

#[test]
fn everything_is_made_in_an_order_that_works() {
    let world = World::new("vxlan", &[2]);
    let difference = world.difference();
    let mac = world.mac_of(2);
    let wanted = [
        format!(
            "create device flannel.1 type vxlan mtu 1450 id 1 address {} local 192.0.2.1 dev eth0 \
             dstport 8472 nolearning",
            world.mac_of(1)
        ),
        "add address 10.5.1.0/32 dev flannel.1".to_owned(),
        format!("set forwarding {mac} dst 192.0.2.2 dev flannel.1"),
        format!("set neighbour 10.5.2.0 lladdr {mac} dev flannel.1"),
        "add nexthop 1941962752 via 10.5.2.0 dev flannel.1 onlink".to_owned(),
        "set route 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink nhid 1941962752".to_owned(),
    ];
    assert_eq!(shown(&difference.changes), wanted);
    assert_eq!(difference.conflicts, []);
}

#[test]
fn each_damage_is_repaired_and_nothing_else_is_done() {
    let check = |damage: &dyn Fn(&mut Found), wanted: &[&str]| {
        let mut world = World::new("vxlan", &[2, 3]).settled();
        damage(&mut world.found);
        let changes = shown(&world.difference().changes);
        let words: Vec<String> = changes
            .iter()
            .map(|change| change.split(' ').take(3).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(words, wanted, "{changes:?}");
        world.settle();
    };
    check(&|_| {}, &[]);
    check(&|found| _ = found.addresses.pop_first(), &["add address 10.5.1.0/32"]);
    check(&|found| _ = found.routes.remove(0), &["set route 10.5.2.0/24"]);
    check(&|found| _ = found.neighbours.pop_first(), &["set neighbour 10.5.2.0"]);
    check(&|found| found.devices[0].mtu = 1500, &["change device flannel.1:"]);
    check(&|found| found.devices[0].is_up = false, &["change device flannel.1:"]);
    check(&|found| found.devices[0].alias = None, &["change device flannel.1:"]);
    check(
        &|found| found.routes[0].metric = 7,
        &["set route 10.5.2.0/24", "remove route 10.5.2.0/24"],
    );
    check(&|found| found.routes[0].route.onlink = false, &["set route 10.5.2.0/24"]);
    check(
        &|found| found.routes[0].route.mtu = Some(1300),
        &["add nexthop 1941962754", "set route 10.5.2.0/24", "remove nexthop 1941962752"],
    );
    let mac = "02:00:00:00:00:01".parse().unwrap();
    let first = |found: &Found| *found.neighbours.keys().next().unwrap();
    check(&|found| _ = found.neighbours.insert(first(found), mac), &["set neighbour 10.5.2.0"]);
}

#[test]
fn a_device_that_is_gone_takes_all_along() {
    let mut world = World::new("vxlan", &[2, 3]).settled();
    let device = world.found.devices[0].name;
    world.apply(&Change::RemoveDevice(device));
    let changes = shown(&world.difference().changes);
    assert!(changes[0].starts_with("create device"));
    assert_eq!(changes.len(), 2 + 4 * 2, "{changes:?}");
    world.settle();
}

#[test]
fn a_device_is_changed_where_it_can_be_and_made_anew_where_not() {
    let check = |change: &dyn Fn(&mut crate::plan::VxlanDevice), wanted: &[&str], all: usize| {
        let mut world = World::new("vxlan", &[2, 3]).settled();
        let FoundKind::Known(kind) = &mut world.found.devices[0].kind else { panic!() };
        let crate::plan::DeviceKind::Vxlan(vxlan) = kind else { panic!() };
        change(vxlan);
        let changes = shown(&world.difference().changes);
        for (change, wanted) in changes.iter().zip(wanted) {
            assert!(change.starts_with(wanted), "{change:?} should be {wanted:?}");
        }
        assert_eq!(changes.len(), all, "{changes:?}");
        world.settle();
    };
    let address = "192.0.2.77".parse().unwrap();
    check(&|found| found.local = address, &["change device flannel.1: local 192.0.2.1"], 1);
    check(&|found| found.lower = kernel::IfIndex(9).into(), &["change device flannel.1: local"], 1);
    check(&|found| found.learning = true, &["change device flannel.1: local"], 1);
    // The kernel forgets the neighbours.
    let mac = "02:00:00:00:00:01".parse().unwrap();
    check(&|found| found.mac = mac, &["change device flannel.1: address", "set neighbour"], 3);
    let anew = ["remove device flannel.1", "create device flannel.1", "add address"];
    check(&|found| found.port = 4789, &anew, 3 + 4 * 2);
    check(&|found| found.vni = 2, &anew, 3 + 4 * 2);
    check(&|found| found.gbp = true, &anew, 3 + 4 * 2);
}

/// Two agents of one node must not take each other's for their own leavings.
#[test]
fn each_mark_has_numbers_of_its_own() {
    let conf = NetConf::parse(r#"{"Network": "10.5.0.0/16"}"#).unwrap();
    let range = |mark| Scope::new(&conf, mark).nexthops.unwrap();
    let (one, two) = (range("podwire"), range("podwire-blue"));
    assert!(!one.contains(two.start()) && !two.contains(one.start()));
    for range in [one, two] {
        assert!(NEXTHOPS.contains(range.start()) && NEXTHOPS.contains(range.end()));
    }
}

/// All of one network's, and nothing of another's that an agent of the same node keeps.
#[test]
fn every_trace_is_what_bears_the_mark() {
    let everything = |world: &World, mark| {
        let scope = Scope::of_everything(mark, Vec::new());
        shown(&difference(&Wanted::default(), &world.found, &scope).changes)
    };
    for backend in ["vxlan", "host-gw", "wireguard", "ipip"] {
        let world = World::new(backend, &[2, 3]).settled();
        assert_eq!(everything(&world, "blue"), [""; 0], "{backend}");
        assert_ne!(everything(&world, "podwire"), [""; 0], "{backend}");
    }
    let mut world = World::new("host-gw", &[2]).settled();
    let rest = everything(&world, "podwire");
    assert_eq!(
        rest,
        ["remove route 10.5.2.0/24 via 192.0.2.2 dev eth0", "remove nexthop 1941962752"]
    );
    // Kernels before 5.3.
    world.found.routes[0].nexthop = None;
    world.found.nexthops.clear();
    assert_eq!(everything(&world, "podwire"), [""; 0]);
    let scope = Scope::of_everything("podwire", vec!["10.5.0.0/16".parse().unwrap()]);
    let changes = difference(&Wanted::default(), &world.found, &scope).changes;
    assert_eq!(shown(&changes), rest[..1]);
}

#[test]
fn another_agents_device_is_neither_taken_nor_removed() {
    let mut world = World::new("vxlan", &[2]).settled();
    world.found.devices[0].alias = Some("blue".to_owned());
    let conflicts = world.difference().conflicts;
    assert!(conflicts[0].to_string().contains("is a vxlan with the alias \"blue\" that is not"));
    world.wanted = wanted("host-gw", &[2]);
    let changes = shown(&world.difference().changes);
    assert!(!changes.iter().any(|change| change.contains("device")), "{changes:?}");
    // Our own with another word on it stays ours.
    world.wanted = wanted("vxlan", &[2]);
    world.scope.taken.insert("flannel.1".parse().unwrap());
    assert_eq!(shown(&world.difference().changes), ["change device flannel.1: mark it as ours"]);
}

#[test]
fn what_peers_left_behind_is_removed_last() {
    let mut world = World::new("vxlan", &[2, 3]).settled();
    let (old, new) = (world.mac_of(3), world.mac_of(4));
    world.wanted = wanted("vxlan", &[2, 4]);
    let changes = shown(&world.difference().changes);
    let wanted = [
        format!("set forwarding {new} dst 192.0.2.4 dev flannel.1"),
        format!("set neighbour 10.5.4.0 lladdr {new} dev flannel.1"),
        "add nexthop 1941962754 via 10.5.4.0 dev flannel.1 onlink".to_owned(),
        "set route 10.5.4.0/24 via 10.5.4.0 dev flannel.1 onlink nhid 1941962754".to_owned(),
        "remove route 10.5.3.0/24 via 10.5.3.0 dev flannel.1 onlink".to_owned(),
        "remove nexthop 1941962753".to_owned(),
        "remove neighbour 10.5.3.0 dev flannel.1".to_owned(),
        format!("remove forwarding {old} dst 192.0.2.3 dev flannel.1"),
    ];
    assert_eq!(changes, wanted);
    world.settle();
}

#[test]
fn another_backend_takes_the_place_of_the_old_one() {
    let mut world = World::new("vxlan", &[2]).settled();
    world.wanted = wanted("host-gw", &[2]);
    let changes = shown(&world.difference().changes);
    let expected = [
        "add nexthop 1941962753 via 192.0.2.2 dev eth0",
        "set route 10.5.2.0/24 via 192.0.2.2 dev eth0 nhid 1941962753",
        "remove device flannel.1",
    ];
    assert_eq!(changes, expected);
    world.settle();
}

#[test]
fn foreign_things_stay() {
    let mut world = World::new("vxlan", &[2]).settled();
    let before = world.found.clone();
    world.add_foreign();
    let foreign = world.found.clone();
    assert_ne!(before, foreign);
    assert_eq!(shown(&world.difference().changes), [] as [&str; 0]);
    // Nor does anything of theirs go when all of ours does.
    world.wanted = Wanted::default();
    world.settle();
    let mut others = World::new("alloc", &[]);
    others.add_foreign();
    assert_eq!(world.found.devices, others.found.devices);
    assert_eq!(world.found.routes, others.found.routes);
    assert_eq!(world.found.nexthops, others.found.nexthops);
}

#[test]
fn what_is_in_the_way_is_told_and_stays() {
    let mut world = World::new("vxlan", &[2, 3]);
    let dst = "10.5.2.0/24".parse().unwrap();
    let mut route = world.wanted.routes[&dst];
    route.device = "cni0".parse().unwrap();
    world.found.routes.push(FoundRoute { route, metric: 0, protocol: 2, nexthop: None });
    let conflicts = world.difference().conflicts;
    let words: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
    assert_eq!(words, ["a route to 10.5.2.0/24 of protocol 2 is in the way: remove it"]);
    for (protocol, count) in [(4, 1), (PROTOCOL_BOOT, 0), (PROTOCOL, 0)] {
        let mut world = World::new("vxlan", &[2, 3]);
        world.found.barriers.insert(dst, protocol);
        let Difference { changes, conflicts } = world.difference();
        assert_eq!(conflicts.len(), count, "{conflicts:?}");
        let sets = shown(&changes).iter().filter(|change| change.contains("set route")).count();
        assert_eq!(sets, 2 - count, "a blackhole of ours or flannel's is replaced");
    }
    let mut world = World::new("vxlan", &[2]);
    world.found.devices.push(FoundDevice {
        name: "flannel.1".parse().unwrap(),
        alias: None,
        is_up: true,
        mtu: 1500,
        kind: FoundKind::Other("dummy".to_owned()),
    });
    let difference = world.difference();
    assert_eq!(shown(&difference.changes), [] as [&str; 0]);
    assert!(difference.conflicts[0].to_string().contains("is a dummy that is not ours"));
    // With our mark it is ours, whatever it has become.
    world.found.devices[0].alias = Some("podwire".to_owned());
    assert!(shown(&world.difference().changes)[0].starts_with("remove device flannel.1"));
    world.settle();
}

#[test]
fn old_kernels_have_plain_routes() {
    let mut world = World::new("vxlan", &[2]);
    world.scope.nexthops = None;
    let changes = shown(&world.difference().changes);
    assert_eq!(changes.last().unwrap(), "set route 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink");
    world.settle();
    assert!(world.found.nexthops.is_empty());
}

#[test]
fn a_peer_that_roams_is_left_where_it_is() {
    let mut world = World::new("wireguard", &[2, 3]).settled();
    let elsewhere = Some("203.0.113.9:4242".parse().unwrap());
    let peer = world.found.wireguard.values_mut().next().unwrap();
    (peer.endpoint, peer.is_alive) = (elsewhere, true);
    assert_eq!(world.difference().changes, []);
    world.found.wireguard.values_mut().next().unwrap().is_alive = false;
    let changes = world.difference().changes;
    assert!(matches!(changes[..], [Change::SetPeer { keeps_endpoint: false, .. }]), "{changes:?}");
    world.settle();
    // A subnet that has moved to another peer.
    let peers: Vec<_> = world.wanted.wireguard.keys().copied().collect();
    let moved = std::mem::take(&mut world.wanted.wireguard.get_mut(&peers[0]).unwrap().allowed);
    world.wanted.wireguard.get_mut(&peers[1]).unwrap().allowed.extend(moved);
    assert_eq!(world.difference().changes.len(), 2);
    world.settle();
    world.wanted.wireguard.remove(&peers[0]);
    assert!(matches!(world.difference().changes[..], [Change::RemovePeer { .. }]));
}

#[test]
fn commands_are_called_for_what_came_and_went() {
    let mut world = World::new("extension", &[2, 3]);
    let added =
        ["10.5.2.0/24", "10.5.3.0/24"].map(|net| format!("call SubnetAddCommand for {net}"));
    assert_eq!(shown(&world.difference().changes), added);
    world.settle();
    world.wanted = wanted("extension", &[3]);
    let changes = shown(&world.difference().changes);
    assert_eq!(changes, ["call SubnetRemoveCommand for 10.5.2.0/24"]);
}

#[test]
fn five_thousand_peers_are_settled_at_once() {
    let world = World::many(5_000);
    let changes = world.difference().changes;
    assert_eq!(changes.len(), 2 + 4 * 5_000);
    let nexthops = changes.iter().filter_map(|change| match change {
        Change::AddNexthop { id, gateway } => Some((*gateway, *id)),
        _ => None,
    });
    let made = Found::made(&world.wanted, &world.scope, &nexthops.collect());
    assert_eq!(made.nexthops.len(), 5_000);
    assert_eq!(difference(&world.wanted, &made, &world.scope), Difference::default());
}

#[test]
fn routes_become_the_kernels_and_back() {
    let world = World::new("vxlan", &[2]).settled();
    let found = world.found.routes[0];
    let index = kernel::IfIndex(7);
    let plain = found.route.to_kernel(index, None);
    assert_eq!((plain.protocol, plain.oif, plain.onlink), (PROTOCOL, Some(index), true));
    let back = FoundRoute::from_kernel(&plain, |_| Some(found.route.device)).unwrap();
    assert_eq!(back, FoundRoute { nexthop: None, ..found });
    let through = found.route.to_kernel(index, Some(5));
    assert_eq!((through.nexthop, through.gateway, through.oif), (Some(5), None, None));
}

#[test]
fn one_peer_changes_its_own_part_alone() {
    let mut world = World::new("vxlan", &[2, 3]).settled();
    let numbers = |world: &World| {
        let all = world.found.nexthops.iter();
        all.map(|(id, nexthop)| (nexthop.gateway.unwrap(), *id)).collect::<BTreeMap<_, _>>()
    };
    // Of what peer 3 wants, and what it wants with another hardware address.
    let mut before = wanted("vxlan", &[3]);
    (before.devices, before.addresses) = Default::default();
    let mut after = before.clone();
    let mac = "02:00:00:00:00:01".parse().unwrap();
    after.neighbours.values_mut().for_each(|old| *old = mac);
    let moved = std::mem::take(&mut after.forwarding).into_iter();
    after.forwarding = moved.map(|((device, _), dst)| ((device, mac), dst)).collect();
    world.scope.nexthops_from += 2;
    let (devices, nexthops) = (world.wanted.devices.clone(), numbers(&world));
    let change = Part { before: before.clone(), after };
    let part = difference_of_part(&devices, &change, &world.scope, &nexthops);
    let old = world.mac_of(3);
    let expected = [
        format!("set forwarding {mac} dst 192.0.2.3 dev flannel.1"),
        format!("set neighbour 10.5.3.0 lladdr {mac} dev flannel.1"),
        format!("remove forwarding {old} dst 192.0.2.3 dev flannel.1"),
    ];
    assert_eq!(shown(&part.changes), expected);
    // It goes, and another comes.
    let mut other = wanted("vxlan", &[4]);
    (other.devices, other.addresses) = Default::default();
    let change = Part { before, after: other };
    let part = difference_of_part(&devices, &change, &world.scope, &nexthops);
    for change in part.changes {
        world.apply(&change);
    }
    world.wanted = wanted("vxlan", &[2, 4]);
    assert_eq!(world.difference(), Difference::default());
}
