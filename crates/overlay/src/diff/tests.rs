// SPDX-License-Identifier: Apache-2.0
//! Differences, done to a kernel made of values.

mod fake_kernel;
mod properties;

use kernel::route::PROTOCOL_BOOT;

use super::*;
use crate::netconf::NetConf;
use crate::observed::{ObservedDevice, ObservedKind, ObservedRoute, ObservedState};
use crate::ownership::{NEXTHOP_IDS, Ownership, PROTOCOL};
use fake_kernel::{FakeKernel, desired};

fn shown(changes: &[Change]) -> Vec<String> {
    changes.iter().map(Change::to_string).collect()
}

#[test]
fn everything_is_made_in_an_order_that_works() {
    let kernel_state = FakeKernel::new("vxlan", &[2]);
    let difference = kernel_state.diff();
    let mac = kernel_state.mac_of(2);
    let wanted = [
        format!(
            "create device flannel.1 type vxlan mtu 1450 id 1 address {} local 192.0.2.1 dev eth0 \
             dstport 8472 nolearning",
            kernel_state.mac_of(1)
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
    let check = |damage: &dyn Fn(&mut ObservedState), wanted: &[&str]| {
        let mut kernel_state = FakeKernel::new("vxlan", &[2, 3]).settled();
        damage(&mut kernel_state.observed);
        let changes = shown(&kernel_state.diff().changes);
        let words: Vec<String> = changes
            .iter()
            .map(|change| change.split(' ').take(3).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(words, wanted, "{changes:?}");
        kernel_state.settle();
    };
    check(&|_| {}, &[]);
    check(&|observed| _ = observed.addresses.pop_first(), &["add address 10.5.1.0/32"]);
    check(&|observed| _ = observed.routes.remove(0), &["set route 10.5.2.0/24"]);
    check(&|observed| _ = observed.neighbours.pop_first(), &["set neighbour 10.5.2.0"]);
    check(&|observed| observed.devices[0].mtu = 1500, &["change device flannel.1:"]);
    check(&|observed| observed.devices[0].is_up = false, &["change device flannel.1:"]);
    check(&|observed| observed.devices[0].alias = None, &["change device flannel.1:"]);
    check(
        &|observed| observed.routes[0].metric = 7,
        &["set route 10.5.2.0/24", "remove route 10.5.2.0/24"],
    );
    check(&|observed| observed.routes[0].route.onlink = false, &["set route 10.5.2.0/24"]);
    check(
        &|observed| observed.routes[0].route.mtu = Some(1300),
        &["add nexthop 1941962754", "set route 10.5.2.0/24", "remove nexthop 1941962752"],
    );
    let mac = "02:00:00:00:00:01".parse().unwrap();
    let first = |observed: &ObservedState| *observed.neighbours.keys().next().unwrap();
    check(
        &|observed| _ = observed.neighbours.insert(first(observed), mac),
        &["set neighbour 10.5.2.0"],
    );
}

#[test]
fn a_device_that_is_gone_takes_all_along() {
    let mut kernel_state = FakeKernel::new("vxlan", &[2, 3]).settled();
    let device = kernel_state.observed.devices[0].name;
    kernel_state.apply(&Change::RemoveDevice(device));
    let changes = shown(&kernel_state.diff().changes);
    assert!(changes[0].starts_with("create device"));
    assert_eq!(changes.len(), 2 + 4 * 2, "{changes:?}");
    kernel_state.settle();
}

#[test]
fn a_device_is_changed_where_it_can_be_and_made_anew_where_not() {
    let check = |change: &dyn Fn(&mut crate::desired::VxlanDevice), wanted: &[&str], all: usize| {
        let mut kernel_state = FakeKernel::new("vxlan", &[2, 3]).settled();
        let ObservedKind::Known(kind) = &mut kernel_state.observed.devices[0].kind else {
            panic!()
        };
        let crate::desired::DeviceKind::Vxlan(vxlan) = kind else { panic!() };
        change(vxlan);
        let changes = shown(&kernel_state.diff().changes);
        for (change, wanted) in changes.iter().zip(wanted) {
            assert!(change.starts_with(wanted), "{change:?} should be {wanted:?}");
        }
        assert_eq!(changes.len(), all, "{changes:?}");
        kernel_state.settle();
    };
    let address = "192.0.2.77".parse().unwrap();
    check(&|observed| observed.local = address, &["change device flannel.1: local 192.0.2.1"], 1);
    check(
        &|observed| observed.lower = kernel::IfIndex(9).into(),
        &["change device flannel.1: local"],
        1,
    );
    check(&|observed| observed.learning = true, &["change device flannel.1: local"], 1);
    // The kernel forgets the neighbours.
    let mac = "02:00:00:00:00:01".parse().unwrap();
    check(
        &|observed| observed.mac = mac,
        &["change device flannel.1: address", "set neighbour"],
        3,
    );
    let anew = ["remove device flannel.1", "create device flannel.1", "add address"];
    check(&|observed| observed.port = 4789, &anew, 3 + 4 * 2);
    check(&|observed| observed.vni = 2, &anew, 3 + 4 * 2);
    check(&|observed| observed.gbp = true, &anew, 3 + 4 * 2);
}

/// Two agents of one node must not take each other's for their own leavings.
#[test]
fn each_mark_has_numbers_of_its_own() {
    let conf = NetConf::parse(r#"{"Network": "10.5.0.0/16"}"#).unwrap();
    let range = |mark| Ownership::new(&conf, mark).nexthops.unwrap();
    let (one, two) = (range("podwire"), range("podwire-blue"));
    assert!(!one.contains(two.start()) && !two.contains(one.start()));
    for range in [one, two] {
        assert!(NEXTHOP_IDS.contains(range.start()) && NEXTHOP_IDS.contains(range.end()));
    }
}

/// All of one network's, and nothing of another's that an agent of the same node keeps.
#[test]
fn every_trace_is_what_bears_the_mark() {
    let everything = |kernel_state: &FakeKernel, mark| {
        let ownership = Ownership::for_cleanup(mark, Vec::new());
        shown(&diff(&DesiredState::default(), &kernel_state.observed, &ownership).changes)
    };
    for backend in ["vxlan", "host-gw", "wireguard", "ipip"] {
        let kernel_state = FakeKernel::new(backend, &[2, 3]).settled();
        assert_eq!(everything(&kernel_state, "blue"), [""; 0], "{backend}");
        assert_ne!(everything(&kernel_state, "podwire"), [""; 0], "{backend}");
    }
    let mut kernel_state = FakeKernel::new("host-gw", &[2]).settled();
    let rest = everything(&kernel_state, "podwire");
    assert_eq!(
        rest,
        ["remove route 10.5.2.0/24 via 192.0.2.2 dev eth0", "remove nexthop 1941962752"]
    );
    // Kernels before 5.3.
    kernel_state.observed.routes[0].nexthop = None;
    kernel_state.observed.nexthops.clear();
    assert_eq!(everything(&kernel_state, "podwire"), [""; 0]);
    let ownership = Ownership::for_cleanup("podwire", vec!["10.5.0.0/16".parse().unwrap()]);
    let changes = diff(&DesiredState::default(), &kernel_state.observed, &ownership).changes;
    assert_eq!(shown(&changes), rest[..1]);
}

#[test]
fn another_agents_device_is_neither_taken_nor_removed() {
    let mut kernel_state = FakeKernel::new("vxlan", &[2]).settled();
    kernel_state.observed.devices[0].alias = Some("blue".to_owned());
    let conflicts = kernel_state.diff().conflicts;
    assert!(conflicts[0].to_string().contains("is a vxlan with the alias \"blue\" that is not"));
    kernel_state.desired = desired("host-gw", &[2]);
    let changes = shown(&kernel_state.diff().changes);
    assert!(!changes.iter().any(|change| change.contains("device")), "{changes:?}");
    // Our own with another word on it stays ours.
    kernel_state.desired = desired("vxlan", &[2]);
    kernel_state.ownership.adopted.insert("flannel.1".parse().unwrap());
    assert_eq!(shown(&kernel_state.diff().changes), ["change device flannel.1: mark it as ours"]);
}

#[test]
fn what_peers_left_behind_is_removed_last() {
    let mut kernel_state = FakeKernel::new("vxlan", &[2, 3]).settled();
    let (old, new) = (kernel_state.mac_of(3), kernel_state.mac_of(4));
    kernel_state.desired = desired("vxlan", &[2, 4]);
    let changes = shown(&kernel_state.diff().changes);
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
    kernel_state.settle();
}

#[test]
fn another_backend_takes_the_place_of_the_old_one() {
    let mut kernel_state = FakeKernel::new("vxlan", &[2]).settled();
    kernel_state.desired = desired("host-gw", &[2]);
    let changes = shown(&kernel_state.diff().changes);
    let expected = [
        "add nexthop 1941962753 via 192.0.2.2 dev eth0",
        "set route 10.5.2.0/24 via 192.0.2.2 dev eth0 nhid 1941962753",
        "remove device flannel.1",
    ];
    assert_eq!(changes, expected);
    kernel_state.settle();
}

#[test]
fn foreign_things_stay() {
    let mut kernel_state = FakeKernel::new("vxlan", &[2]).settled();
    let before = kernel_state.observed.clone();
    kernel_state.add_foreign();
    let foreign = kernel_state.observed.clone();
    assert_ne!(before, foreign);
    assert_eq!(shown(&kernel_state.diff().changes), [] as [&str; 0]);
    // Nor does anything of theirs go when all of ours does.
    kernel_state.desired = DesiredState::default();
    kernel_state.settle();
    let mut others = FakeKernel::new("alloc", &[]);
    others.add_foreign();
    assert_eq!(kernel_state.observed.devices, others.observed.devices);
    assert_eq!(kernel_state.observed.routes, others.observed.routes);
    assert_eq!(kernel_state.observed.nexthops, others.observed.nexthops);
}

#[test]
fn what_is_in_the_way_is_told_and_stays() {
    let mut kernel_state = FakeKernel::new("vxlan", &[2, 3]);
    let dst = "10.5.2.0/24".parse().unwrap();
    let mut route = kernel_state.desired.routes[&dst];
    route.device = "cni0".parse().unwrap();
    kernel_state.observed.routes.push(ObservedRoute {
        route,
        metric: 0,
        protocol: 2,
        nexthop: None,
    });
    let conflicts = kernel_state.diff().conflicts;
    let words: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
    assert_eq!(words, ["a route to 10.5.2.0/24 of protocol 2 is in the way: remove it"]);
    for (protocol, count) in [(4, 1), (PROTOCOL_BOOT, 0), (PROTOCOL, 0)] {
        let mut kernel_state = FakeKernel::new("vxlan", &[2, 3]);
        kernel_state.observed.blocking_routes.insert(dst, protocol);
        let Diff { changes, conflicts } = kernel_state.diff();
        assert_eq!(conflicts.len(), count, "{conflicts:?}");
        let sets = shown(&changes).iter().filter(|change| change.contains("set route")).count();
        assert_eq!(sets, 2 - count, "a blackhole of ours or flannel's is replaced");
    }
    let mut kernel_state = FakeKernel::new("vxlan", &[2]);
    kernel_state.observed.devices.push(ObservedDevice {
        name: "flannel.1".parse().unwrap(),
        alias: None,
        is_up: true,
        mtu: 1500,
        kind: ObservedKind::Other("dummy".to_owned()),
    });
    let difference = kernel_state.diff();
    assert_eq!(shown(&difference.changes), [] as [&str; 0]);
    assert!(difference.conflicts[0].to_string().contains("is a dummy that is not ours"));
    // With our mark it is ours, whatever it has become.
    kernel_state.observed.devices[0].alias = Some("podwire".to_owned());
    assert!(shown(&kernel_state.diff().changes)[0].starts_with("remove device flannel.1"));
    kernel_state.settle();
}

#[test]
fn old_kernels_have_plain_routes() {
    let mut kernel_state = FakeKernel::new("vxlan", &[2]);
    kernel_state.ownership.nexthops = None;
    let changes = shown(&kernel_state.diff().changes);
    assert_eq!(changes.last().unwrap(), "set route 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink");
    kernel_state.settle();
    assert!(kernel_state.observed.nexthops.is_empty());
}

#[test]
fn a_peer_that_roams_is_left_where_it_is() {
    let mut kernel_state = FakeKernel::new("wireguard", &[2, 3]).settled();
    let elsewhere = Some("203.0.113.9:4242".parse().unwrap());
    let peer = kernel_state.observed.wireguard.values_mut().next().unwrap();
    (peer.endpoint, peer.is_alive) = (elsewhere, true);
    assert_eq!(kernel_state.diff().changes, []);
    kernel_state.observed.wireguard.values_mut().next().unwrap().is_alive = false;
    let changes = kernel_state.diff().changes;
    assert!(matches!(changes[..], [Change::SetPeer { keeps_endpoint: false, .. }]), "{changes:?}");
    kernel_state.settle();
    // A subnet that has moved to another peer.
    let peers: Vec<_> = kernel_state.desired.wireguard.keys().copied().collect();
    let moved =
        std::mem::take(&mut kernel_state.desired.wireguard.get_mut(&peers[0]).unwrap().allowed);
    kernel_state.desired.wireguard.get_mut(&peers[1]).unwrap().allowed.extend(moved);
    assert_eq!(kernel_state.diff().changes.len(), 2);
    kernel_state.settle();
    kernel_state.desired.wireguard.remove(&peers[0]);
    assert!(matches!(kernel_state.diff().changes[..], [Change::RemovePeer { .. }]));
}

#[test]
fn commands_are_called_for_what_came_and_went() {
    let mut kernel_state = FakeKernel::new("extension", &[2, 3]);
    let added =
        ["10.5.2.0/24", "10.5.3.0/24"].map(|net| format!("call SubnetAddCommand for {net}"));
    assert_eq!(shown(&kernel_state.diff().changes), added);
    kernel_state.settle();
    kernel_state.desired = desired("extension", &[3]);
    let changes = shown(&kernel_state.diff().changes);
    assert_eq!(changes, ["call SubnetRemoveCommand for 10.5.2.0/24"]);
}

#[test]
fn five_thousand_peers_are_settled_at_once() {
    let kernel_state = FakeKernel::many(5_000);
    let changes = kernel_state.diff().changes;
    assert_eq!(changes.len(), 2 + 4 * 5_000);
    let nexthops = changes.iter().filter_map(|change| match change {
        Change::AddNexthop { id, gateway } => Some((*gateway, *id)),
        _ => None,
    });
    let made = ObservedState::from_desired(
        &kernel_state.desired,
        &kernel_state.ownership,
        &nexthops.collect(),
    );
    assert_eq!(made.nexthops.len(), 5_000);
    assert_eq!(diff(&kernel_state.desired, &made, &kernel_state.ownership), Diff::default());
}

#[test]
fn routes_become_the_kernels_and_back() {
    let kernel_state = FakeKernel::new("vxlan", &[2]).settled();
    let observed = kernel_state.observed.routes[0];
    let index = kernel::IfIndex(7);
    let plain = observed.route.to_kernel(index, None);
    assert_eq!((plain.protocol, plain.oif, plain.onlink), (PROTOCOL, Some(index), true));
    let back = ObservedRoute::from_kernel(&plain, |_| Some(observed.route.device)).unwrap();
    assert_eq!(back, ObservedRoute { nexthop: None, ..observed });
    let through = observed.route.to_kernel(index, Some(5));
    assert_eq!((through.nexthop, through.gateway, through.oif), (Some(5), None, None));
}

#[test]
fn one_peer_changes_its_own_part_alone() {
    let mut kernel_state = FakeKernel::new("vxlan", &[2, 3]).settled();
    let numbers = |kernel_state: &FakeKernel| {
        let all = kernel_state.observed.nexthops.iter();
        all.map(|(id, nexthop)| (nexthop.gateway.unwrap(), *id)).collect::<BTreeMap<_, _>>()
    };
    // Of what peer 3 wants, and what it wants with another hardware address.
    let mut before = desired("vxlan", &[3]);
    (before.devices, before.addresses) = Default::default();
    let mut after = before.clone();
    let mac = "02:00:00:00:00:01".parse().unwrap();
    after.neighbours.values_mut().for_each(|old| *old = mac);
    let moved = std::mem::take(&mut after.forwarding).into_iter();
    after.forwarding = moved.map(|((device, _), dst)| ((device, mac), dst)).collect();
    kernel_state.ownership.first_free_nexthop += 2;
    let (devices, nexthops) = (kernel_state.desired.devices.clone(), numbers(&kernel_state));
    let change = PeerChange { before: before.clone(), after };
    let part = diff_peer(&devices, &change, &kernel_state.ownership, &nexthops);
    let old = kernel_state.mac_of(3);
    let expected = [
        format!("set forwarding {mac} dst 192.0.2.3 dev flannel.1"),
        format!("set neighbour 10.5.3.0 lladdr {mac} dev flannel.1"),
        format!("remove forwarding {old} dst 192.0.2.3 dev flannel.1"),
    ];
    assert_eq!(shown(&part.changes), expected);
    // It goes, and another comes.
    let mut other = desired("vxlan", &[4]);
    (other.devices, other.addresses) = Default::default();
    let change = PeerChange { before, after: other };
    let part = diff_peer(&devices, &change, &kernel_state.ownership, &nexthops);
    for change in part.changes {
        kernel_state.apply(&change);
    }
    kernel_state.desired = desired("vxlan", &[2, 4]);
    assert_eq!(kernel_state.diff(), Diff::default());
}
