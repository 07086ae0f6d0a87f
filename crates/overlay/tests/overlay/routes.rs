// SPDX-License-Identifier: Apache-2.0
//! Routes of a plan as the kernel takes and shows them.

use ipnet::IpNet;
use kernel::route::{self, RouteFilter};
use kernel::{IfIndex, Netlink};
use overlay::desired::{DesiredRoute, default_metric};
use overlay::observed::ObservedRoute;
use overlay::ownership::PROTOCOL;
use testkit::{Ns, in_netns};

fn ip(args: &str) -> String {
    Ns::here().ip(&args.split_whitespace().collect::<Vec<_>>())
}

fn to(dst: &str, gateway: Option<&str>, device: &str) -> DesiredRoute {
    let dst: IpNet = dst.parse().unwrap();
    let is_tunnel = device != "eth0";
    DesiredRoute {
        dst,
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        device: device.parse().unwrap(),
        onlink: is_tunnel && gateway.is_some(),
        is_link_scope: gateway.is_none() && dst.addr().is_ipv4(),
        mtu: None,
    }
}

fn index_of(nl: &Netlink, route: &DesiredRoute) -> IfIndex {
    kernel::link::index_of(nl, route.device).unwrap()
}

/// Ours, as a comparison would find them.
fn found(nl: &Netlink) -> Vec<ObservedRoute> {
    let name_of = |index| kernel::link::name_of(nl, index).unwrap();
    let filter = RouteFilter { protocol: Some(PROTOCOL), ..RouteFilter::default() };
    let listed = route::list(nl, filter).unwrap();
    let mut found: Vec<ObservedRoute> =
        listed.iter().map(|route| ObservedRoute::from_kernel(route, name_of).unwrap()).collect();
    found.sort_by_key(|route| route.route);
    found
}

fn node() -> Netlink {
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
fn what_is_made_is_found_and_removed() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let nl = node();
        let mut routes = [
            to("10.5.2.0/24", Some("10.5.2.0"), "flannel.1"),
            to("10.5.3.0/24", Some("192.0.2.3"), "eth0"),
            to("10.5.4.0/24", Some("2001:db8::4"), "eth0"),
            to("10.6.0.0/16", None, "flannel.1"),
            to("fd00:5:0:2::/64", Some("fd00:5:0:2::"), "flannel.1"),
            to("fd00:5:0:3::/64", Some("2001:db8::3"), "eth0"),
            to("fd00:6::/48", None, "flannel.1"),
        ];
        routes.sort();
        let make = |desired: &DesiredRoute| {
            route::replace(&desired.to_kernel(index_of(&nl, desired), None))
        };
        nl.apply(routes.iter().map(make)).unwrap();
        assert!(ip("route show 10.5.4.0/24").contains("via inet6 2001:db8::4 dev eth0"));
        let there = found(&nl);
        assert_eq!(there.iter().map(|one| one.route).collect::<Vec<_>>(), routes);
        assert!(there.iter().all(|one| one.metric == default_metric(one.route.dst)));
        let gone = |one: &ObservedRoute| route::remove(&one.to_kernel(index_of(&nl, &one.route)));
        nl.apply(there.iter().map(gone)).unwrap();
        assert_eq!(found(&nl), []);
    });
}

#[test]
fn a_route_of_flannels_is_taken_over_with_a_next_hop() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let nl = node();
        for (dst, gateway, id) in
            [("10.5.2.0/24", "10.5.2.0", 7), ("fd00:5:0:2::/64", "fd00:5:0:2::", 8)]
        {
            let show = if id == 7 { "-4 route show" } else { "-6 route show" };
            ip(&format!("route add {dst} via {gateway} dev flannel.1 onlink"));
            ip(&format!("nexthop add id {id} via {gateway} dev flannel.1 onlink protocol 112"));
            let desired = to(dst, Some(gateway), "flannel.1");
            let index = index_of(&nl, &desired);
            nl.apply([route::replace(&desired.to_kernel(index, Some(id)))]).unwrap();
            let shown = ip(&format!("{show} {dst}"));
            assert_eq!(shown.lines().count(), 1, "{shown}");
            let there = found(&nl);
            let metric = default_metric(desired.dst);
            let expected =
                ObservedRoute { route: desired, metric, protocol: PROTOCOL, nexthop: Some(id) };
            assert_eq!(there, [expected]);
            nl.apply([route::remove(&there[0].to_kernel(index))]).unwrap();
            assert_eq!(ip(&format!("{show} {dst}")), "");
        }
    });
}
