// SPDX-License-Identifier: Apache-2.0
//! Desired routes in the real kernel.

use ipnet::IpNet;
use kernel::route::{self, RouteFilter};
use kernel::{IfIndex, Netlink};
use overlay::desired::{BLACKHOLE_METRIC, DesiredRoute, NextHop, default_metric};
use overlay::observed::ObservedRoute;
use overlay::ownership::PROTOCOL;
use testkit::{Ns, in_netns};

fn ip(args: &str) -> String {
    Ns::here().ip(&args.split_whitespace().collect::<Vec<_>>())
}

fn route_to(dst: &str, gateway: Option<&str>, device: &str) -> DesiredRoute {
    let dst: IpNet = dst.parse().unwrap();
    let is_tunnel = device != "eth0";
    let next_hop = NextHop {
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        device: device.parse().unwrap(),
        onlink: is_tunnel && gateway.is_some(),
        is_link_scope: gateway.is_none() && dst.addr().is_ipv4(),
        mtu: None,
    };
    DesiredRoute::unicast(dst, next_hop)
}

fn index_of(nl: &Netlink, route: &DesiredRoute) -> Option<IfIndex> {
    route.device().map(|device| kernel::link::index_of(nl, device).unwrap())
}

/// Reads all routes with podwire's protocol.
fn observed(nl: &Netlink) -> Vec<ObservedRoute> {
    let name_of = |index| kernel::link::name_of(nl, index).unwrap();
    let filter = RouteFilter { protocol: Some(PROTOCOL), ..RouteFilter::default() };
    let listed = route::list(nl, filter).unwrap();
    let mut observed: Vec<ObservedRoute> =
        listed.iter().map(|route| ObservedRoute::from_kernel(route, name_of).unwrap()).collect();
    observed.sort_by_key(|route| route.route);
    observed
}

fn set_all(nl: &Netlink, routes: &[DesiredRoute]) {
    let set = |route: &DesiredRoute| route::replace(&route.to_kernel(index_of(nl, route), None));
    nl.apply(routes.iter().map(set)).unwrap();
}

fn remove_all(nl: &Netlink) {
    let remove = |one: &ObservedRoute| route::remove(&one.to_kernel(index_of(nl, &one.route)));
    nl.apply(observed(nl).iter().map(remove)).unwrap();
}

fn make_node() -> Netlink {
    ip("link add eth0 type veth peer name other");
    ip("link set eth0 up");
    ip("link set other up");
    ip("address add 192.0.2.1/24 dev eth0");
    ip("address add 2001:db8::1/64 dev eth0 nodad");
    ip("link add flannel.1 mtu 1450 type vxlan id 1 local 192.0.2.1 dev eth0 dstport 8472");
    ip("link set flannel.1 up");
    Netlink::open().unwrap()
}

#[test]
fn unicast_routes_are_set_observed_and_removed() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let nl = make_node();
        let mut routes = [
            route_to("10.5.2.0/24", Some("10.5.2.0"), "flannel.1"),
            route_to("10.5.3.0/24", Some("192.0.2.3"), "eth0"),
            route_to("10.5.4.0/24", Some("2001:db8::4"), "eth0"),
            route_to("10.6.0.0/16", None, "flannel.1"),
            route_to("fd00:5:0:2::/64", Some("fd00:5:0:2::"), "flannel.1"),
            route_to("fd00:5:0:3::/64", Some("2001:db8::3"), "eth0"),
            route_to("fd00:6::/48", None, "flannel.1"),
        ];
        routes.sort();
        set_all(&nl, &routes);
        assert!(ip("route show 10.5.4.0/24").contains("via inet6 2001:db8::4 dev eth0"));
        let existing = observed(&nl);
        assert_eq!(existing.iter().map(|one| one.route).collect::<Vec<_>>(), routes);
        assert!(existing.iter().all(|one| one.metric == default_metric(one.route.dst)));
        remove_all(&nl);
        assert_eq!(observed(&nl), []);
    });
}

#[test]
fn blackhole_routes_are_set_observed_and_removed() {
    in_netns(|| {
        let nl = Netlink::open().unwrap();
        ip("link add cni0 type bridge");
        ip("link set cni0 up");
        ip("address add 10.5.1.1/24 dev cni0");
        let routes = ["10.5.1.0/24", "fd00:5:0:1::/64"];
        let routes = routes.map(|dst| DesiredRoute::blackhole(dst.parse().unwrap()));
        set_all(&nl, &routes);
        let existing = observed(&nl);
        assert_eq!(existing.iter().map(|one| one.route).collect::<Vec<_>>(), routes);
        assert!(existing.iter().all(|one| one.metric == BLACKHOLE_METRIC));
        // The bridge's route has a better metric.
        assert!(ip("route get 10.5.1.9").contains("dev cni0"));
        remove_all(&nl);
        assert_eq!(observed(&nl), []);
        assert!(ip("route show 10.5.1.0/24").contains("dev cni0"));
    });
}

#[test]
fn flannels_route_is_replaced_by_one_with_a_nexthop() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let nl = make_node();
        for (dst, gateway, id) in
            [("10.5.2.0/24", "10.5.2.0", 7), ("fd00:5:0:2::/64", "fd00:5:0:2::", 8)]
        {
            let show = if id == 7 { "-4 route show" } else { "-6 route show" };
            ip(&format!("route add {dst} via {gateway} dev flannel.1 onlink"));
            ip(&format!("nexthop add id {id} via {gateway} dev flannel.1 onlink protocol 112"));
            let desired = route_to(dst, Some(gateway), "flannel.1");
            let index = index_of(&nl, &desired);
            nl.apply([route::replace(&desired.to_kernel(index, Some(id)))]).unwrap();
            let shown = ip(&format!("{show} {dst}"));
            assert_eq!(shown.lines().count(), 1, "{shown}");
            let metric = default_metric(desired.dst);
            let expected =
                ObservedRoute { route: desired, metric, protocol: PROTOCOL, nexthop: Some(id) };
            assert_eq!(observed(&nl), [expected]);
            remove_all(&nl);
            assert_eq!(ip(&format!("{show} {dst}")), "");
        }
    });
}
