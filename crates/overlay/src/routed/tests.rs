// SPDX-License-Identifier: Apache-2.0

use kernel::IfIndex;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::desired::DeviceKind;

const VXLAN: Encapsulation = Encapsulation::Vxlan(When::Always);
const IPIP: Encapsulation = Encapsulation::Ipip(When::Always);

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn node(n: u8) -> RoutedNode {
    let name = format!("node-{n}");
    let end = |family, address: String| VxlanEnd {
        mac: tunnel_mac(&name, family),
        address: address.parse().unwrap(),
    };
    RoutedNode {
        addresses: Addresses {
            v4: Some(format!("192.0.2.{n}").parse().unwrap()),
            v6: Some(format!("2001:db8::{n}").parse().unwrap()),
        },
        vxlan: PerFamily::default()
            .with(Family::V4, end(Family::V4, format!("10.6.255.{n}")))
            .with(Family::V6, end(Family::V6, format!("fd00:6::ff:{n}"))),
        ipip: Some(format!("10.6.254.{n}").parse().unwrap()),
    }
}

fn underlay(on_link: &[u8]) -> Underlay {
    let name: IfName = "eth0".parse().unwrap();
    let addresses = on_link.iter().flat_map(|n| {
        let Addresses { v4, v6 } = node(*n).addresses;
        [IpAddr::V4(v4.unwrap()), IpAddr::V6(v6.unwrap())]
    });
    Underlay {
        name,
        index: IfIndex(2),
        mtu: 1500,
        addresses: node(1).addresses,
        on_link: addresses.map(|address| (address, name)).collect(),
    }
}

/// Plans for node-1 with two other nodes.
fn network(
    pools: &[(&str, Encapsulation)],
    on_link: &[u8],
    routes: &[(&str, &str)],
) -> RoutedNetwork {
    let pools = pools
        .iter()
        .map(|(cidr, encapsulation)| RoutedPool { cidr: net(cidr), encapsulation: *encapsulation });
    let state = RoutedState {
        pools: pools.collect(),
        nodes: [2, 3].map(|n| (format!("node-{n}"), node(n))).into(),
        routes: routes.iter().map(|(dst, name)| (net(dst), (*name).to_owned())).collect(),
    };
    RoutedNetwork::new("node-1".to_owned(), node(1), underlay(on_link), state).unwrap()
}

/// Routes as text: destination, gateway and device, or `blackhole`.
fn routes(network: &RoutedNetwork) -> Vec<String> {
    let text = |route: &DesiredRoute| match route.next_hop() {
        None => format!("{} blackhole", route.dst),
        Some(hop) => format!("{} {} {}", route.dst, hop.gateway.unwrap(), hop.device),
    };
    network.plan().desired.routes.values().map(text).collect()
}

fn rejected(network: &RoutedNetwork) -> Vec<String> {
    network.plan().rejected.iter().map(ToString::to_string).collect()
}

#[test]
fn vxlan_blocks_share_the_tunnel_end_of_their_node() {
    let blocks = [("10.6.0.0/26", "node-2"), ("10.6.0.64/26", "node-2"), ("10.6.1.0/26", "node-1")];
    let network = network(&[("10.6.0.0/16", VXLAN)], &[], &blocks);
    assert_eq!(
        routes(&network),
        [
            "10.6.0.0/26 10.6.255.2 vxlan.calico",
            "10.6.0.64/26 10.6.255.2 vxlan.calico",
            "10.6.1.0/26 blackhole",
        ]
    );
    let plan = network.plan();
    let device = devices::vxlan_name(Family::V4);
    assert_eq!(plan.pod_mtu, 1450);
    assert!(matches!(plan.desired.devices[&device].kind,
        DeviceKind::Vxlan(one) if one.vni == 4096 && one.port == 4789 && one.mac == tunnel_mac("node-1", Family::V4)));
    assert_eq!(plan.desired.neighbours.len(), 2);
    let mac = tunnel_mac("node-2", Family::V4);
    let gateway = "10.6.255.2".parse().unwrap();
    assert_eq!(plan.desired.neighbours[&(device, gateway)], mac);
    let public: IpAddr = "192.0.2.2".parse().unwrap();
    assert_eq!(plan.desired.forwarding[&(device, mac)], public);
    assert_eq!(rejected(&network), [""; 0]);
}

