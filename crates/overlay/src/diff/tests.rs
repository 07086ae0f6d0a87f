// SPDX-License-Identifier: Apache-2.0
//! Diffs applied to an in-memory kernel.

mod blackholes;
mod fake_kernel;
mod properties;

use fake_kernel::{FakeKernel, desired};
use kernel::route::PROTOCOL_BOOT;

use super::*;
use crate::desired::{DesiredRoute, RouteKind, VxlanDevice};
use crate::netconf::NetConf;
use crate::observed::{ObservedDevice, ObservedKind, ObservedRoute, ObservedState};
use crate::ownership::{NEXTHOP_IDS, Ownership, PROTOCOL};

const NOTHING: [&str; 0] = [];

fn shown(changes: &[Change]) -> Vec<String> {
    changes.iter().map(Change::to_string).collect()
}

fn shown_diff(kernel: &FakeKernel) -> Vec<String> {
    shown(&kernel.diff().changes)
}

#[test]
fn empty_kernel_gets_everything_in_order() {
    let kernel = FakeKernel::new("vxlan", &[2]);
    let diff = kernel.diff();
    let mac = kernel.mac_of(2);
    let expected = [
        format!(
            "create device flannel.1 type vxlan mtu 1450 id 1 address {} local 192.0.2.1 dev eth0 \
             dstport 8472 nolearning",
            kernel.mac_of(1)
        ),
        "add address 10.5.1.0/32 dev flannel.1".to_owned(),
        format!("set forwarding {mac} dst 192.0.2.2 dev flannel.1"),
        format!("set neighbour 10.5.2.0 lladdr {mac} dev flannel.1"),
        "add nexthop 1941962752 via 10.5.2.0 dev flannel.1 onlink".to_owned(),
        "set route 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink nhid 1941962752".to_owned(),
    ];
    assert_eq!(shown(&diff.changes), expected);
    assert_eq!(diff.conflicts, []);
}

