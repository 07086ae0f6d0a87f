// SPDX-License-Identifier: Apache-2.0
//! Blackhole routes as desired routes.

use kernel::route::{KIND_BLACKHOLE, PROTOCOL_BOOT, PROTOCOL_KERNEL};

use super::fake_kernel::FakeKernel;
use super::shown_diff;
use crate::desired::{BLACKHOLE_METRIC, DesiredRoute};
use crate::observed::ObservedRoute;
use crate::ownership::PROTOCOL;

const OWN: &str = "10.5.1.0/24";

/// A node with a blackhole route for its own subnet.
fn kernel() -> FakeKernel {
    let mut kernel = FakeKernel::new("vxlan", &[2]);
    let own = OWN.parse().unwrap();
    kernel.desired.routes.insert(own, DesiredRoute::blackhole(own));
    kernel
}

fn blackhole(dst: &str, metric: u32, protocol: u8) -> ObservedRoute {
    let route = DesiredRoute::blackhole(dst.parse().unwrap());
    ObservedRoute { route, metric, protocol, nexthop: None }
}

#[test]
fn missing_blackhole_is_set_with_the_worst_metric() {
    let kernel = kernel();
    assert!(shown_diff(&kernel).contains(&format!("set route blackhole {OWN}")));
    let kernel = kernel.reconciled();
    let expected = blackhole(OWN, BLACKHOLE_METRIC, PROTOCOL);
    assert!(kernel.observed.routes.contains(&expected));
}

#[test]
fn blackhole_exists_beside_the_bridges_route() {
    let mut kernel = kernel();
    let route = DesiredRoute::into_device(OWN.parse().unwrap(), "cni0".parse().unwrap(), true);
    let of_bridge = ObservedRoute { route, metric: 0, protocol: PROTOCOL_KERNEL, nexthop: None };
    kernel.observed.routes.push(of_bridge);
    kernel.observed.blocking_routes.insert(OWN.parse().unwrap(), 4);
    assert_eq!(kernel.diff().conflicts, []);
    kernel.reconcile();
    assert!(kernel.observed.routes.contains(&of_bridge));
    assert!(kernel.observed.routes.contains(&blackhole(OWN, BLACKHOLE_METRIC, PROTOCOL)));
}

#[test]
fn blackhole_with_a_better_metric_is_replaced() {
    let mut kernel = kernel().reconciled();
    let own = |route: &&mut ObservedRoute| route.route.dst.to_string() == OWN;
    kernel.observed.routes.iter_mut().find(own).unwrap().metric = 0;
    let expected = [format!("set route blackhole {OWN}"), format!("remove route blackhole {OWN}")];
    assert_eq!(shown_diff(&kernel), expected);
    kernel.reconcile();
}

#[test]
fn foreign_blackhole_with_equal_metric_is_a_conflict() {
    let mut kernel = kernel();
    kernel.observed.routes.push(blackhole(OWN, BLACKHOLE_METRIC, 4));
    let conflicts = kernel.diff().conflicts;
    assert_eq!(
        conflicts[0].to_string(),
        format!("conflicting route to {OWN} (protocol 4): remove it")
    );
}

#[test]
fn stale_blackholes_of_the_network_are_removed() {
    let kept = [
        // Routes of other networks and programs, and one with a metric that flannel does not use.
        blackhole("10.77.1.0/24", BLACKHOLE_METRIC, PROTOCOL),
        blackhole("10.77.1.0/24", 0, PROTOCOL_BOOT),
        blackhole("10.5.9.0/24", 0, 4),
        blackhole("10.5.9.0/24", 7, PROTOCOL_BOOT),
    ];
    let own = "remove route blackhole 10.5.8.0/24";
    let flannel = "remove route blackhole 10.5.9.0/24";
    for (removes_flannels, expected) in [(false, &[own][..]), (true, &[own, flannel])] {
        let mut kernel = kernel().reconciled();
        kernel.ownership.removes_flannel_blackholes = removes_flannels;
        kernel.observed.routes.extend(kept);
        kernel.observed.routes.push(blackhole("10.5.8.0/24", BLACKHOLE_METRIC, PROTOCOL));
        kernel.observed.routes.push(blackhole("10.5.9.0/24", 0, PROTOCOL_BOOT));
        assert_eq!(shown_diff(&kernel), expected);
        kernel.reconcile();
        assert!(kept.iter().all(|route| kernel.observed.routes.contains(route)), "{expected:?}");
    }
}

#[test]
fn undesired_own_blackhole_is_removed() {
    let mut kernel = kernel().reconciled();
    kernel.desired.routes.remove(&OWN.parse().unwrap());
    assert_eq!(shown_diff(&kernel), [format!("remove route blackhole {OWN}")]);
}

/// `ip route replace blackhole` by hand, or flannel's blackhole of an earlier subnet.
#[test]
fn blackhole_in_place_of_a_peers_route_is_replaced() {
    for (protocol, conflicts) in [(PROTOCOL_BOOT, 0), (PROTOCOL, 0), (4, 1)] {
        let mut kernel = kernel().reconciled();
        let peer = |route: &&mut ObservedRoute| route.route.dst.to_string() == "10.5.2.0/24";
        let route = kernel.observed.routes.iter_mut().find(peer).unwrap();
        *route = blackhole("10.5.2.0/24", 0, protocol);
        let diff = kernel.diff();
        assert_eq!(diff.conflicts.len(), conflicts, "protocol {protocol}");
        let set = "set route 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink nhid 1941962752";
        let is_set = shown_diff(&kernel).iter().any(|change| change == set);
        assert_eq!(is_set, conflicts == 0, "protocol {protocol}");
    }
}

#[test]
fn blackholes_convert_to_netlink_and_back() {
    for dst in [OWN, "fd00:5:0:1::/64"] {
        let observed = blackhole(dst, BLACKHOLE_METRIC, PROTOCOL);
        let route = observed.route.to_kernel(None, None);
        assert_eq!((route.kind, route.priority), (KIND_BLACKHOLE, Some(BLACKHOLE_METRIC)));
        assert_eq!(ObservedRoute::from_kernel(&route, |_| None), Some(observed));
        assert_eq!(observed.to_kernel(None).kind, KIND_BLACKHOLE);
    }
}
