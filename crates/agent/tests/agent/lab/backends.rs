// SPDX-License-Identifier: Apache-2.0
//! Pods of different nodes reach each other, with each backend and family that this kernel has.

use std::collections::BTreeMap;

use agent::status::RouteMode;
use testkit::{Node, Wire, in_netns, wait_for};

use super::{Member, Store, TIMEOUT, all_reach_all, network};

/// Pods reach each other, with packets as large as they are told they may be, and subnet.env has
/// these lines beside the subnets.
fn check(nodes: Vec<Node>, conf: &str, env: &[(&str, &str)]) -> Vec<Member> {
    let members = network(nodes, &Store::embedded(conf));
    all_reach_all(&members, TIMEOUT);
    for member in &members {
        let mut told = member.node.subnet_env();
        told.retain(|key, _| !key.ends_with("SUBNET"));
        let expected = env.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        assert_eq!(told, expected.collect::<BTreeMap<_, _>>());
        check_subnets(member);
    }
    let mtu: u32 = members[0].node.subnet_env()["FLANNEL_MTU"].parse().unwrap();
    wait_for("a full-size packet to pass", TIMEOUT, || {
        members[0].pod.reaches_with(&members[1].pod, mtu)
    });
    assert!(!members[0].pod.reaches_with(&members[1].pod, mtu + 1), "one byte more");
    members
}

/// subnet.env tells the first address of the lease.
fn check_subnets(member: &Member) {
    let network = member.agent().hub.network().unwrap();
    let env = member.node.subnet_env();
    let told = ["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"].iter().filter_map(|key| env.get(*key));
    let told: Vec<&String> = told.collect();
    assert_eq!(told.len(), network.lease.subnets.len());
    for (subnet, told) in network.lease.subnets.iter().zip(told) {
        assert_eq!(
            format!(
                "{}/{}",
                subnet.hosts().nth(if subnet.addr().is_ipv4() { 0 } else { 1 }).unwrap(),
                subnet.prefix_len()
            ),
            *told
        );
    }
}

const V4: &[(&str, &str)] = &[("FLANNEL_IPMASQ", "false"), ("FLANNEL_NETWORK", "10.5.0.0/16")];
const V6: &[(&str, &str)] = &[("FLANNEL_IPMASQ", "false"), ("FLANNEL_IPV6_NETWORK", "fd00:5::/48")];

fn with<'a>(lines: &[(&'a str, &'a str)], mtu: &'a str) -> Vec<(&'a str, &'a str)> {
    [lines, &[("FLANNEL_MTU", mtu)]].concat()
}

#[test]
fn vxlan_of_three_nodes_connects_pods() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let nodes = [1, 2, 3].map(|number| wire.node(number, true, false));
        check(
            nodes.into(),
            r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#,
            &with(V4, "1450"),
        );
    });
}

#[test]
fn vxlan_direct_routing_is_used_on_the_link_only() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let nodes = vec![wire.node(1, true, false), wire.node(2, true, false), wire.far_node(3)];
        let conf =
            r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan", "DirectRouting": true}}"#;
        let members = network(nodes, &Store::embedded(conf));
        all_reach_all(&members, TIMEOUT);
        let first = &members[0];
        first.agent().wait("a route to each peer", |status| {
            let peers = status.peers.list.iter();
            let routes: BTreeMap<String, RouteMode> =
                peers.map(|peer| (peer.public[0].to_string(), peer.route)).collect();
            routes["192.168.90.2"] == RouteMode::Direct
                && routes["192.168.3.1"] == RouteMode::Tunnel
        });
        for (to, way) in [(1, "via 192.168.90.2 dev eth0"), (2, "dev flannel.1")] {
            let address = members[to].pod.addresses[0].to_string();
            let route = || first.node.ns.ip(&["route", "get", &address]);
            wait_for(way, TIMEOUT, || route().contains(way));
        }
    });
}

#[test]
fn host_gw_of_three_nodes_connects_pods() {
    in_netns(|| {
        let wire = Wire::new();
        let nodes = [1, 2, 3].map(|number| wire.node(number, true, false));
        check(
            nodes.into(),
            r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}"#,
            &with(V4, "1500"),
        );
    });
}

#[test]
fn udp_of_three_nodes_connects_pods() {
    in_netns(|| {
        testkit::require!(File("/dev/net/tun"));
        let wire = Wire::new();
        let nodes = [1, 2, 3].map(|number| wire.node(number, true, false));
        let members = check(
            nodes.into(),
            r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "udp"}}"#,
            &with(V4, "1472"),
        );
        for member in &members {
            let counts = member.agent().hub.summary().kernel.udp.unwrap();
            assert!(counts.sent.packets > 0 && counts.received.bytes > 0, "{counts:?}");
        }
    });
}

#[test]
fn vxlan_with_ipv6_only_connects_pods() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let nodes = [1, 2].map(|number| wire.node(number, false, true));
        let conf = r#"{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:5::/48", "Backend": {"Type": "vxlan"}}"#;
        check(nodes.into(), conf, &with(V6, "1430"));
    });
}

#[test]
fn host_gw_with_ipv6_only_connects_pods() {
    in_netns(|| {
        let wire = Wire::new();
        let nodes = [1, 2].map(|number| wire.node(number, false, true));
        let conf = r#"{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:5::/48", "Backend": {"Type": "host-gw"}}"#;
        check(nodes.into(), conf, &with(V6, "1500"));
    });
}

/// Both families for nodes and pods.
pub fn check_both(backend: &str, mtu: &str) -> Vec<Member> {
    let wire = Wire::new();
    let nodes = [1, 2].map(|number| wire.node(number, true, true));
    let conf = format!(
        r#"{{"EnableIPv6": true, "Network": "10.5.0.0/16", "IPv6Network": "fd00:5::/48",
            "Backend": {backend}}}"#
    );
    check(nodes.into(), &conf, &[V4, &V6[1..], &[("FLANNEL_MTU", mtu)]].concat())
}

#[test]
fn vxlan_with_both_families_connects_pods() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check_both(r#"{"Type": "vxlan"}"#, "1430");
    });
}

#[test]
fn host_gw_with_both_families_connects_pods() {
    in_netns(|| {
        check_both(r#"{"Type": "host-gw"}"#, "1500");
    });
}

#[test]
fn ipv4_pods_on_ipv6_nodes_are_connected() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let nodes = [1, 2].map(|number| wire.node(number, false, true));
        check(
            nodes.into(),
            r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#,
            &with(V4, "1430"),
        );
    });
}