#[test]
fn each_damage_gets_only_its_own_repair() {
    let check = |damage: &dyn Fn(&mut ObservedState), expected: &[&str]| {
        let mut kernel = FakeKernel::new("vxlan", &[2, 3]).reconciled();
        damage(&mut kernel.observed);
        let changes = shown_diff(&kernel);
        let words: Vec<String> = changes
            .iter()
            .map(|change| change.split(' ').take(3).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(words, expected, "{changes:?}");
        kernel.reconcile();
    };
    fn first_hop(observed: &mut ObservedState) -> &mut crate::desired::NextHop {
        let RouteKind::Unicast(hop) = &mut observed.routes[0].route.kind else { panic!() };
        hop
    }
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
    check(&|observed| first_hop(observed).onlink = false, &["set route 10.5.2.0/24"]);
    check(
        &|observed| first_hop(observed).mtu = Some(1300),
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
fn removed_device_is_recreated_with_everything() {
    let mut kernel = FakeKernel::new("vxlan", &[2, 3]).reconciled();
    let device = kernel.observed.devices[0].name;
    kernel.apply(&Change::RemoveDevice(device));
    let changes = shown_diff(&kernel);
    assert!(changes[0].starts_with("create device"));
    assert_eq!(changes.len(), 2 + 4 * 2, "{changes:?}");
    kernel.reconcile();
}

#[test]
fn device_is_changed_in_place_if_possible() {
    let check = |change: &dyn Fn(&mut VxlanDevice), expected: &[&str], all: usize| {
        let mut kernel = FakeKernel::new("vxlan", &[2, 3]).reconciled();
        let ObservedKind::Known(kind) = &mut kernel.observed.devices[0].kind else { panic!() };
        let crate::desired::DeviceKind::Vxlan(vxlan) = kind else { panic!() };
        change(vxlan);
        let changes = shown_diff(&kernel);
        for (change, expected) in changes.iter().zip(expected) {
            assert!(change.starts_with(expected), "{change:?} should be {expected:?}");
        }
        assert_eq!(changes.len(), all, "{changes:?}");
        kernel.reconcile();
    };
    let address = "192.0.2.77".parse().unwrap();
    check(&|vxlan| vxlan.local = address, &["change device flannel.1: local 192.0.2.1"], 1);
    check(&|vxlan| vxlan.lower = kernel::IfIndex(9).into(), &["change device flannel.1: local"], 1);
    check(&|vxlan| vxlan.learning = true, &["change device flannel.1: local"], 1);
    // The kernel deletes the neighbour entries.
    let mac = "02:00:00:00:00:01".parse().unwrap();
    check(&|vxlan| vxlan.mac = mac, &["change device flannel.1: address", "set neighbour"], 3);
    let recreated = ["remove device flannel.1", "create device flannel.1", "add address"];
    check(&|vxlan| vxlan.port = 4789, &recreated, 3 + 4 * 2);
    check(&|vxlan| vxlan.vni = 2, &recreated, 3 + 4 * 2);
    check(&|vxlan| vxlan.gbp = true, &recreated, 3 + 4 * 2);
}

/// Otherwise two agents of one node would remove each other's next hops.
#[test]
fn owners_have_separate_nexthop_ranges() {
    let conf = NetConf::parse(r#"{"Network": "10.5.0.0/16"}"#).unwrap();
    let range = |owner| Ownership::new(&conf, owner).nexthops.unwrap();
    let (one, two) = (range("podwire"), range("podwire-blue"));
    assert!(!one.contains(two.start()) && !two.contains(one.start()));
    for range in [one, two] {
        assert!(NEXTHOP_IDS.contains(range.start()) && NEXTHOP_IDS.contains(range.end()));
    }
}

fn cleanup(kernel: &FakeKernel, ownership: &Ownership) -> Vec<String> {
    shown(&diff(&DesiredState::default(), &kernel.observed, ownership).changes)
}

#[test]
fn cleanup_removes_only_the_owners_objects() {
    let cleanup =
        |kernel: &FakeKernel, owner| cleanup(kernel, &Ownership::for_cleanup(owner, Vec::new()));
    for backend in ["vxlan", "host-gw", "wireguard", "ipip"] {
        let kernel = FakeKernel::new(backend, &[2, 3]).reconciled();
        assert_eq!(cleanup(&kernel, "blue"), NOTHING, "{backend}");
        assert_ne!(cleanup(&kernel, "podwire"), NOTHING, "{backend}");
    }
    let kernel = FakeKernel::new("host-gw", &[2]).reconciled();
    assert_eq!(
        cleanup(&kernel, "podwire"),
        ["remove route 10.5.2.0/24 via 192.0.2.2 dev eth0", "remove nexthop 1941962752"]
    );
}

/// Kernels before 5.3 have no next-hop objects.
#[test]
fn cleanup_without_nexthops_goes_by_network() {
    let mut kernel = FakeKernel::new("host-gw", &[2]).reconciled();
    kernel.observed.routes[0].nexthop = None;
    kernel.observed.nexthops.clear();
    let ownership = Ownership::for_cleanup("podwire", Vec::new());
    assert_eq!(cleanup(&kernel, &ownership), NOTHING);
    let ownership = Ownership::for_cleanup("podwire", vec!["10.5.0.0/16".parse().unwrap()]);
    assert_eq!(cleanup(&kernel, &ownership), ["remove route 10.5.2.0/24 via 192.0.2.2 dev eth0"]);
}

#[test]
fn device_of_another_agent_is_left_alone() {
    let mut kernel = FakeKernel::new("vxlan", &[2]).reconciled();
    kernel.observed.devices[0].alias = Some("blue".to_owned());
    let conflict = kernel.diff().conflicts[0].to_string();
    assert!(conflict.contains("device flannel.1 (vxlan, alias \"blue\") is not"), "{conflict}");
    kernel.desired = desired("host-gw", &[2]);
    let changes = shown_diff(&kernel);
    assert!(!changes.iter().any(|change| change.contains("device")), "{changes:?}");
}

#[test]
fn adopted_device_gets_its_owner_back() {
    let mut kernel = FakeKernel::new("vxlan", &[2]).reconciled();
    kernel.observed.devices[0].alias = Some("blue".to_owned());
    kernel.ownership.adopted.insert("flannel.1".parse().unwrap());
    assert_eq!(shown_diff(&kernel), ["change device flannel.1: set owner"]);
}

#[test]
fn removals_of_a_gone_peer_come_last() {
    let mut kernel = FakeKernel::new("vxlan", &[2, 3]).reconciled();
    let (old, new) = (kernel.mac_of(3), kernel.mac_of(4));
    kernel.desired = desired("vxlan", &[2, 4]);
    let expected = [
        format!("set forwarding {new} dst 192.0.2.4 dev flannel.1"),
        format!("set neighbour 10.5.4.0 lladdr {new} dev flannel.1"),
        "add nexthop 1941962754 via 10.5.4.0 dev flannel.1 onlink".to_owned(),
        "set route 10.5.4.0/24 via 10.5.4.0 dev flannel.1 onlink nhid 1941962754".to_owned(),
        "remove route 10.5.3.0/24 via 10.5.3.0 dev flannel.1 onlink".to_owned(),
        "remove nexthop 1941962753".to_owned(),
        "remove neighbour 10.5.3.0 dev flannel.1".to_owned(),
        format!("remove forwarding {old} dst 192.0.2.3 dev flannel.1"),
    ];
    assert_eq!(shown_diff(&kernel), expected);
    kernel.reconcile();
}

#[test]
fn changed_backend_replaces_routes_then_device() {
    let mut kernel = FakeKernel::new("vxlan", &[2]).reconciled();
    kernel.desired = desired("host-gw", &[2]);
    let expected = [
        "add nexthop 1941962753 via 192.0.2.2 dev eth0",
        "set route 10.5.2.0/24 via 192.0.2.2 dev eth0 nhid 1941962753",
        "remove device flannel.1",
    ];
    assert_eq!(shown_diff(&kernel), expected);
    kernel.reconcile();
}

#[test]
fn foreign_objects_stay() {
    let mut kernel = FakeKernel::new("vxlan", &[2]).reconciled();
    let before = kernel.observed.clone();
    kernel.add_foreign();
    assert_ne!(before, kernel.observed);
    assert_eq!(shown_diff(&kernel), NOTHING);
    // Foreign objects also stay when all of the agent's objects are removed.
    kernel.desired = DesiredState::default();
    kernel.reconcile();
    let mut others = FakeKernel::new("alloc", &[]);
    others.add_foreign();
    assert_eq!(kernel.observed.devices, others.observed.devices);
    assert_eq!(kernel.observed.routes, others.observed.routes);
    assert_eq!(kernel.observed.nexthops, others.observed.nexthops);
}

#[test]
fn foreign_route_is_a_conflict() {
    let mut kernel = FakeKernel::new("vxlan", &[2, 3]);
    let dst = "10.5.2.0/24".parse().unwrap();
    let route = DesiredRoute::into_device(dst, "cni0".parse().unwrap(), true);
    kernel.observed.routes.push(ObservedRoute { route, metric: 0, protocol: 2, nexthop: None });
    let Diff { changes, conflicts } = kernel.diff();
    let conflicts: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
    assert_eq!(conflicts, ["conflicting route to 10.5.2.0/24 (protocol 2): remove it"]);
    let sets = shown(&changes).iter().filter(|change| change.contains("set route")).count();
    assert_eq!(sets, 1);
}

/// Multipath routes and the like of podwire and flannel are replaced.
#[test]
fn foreign_blocking_route_is_a_conflict() {
    let dst = "10.5.2.0/24".parse().unwrap();
    for (protocol, count) in [(4, 1), (PROTOCOL_BOOT, 0), (PROTOCOL, 0)] {
        let mut kernel = FakeKernel::new("vxlan", &[2, 3]);
        kernel.observed.blocking_routes.insert(dst, protocol);
        let Diff { changes, conflicts } = kernel.diff();
        assert_eq!(conflicts.len(), count, "{conflicts:?}");
        let sets = shown(&changes).iter().filter(|change| change.contains("set route")).count();
        assert_eq!(sets, 2 - count);
    }
}

#[test]
fn foreign_device_is_a_conflict() {
    let mut kernel = FakeKernel::new("vxlan", &[2]);
    kernel.observed.devices.push(ObservedDevice {
        name: "flannel.1".parse().unwrap(),
        alias: None,
        is_up: true,
        mtu: 1500,
        kind: ObservedKind::Other("dummy".to_owned()),
    });
    let diff = kernel.diff();
    assert_eq!(shown(&diff.changes), NOTHING);
    assert_eq!(
        diff.conflicts[0].to_string(),
        "device flannel.1 (dummy) is not managed by podwire but a vxlan of that name is required: \
         rename or remove it"
    );
    // A device with the owner tag is re-created, whatever its kind.
    kernel.observed.devices[0].alias = Some("podwire".to_owned());
    assert!(shown_diff(&kernel)[0].starts_with("remove device flannel.1"));
    kernel.reconcile();
}

#[test]
fn kernel_without_nexthops_gets_plain_routes() {
    let mut kernel = FakeKernel::new("vxlan", &[2]);
    kernel.ownership.nexthops = None;
    let changes = shown_diff(&kernel);
    assert_eq!(changes.last().unwrap(), "set route 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink");
    kernel.reconcile();
    assert!(kernel.observed.nexthops.is_empty());
}

#[test]
fn live_wireguard_peer_keeps_its_endpoint() {
    let mut kernel = FakeKernel::new("wireguard", &[2, 3]).reconciled();
    let elsewhere = Some("203.0.113.9:4242".parse().unwrap());
    let peer = kernel.observed.wireguard.values_mut().next().unwrap();
    (peer.endpoint, peer.is_alive) = (elsewhere, true);
    assert_eq!(kernel.diff().changes, []);
    kernel.observed.wireguard.values_mut().next().unwrap().is_alive = false;
    let changes = kernel.diff().changes;
    assert!(matches!(changes[..], [Change::SetPeer { keeps_endpoint: false, .. }]), "{changes:?}");
    kernel.reconcile();
}

#[test]
fn subnet_moves_between_wireguard_peers() {
    let mut kernel = FakeKernel::new("wireguard", &[2, 3]).reconciled();
    let peers: Vec<_> = kernel.desired.wireguard.keys().copied().collect();
    let moved = std::mem::take(&mut kernel.desired.wireguard.get_mut(&peers[0]).unwrap().allowed);
    kernel.desired.wireguard.get_mut(&peers[1]).unwrap().allowed.extend(moved);
    assert_eq!(kernel.diff().changes.len(), 2);
    kernel.reconcile();
    kernel.desired.wireguard.remove(&peers[0]);
    assert!(matches!(kernel.diff().changes[..], [Change::RemovePeer { .. }]));
}

#[test]
fn extension_commands_follow_the_peers() {
    let mut kernel = FakeKernel::new("extension", &[2, 3]);
    let added =
        ["10.5.2.0/24", "10.5.3.0/24"].map(|net| format!("call SubnetAddCommand for {net}"));
    assert_eq!(shown_diff(&kernel), added);
    kernel.reconcile();
    kernel.desired = desired("extension", &[3]);
    assert_eq!(shown_diff(&kernel), ["call SubnetRemoveCommand for 10.5.2.0/24"]);
}

#[test]
fn five_thousand_peers_get_four_changes_each() {
    let kernel = FakeKernel::with_many_peers(5_000);
    let changes = kernel.diff().changes;
    assert_eq!(changes.len(), 2 + 4 * 5_000);
    let nexthops = changes.iter().filter_map(|change| match change {
        Change::AddNexthop { id, gateway } => Some((*gateway, *id)),
        _ => None,
    });
    let observed =
        ObservedState::from_desired(&kernel.desired, &kernel.ownership, &nexthops.collect());
    assert_eq!(observed.nexthops.len(), 5_000);
    assert_eq!(diff(&kernel.desired, &observed, &kernel.ownership), Diff::default());
}

#[test]
fn routes_convert_to_netlink_and_back() {
    let kernel = FakeKernel::new("vxlan", &[2]).reconciled();
    let observed = kernel.observed.routes[0];
    let index = Some(kernel::IfIndex(7));
    let plain = observed.route.to_kernel(index, None);
    assert_eq!((plain.protocol, plain.oif, plain.onlink), (PROTOCOL, index, true));
    let back = ObservedRoute::from_kernel(&plain, |_| observed.route.device()).unwrap();
    assert_eq!(back, ObservedRoute { nexthop: None, ..observed });
    let through = observed.route.to_kernel(index, Some(5));
    assert_eq!((through.nexthop, through.gateway, through.oif), (Some(5), None, None));
}

/// The desired state of one peer, without devices.
fn peer_part(n: u32) -> DesiredState {
    let part = desired("vxlan", &[n]);
    DesiredState { devices: BTreeMap::new(), addresses: Default::default(), ..part }
}

fn nexthop_ids(kernel: &FakeKernel) -> BTreeMap<Gateway, u32> {
    let nexthops = kernel.observed.nexthops.iter();
    nexthops.map(|(id, nexthop)| (nexthop.gateway.unwrap(), *id)).collect()
}

#[test]
fn changed_peer_gets_only_its_own_changes() {
    let mut kernel = FakeKernel::new("vxlan", &[2, 3]).reconciled();
    kernel.ownership.first_free_nexthop += 2;
    let before = peer_part(3);
    let mut after = before.clone();
    let mac = "02:00:00:00:00:01".parse().unwrap();
    after.neighbours.values_mut().for_each(|old| *old = mac);
    let moved = std::mem::take(&mut after.forwarding).into_iter();
    after.forwarding = moved.map(|((device, _), dst)| ((device, mac), dst)).collect();
    let change = PeerChange { before, after };
    let nexthops = nexthop_ids(&kernel);
    let diff = diff_peer(&kernel.desired.devices, &change, &kernel.ownership, &nexthops);
    let old = kernel.mac_of(3);
    let expected = [
        format!("set forwarding {mac} dst 192.0.2.3 dev flannel.1"),
        format!("set neighbour 10.5.3.0 lladdr {mac} dev flannel.1"),
        format!("remove forwarding {old} dst 192.0.2.3 dev flannel.1"),
    ];
    assert_eq!(shown(&diff.changes), expected);
}

#[test]
fn replaced_peer_gives_the_full_desired_state() {
    let mut kernel = FakeKernel::new("vxlan", &[2, 3]).reconciled();
    kernel.ownership.first_free_nexthop += 2;
    let change = PeerChange { before: peer_part(3), after: peer_part(4) };
    let nexthops = nexthop_ids(&kernel);
    let diff = diff_peer(&kernel.desired.devices, &change, &kernel.ownership, &nexthops);
    for change in diff.changes {
        kernel.apply(&change);
    }
    kernel.desired = desired("vxlan", &[2, 4]);
    assert_eq!(kernel.diff(), Diff::default());
}