#[test]
fn cross_subnet_pools_encapsulate_behind_a_router() {
    let pools = [
        ("10.6.0.0/16", Encapsulation::Vxlan(When::CrossSubnet)),
        ("10.7.0.0/16", Encapsulation::Ipip(When::CrossSubnet)),
    ];
    let blocks = [
        ("10.6.0.0/26", "node-2"),
        ("10.6.1.0/26", "node-3"),
        ("10.7.0.0/26", "node-2"),
        ("10.7.1.0/26", "node-3"),
    ];
    assert_eq!(
        routes(&network(&pools, &[2], &blocks)),
        [
            "10.6.0.0/26 192.0.2.2 eth0",
            "10.6.1.0/26 10.6.255.3 vxlan.calico",
            "10.7.0.0/26 192.0.2.2 eth0",
            "10.7.1.0/26 192.0.2.3 ipip.podwire",
        ]
    );
}

#[test]
fn paths_lead_to_the_end_of_the_tunnel_or_the_node() {
    let pools = [
        ("10.6.0.0/16", Encapsulation::Vxlan(When::CrossSubnet)),
        ("10.7.0.0/16", IPIP),
        ("10.8.0.0/16", Encapsulation::None),
    ];
    let path = |blocks: &[(&str, &str)], on_link: &[u8], name| {
        let path = network(&pools, on_link, blocks).path(name, Family::V4)?;
        Some((path.address.to_string(), path.tunnel.map(|tunnel| tunnel.to_string())))
    };
    let found =
        |address: &str, tunnel: Option<&str>| Some((address.to_owned(), tunnel.map(str::to_owned)));
    let vxlan = [("10.6.0.0/26", "node-2")];
    assert_eq!(path(&vxlan, &[], "node-2"), found("10.6.255.2", Some("vxlan.calico")));
    assert_eq!(path(&vxlan, &[2], "node-2"), found("192.0.2.2", None));
    assert_eq!(path(&vxlan, &[2], "node-3"), None, "it has no block");
    let both = [("10.8.0.0/26", "node-2"), ("10.7.0.0/26", "node-2")];
    assert_eq!(path(&both, &[2], "node-2"), found("10.6.254.2", Some("ipip.podwire")));
}

#[test]
fn path_mtu_applies_to_all_blocks_of_the_node() {
    let blocks = [("10.6.0.0/26", "node-2"), ("10.6.1.0/26", "node-3")];
    let pools = [("10.6.0.0/16", VXLAN)];
    let mut network = network(&pools, &[], &blocks);
    let mtu = |network: &RoutedNetwork, dst: &str| {
        network.plan().desired.routes[&net(dst)].next_hop().unwrap().mtu
    };
    let change = network.set_path_mtu("node-2", Family::V4, Some(1300));
    assert!(matches!(change, PlanChange::Peer(_)), "{change:?}");
    assert_eq!(mtu(&network, "10.6.0.0/26"), Some(1300));
    assert_eq!(mtu(&network, "10.6.1.0/26"), None);
    network.set_route(net("10.6.2.0/26"), Some("node-2"));
    assert_eq!(mtu(&network, "10.6.2.0/26"), Some(1300), "a later block");

    let mut next = self::network(&pools, &[], &blocks);
    next.inherit_path_mtus(&network);
    assert_eq!(mtu(&next, "10.6.0.0/26"), Some(1300));
    let moved = RoutedNode { addresses: node(9).addresses, ..node(2) };
    next.set_node("node-2", Some(moved));
    assert_eq!(mtu(&next, "10.6.0.0/26"), None, "another path");
    assert_eq!(network.set_path_mtu("node-2", Family::V4, Some(1300)), PlanChange::None);
    network.set_path_mtu("node-2", Family::V4, None);
    assert_eq!(mtu(&network, "10.6.0.0/26"), None);
}

#[test]
fn ipv6_blocks_use_the_tunnel_over_ipv6() {
    let network = network(&[("fd00:6::/64", VXLAN)], &[], &[("fd00:6::40/122", "node-3")]);
    assert_eq!(routes(&network), ["fd00:6::40/122 fd00:6::ff:3 vxlan-v6.calico"]);
    assert_eq!(network.plan().pod_mtu, 1430);
}

#[test]
fn borrowed_addresses_are_routed_to_the_borrower() {
    let blocks = [
        ("10.6.0.0/26", "node-1"),
        ("10.6.0.7/32", "node-2"),
        ("10.6.1.0/26", "node-3"),
        ("10.6.1.7/32", "node-1"),
    ];
    // The plugin of the pod with 10.6.1.7 has set the route to it.
    assert_eq!(
        routes(&network(&[("10.6.0.0/16", VXLAN)], &[], &blocks)),
        [
            "10.6.0.0/26 blackhole",
            "10.6.0.7/32 10.6.255.2 vxlan.calico",
            "10.6.1.0/26 10.6.255.3 vxlan.calico",
        ]
    );
}

#[test]
fn unreachable_blocks_are_rejected_with_the_reason() {
    let pools = [("10.6.0.0/16", Encapsulation::None), ("fd00:6::/64", IPIP)];
    let blocks = [
        ("10.6.0.0/26", "node-2"),
        ("10.6.1.0/26", "node-9"),
        ("10.9.0.0/26", "node-2"),
        ("fd00:6::/122", "node-3"),
    ];
    let network = network(&pools, &[], &blocks);
    assert_eq!(routes(&network), [""; 0]);
    assert_eq!(
        rejected(&network),
        [
            "10.6.0.0/26 of node-2 is not served: 192.0.2.2 is not on a link of this node, which a route without encapsulation requires",
            "10.9.0.0/26 of node-2 is not served: it is not inside any pool",
            "fd00:6::/122 of node-3 is not served: IPIP carries IPv4 only",
            "10.6.1.0/26 of node-9 is not served: its node has published no address",
        ]
    );
}

#[test]
fn pools_with_the_address_of_this_node_are_refused() {
    let state = RoutedState {
        pools: vec![RoutedPool { cidr: net("192.0.0.0/16"), encapsulation: VXLAN }],
        ..RoutedState::default()
    };
    let error = RoutedNetwork::new("node-1".to_owned(), node(1), underlay(&[]), state).unwrap_err();
    assert!(matches!(error, Error::Overlap { .. }), "{error}");
}

#[test]
fn nodes_with_a_taken_address_or_mac_are_rejected() {
    let mut network =
        network(&[("10.6.0.0/16", VXLAN)], &[], &[("10.6.0.0/26", "node-2"), ("10.6.1.0/26", "x")]);
    let clone = RoutedNode { addresses: node(4).addresses, ..node(2) };
    assert!(matches!(network.set_node("x", Some(clone)), PlanChange::Peer(_)));
    assert_eq!(
        rejected(&network),
        [format!(
            "x is not served: it publishes the MAC address {}, which another peer has",
            tunnel_mac("node-2", Family::V4)
        )]
    );
    // The other node leaves: everything is planned again.
    assert_eq!(network.set_node("node-2", None), PlanChange::Full);
    assert_eq!(
        rejected(&network),
        ["10.6.0.0/26 of node-2 is not served: its node has published no address"]
    );
    let own = RoutedNode { addresses: node(1).addresses, ..node(5) };
    network.set_node("x", Some(own));
    assert!(rejected(&network).iter().any(|one| one.contains("192.0.2.1 is this node's own")));
}

proptest! {
    /// A plan that followed changes equals a plan made at once, and its changes add up.
    #[test]
    fn plan_after_changes_equals_a_fresh_plan(
        changes in vec((0u8..3, 2u8..6, 0u8..8, any::<bool>()), 1..60),
        cross: bool,
    ) {
        let when = if cross { When::CrossSubnet } else { When::Always };
        let mut network = network(&[("10.6.0.0/16", Encapsulation::Vxlan(when))], &[2, 4], &[]);
        let mut kernel = network.plan().desired.clone();
        for (kind, n, block, adds) in changes {
            let name = format!("node-{n}");
            let change = match kind {
                0 => network.set_node(&name, adds.then(|| node(n))),
                1 => network.set_route(net(&format!("10.6.{block}.0/26")), adds.then_some(&name)),
                _ => network.set_route(net(&format!("10.6.{block}.9/32")), adds.then_some(&name)),
            };
            match change {
                PlanChange::None => {}
                PlanChange::Peer(peer) => {
                    kernel.subtract(&peer.before);
                    kernel.add(peer.after);
                }
                PlanChange::Full => kernel = network.plan().desired.clone(),
            }
            prop_assert_eq!(&kernel, &network.plan().desired);
        }
        let state = RoutedState {
            pools: network.pools.clone(),
            nodes: network.nodes.clone(),
            routes: network.routes.clone(),
        };
        let fresh = RoutedNetwork::new("node-1".to_owned(), node(1), underlay(&[2, 4]), state);
        let fresh = fresh.unwrap();
        prop_assert_eq!(fresh.plan(), network.plan());
    }
}

#[test]
fn interfaces_that_lead_out_of_the_host_are_known_by_calicos_pattern() {
    let leads_out = |name: &str| leads_out_of_host(&name.parse().unwrap());
    for name in
        ["eth0", "eth", "wlan1", "wwan0", "enp3s0", "eno1", "ens3", "enx0", "ibp1", "wlp2s0"]
    {
        assert!(leads_out(name), "{name}");
    }
    for name in ["lo", "en", "env", "ena0", "cali0", "cni0", "vxlan.calico", "docker0", "bond0"] {
        assert_eq!(leads_out(name), name == "env", "{name}");
    }
}
