// SPDX-License-Identifier: Apache-2.0
//! Few and many peers that join and leave. Foreign objects stay.

use std::time::{Duration, Instant};

use agent::dataplane::routes::{Outcome, PeerUpdate};
use overlay::lease::Lease;
use overlay::netconf::NetConf;
use overlay::plan::{AnyNetwork, Network};
use testkit::in_netns;

use super::node::{
    conf, forwarding, ip, is_unchanged, lease, mac, make_eth0, network, open, public, remove, set,
    subnet,
};

const VXLAN: &str = r#"{"Type": "vxlan"}"#;
const UDP: &str = r#"{"Type": "udp"}"#;
const HOST_GW: &str = r#"{"Type": "host-gw"}"#;

fn assert_converged(outcome: &Outcome) {
    assert_eq!((&outcome.failures, &outcome.conflicts), (&vec![], &vec![]));
    assert_eq!(outcome.rejected, []);
}

/// The agent's routes, neighbours and forwarding entries.
fn counts() -> (usize, usize, usize) {
    let lines = |text: String| text.lines().count();
    let routes = lines(ip("route show proto 112"));
    (routes, lines(ip("neigh show nud permanent")), forwarding().len())
}

fn check_many(peers: u32) {
    make_eth0();
    let network = network(VXLAN, 2..peers + 2);
    let mut reconciler = open();
    let start = Instant::now();
    let outcome = reconciler.set_network(network);
    println!("{peers} peers in {:?}, {} requests", start.elapsed(), outcome.requests);
    assert_converged(&outcome);
    let all = usize::try_from(peers).unwrap();
    assert_eq!(counts(), (all, all, all));
    let start = Instant::now();
    assert!(is_unchanged(&reconciler.compare()));
    println!("{peers} peers compared in {:?}", start.elapsed());

    let start = Instant::now();
    let outcome = reconciler.set_peers(vec![set(VXLAN, peers + 9)]);
    println!("one more in {:?}", start.elapsed());
    assert_converged(&outcome);
    assert_eq!((outcome.requests, outcome.changes.len()), (4, 4));
    assert_eq!(counts(), (all + 1, all + 1, all + 1));
    let outcome = reconciler.set_peers(vec![remove(peers + 9), remove(2), set(VXLAN, 30_000)]);
    assert_converged(&outcome);
    assert_eq!((outcome.requests, outcome.changes.len()), (12, 12));
    assert_eq!(counts(), (all, all, all));
    assert!(is_unchanged(&reconciler.compare()));
}

#[test]
fn thousand_peers_are_added() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check_many(1000);
    });
}

#[test]
fn adding_a_peer_costs_the_same_with_5000_peers() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check_many(5000);
    });
}

/// If each change rebuilt the table, this would take minutes.
#[test]
fn adding_a_udp_peer_costs_the_same_with_many() {
    in_netns(|| {
        make_eth0();
        let mut reconciler = open();
        assert_converged(&reconciler.set_network(network(UDP, 2..20_002)));
        let start = Instant::now();
        for _ in 0..5000 {
            assert_converged(&reconciler.set_peers(vec![set(UDP, 30_000)]));
            assert_converged(&reconciler.set_peers(vec![remove(30_000)]));
        }
        let took = start.elapsed();
        println!("10 000 changes in {took:?}");
        assert!(took < Duration::from_secs(100), "{took:?}");
    });
}

#[test]
fn changed_peer_changes_nothing_else() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        let mut reconciler = open();
        assert_converged(&reconciler.set_network(network(VXLAN, 2..4)));
        let conf = super::node::conf(VXLAN);
        let mut lease = super::node::lease(&conf, 2);
        lease.attributes = super::node::lease(&conf, 77).attributes;
        let name = "node-2".to_owned();
        let update = agent::dataplane::routes::PeerUpdate::Set { name, since: 0, lease };
        let outcome = reconciler.set_peers(vec![update]);
        assert_converged(&outcome);
        let texts: Vec<String> = outcome.changes.iter().map(ToString::to_string).collect();
        let (new, old) = (mac(77), mac(2));
        assert_eq!(
            texts,
            [
                format!("set forwarding {new} dst {} dev flannel.1", public(77)),
                format!("set neighbour 10.0.2.0 lladdr {new} dev flannel.1"),
                format!("remove forwarding {old} dst {} dev flannel.1", public(2)),
            ]
        );
        let shown = forwarding().join("\n");
        assert!(shown.contains(&new) && !shown.contains(&old), "{shown}");
        assert!(ip("neigh show 10.0.2.0 dev flannel.1").contains(&new));
    });
}

#[test]
fn peers_removed_during_downtime_are_cleaned_up() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        assert_converged(&open().set_network(network(VXLAN, 2..10)));
        assert_eq!(counts(), (8, 8, 8));
        let index = ip("-o link show flannel.1");
        let mut reconciler = open();
        let outcome = reconciler.set_network(network(VXLAN, 5..12));
        assert_converged(&outcome);
        assert_eq!(counts(), (7, 7, 7));
        assert_eq!(ip("-o link show flannel.1"), index, "same device");
        assert_eq!(ip("nexthop show").lines().count(), 7);
        assert!(!outcome.changes.iter().any(|change| change.to_string().contains(&subnet(7))));
        assert!(is_unchanged(&reconciler.compare()));
    });
}

#[test]
fn devices_of_an_earlier_configuration_are_removed() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        let other = r#"{"Type": "vxlan", "VNI": 7}"#;
        let mut first = open();
        first.set_network(network(other, std::iter::empty()));
        assert!(ip("link show").contains("flannel.7:"));
        let mut reconciler = open();
        assert_converged(&reconciler.set_network(network(VXLAN, 2..4)));
        let shown = ip("link show");
        assert!(shown.contains("flannel.1:") && !shown.contains("flannel.7:"), "{shown}");
        // To another backend and back, without a restart.
        assert_converged(&reconciler.set_network(network(HOST_GW, 2..4)));
        assert!(!ip("link show").contains("flannel"));
        let shown = ip("route show 10.0.3.0/24");
        assert!(shown.contains(" via 172.16.0.3 dev eth0 proto 112"), "{shown}");
        assert_converged(&reconciler.set_network(network(VXLAN, 2..4)));
        assert_eq!(counts(), (2, 2, 2));
    });
}

#[test]
fn foreign_objects_stay() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        for made in [
            "link add cni0 type bridge",
            "link set cni0 up",
            "address add 10.0.1.1/24 dev cni0",
            "link add flannel.9 type vxlan id 9 dstport 8472 dev eth0",
            "route add 10.0.77.0/24 via 172.16.0.77 dev eth0",
            "route add 10.0.3.0/24 via 172.16.0.77 dev eth0 metric 50",
            "route add 192.0.2.0/24 via 172.16.0.77 dev eth0 proto 112",
            "nexthop add id 7 via 172.16.0.77 dev eth0 protocol 112",
            "nexthop add id 8 via 172.16.0.77 dev eth0 protocol static",
            "neigh add 172.16.0.78 lladdr 02:00:00:00:00:78 dev eth0 nud permanent",
        ] {
            ip(made);
        }
        let shown = || {
            let [routes, nexthops] = ["route show", "nexthop show"].map(ip);
            let routes = routes.lines().filter(|line| !line.contains("flannel.1"));
            let nexthops = nexthops.lines().filter(|line| !line.contains("flannel.1"));
            let kept: Vec<String> = routes.chain(nexthops).map(str::to_owned).collect();
            let links =
                ["cni0", "flannel.9", "eth0"].map(|name| ip(&format!("address show {name}")));
            (kept, links, ip("neigh show dev eth0 nud permanent"))
        };
        let before = shown();
        let mut reconciler = open();
        assert_converged(&reconciler.set_network(network(VXLAN, 2..4)));
        ip("address add 192.0.2.9/32 dev flannel.1");
        assert!(is_unchanged(&reconciler.compare()));
        assert!(ip("address show flannel.1").contains("192.0.2.9/32"));
        assert_converged(&reconciler.set_network(network(HOST_GW, std::iter::empty())));
        assert_eq!(shown(), before);
    });
}

#[test]
fn conflicting_route_or_device_is_reported() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        ip("route add 10.0.3.0/24 via 172.16.0.77 dev eth0 proto static");
        let mut reconciler = open();
        for _ in 0..2 {
            let outcome = reconciler.set_network(network(VXLAN, 2..5));
            let shown: Vec<String> = outcome.conflicts.iter().map(ToString::to_string).collect();
            assert_eq!(shown, ["conflicting route to 10.0.3.0/24 (protocol 4): remove it"]);
            assert_eq!(outcome.failures, []);
            assert!(ip("route show 10.0.3.0/24").contains("proto static"));
            assert_eq!(ip("route show proto 112").lines().count(), 2);
        }
        let again = reconciler.compare();
        assert_eq!((again.changes.len(), again.conflicts.len()), (0, 1));
        ip("route del 10.0.3.0/24");
        assert_converged(&reconciler.compare());
        assert_eq!(ip("route show proto 112").lines().count(), 3);
        // A foreign route to the subnet of a new peer.
        ip("route add 10.0.9.0/24 via 172.16.0.77 dev eth0 proto static");
        let outcome = reconciler.set_peers(vec![set(VXLAN, 9), set(VXLAN, 10)]);
        assert_eq!((outcome.conflicts.len(), outcome.failures.len()), (1, 0));
        assert!(ip("route show 10.0.10.0/24").contains("dev flannel.1"));
        assert!(ip("route show 10.0.9.0/24").contains("proto static"));

        ip("link delete flannel.1");
        ip("link add flannel.1 type bridge");
        let outcome = reconciler.compare();
        let shown = outcome.conflicts[0].to_string();
        assert!(
            shown.starts_with("device flannel.1 (bridge) is not managed by podwire"),
            "{shown}"
        );
        assert_eq!(outcome.failures, []);
    });
}

#[test]
fn device_of_another_agent_stays_a_conflict() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        ip("link add flannel.1 type vxlan id 1 dev eth0 local 172.16.0.1 dstport 8472 nolearning");
        ip("link set flannel.1 alias other-agent");
        let mut reconciler = open();
        let first = reconciler.set_network(network(VXLAN, 2..3));
        let second = reconciler.compare();
        for outcome in [&first, &second] {
            assert_eq!((outcome.conflicts.len(), outcome.changes.len()), (1, 0), "{outcome:?}");
        }
        assert!(ip("link show flannel.1").contains("other-agent"));
    });
}

#[test]
fn flannel_routes_are_adopted_in_place() {
    in_netns(|| {
        make_eth0();
        ip("route add 10.0.2.0/24 via 172.16.0.2 dev eth0");
        ip("route add 10.0.3.0/24 via 172.16.0.99 dev eth0");
        let mut reconciler = open();
        assert_converged(&reconciler.set_network(network(HOST_GW, 2..5)));
        let shown = ip("route show root 10.0.0.0/8");
        assert_eq!(shown.lines().count(), 3, "{shown}");
        assert!(shown.lines().all(|line| line.contains("proto 112")), "{shown}");
        assert!(shown.contains("via 172.16.0.3 ") && !shown.contains("172.16.0.99"), "{shown}");
        assert!(is_unchanged(&reconciler.compare()));
    });
}

#[test]
fn cleanup_removes_everything() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        let before = ["link show", "address show", "route show", "nexthop show"].map(ip);
        assert_converged(&open().set_network(network(VXLAN, 2..20)));
        // Another process, which knows no configuration.
        assert_converged(&open().remove_all());
        assert_eq!(["link show", "address show", "route show", "nexthop show"].map(ip), before);
        assert_converged(&open().set_network(network(HOST_GW, 2..20)));
        assert_eq!(ip("route show proto 112").lines().count(), 18);
        assert_converged(&open().remove_all());
        assert_eq!(["link show", "address show", "route show", "nexthop show"].map(ip), before);
    });
}

#[test]
fn dry_run_changes_nothing() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        let before = ["link show", "address show", "route show", "nexthop show"].map(ip);
        let mut reconciler = open();
        let preview = reconciler.dry_run(&mut network(VXLAN, 2..4).into()).unwrap();
        assert_eq!(["link show", "address show", "route show", "nexthop show"].map(ip), before);
        let done = reconciler.set_network(network(VXLAN, 2..4));
        assert_eq!(preview.changes, done.changes);
        assert_eq!(reconciler.dry_run(&mut network(VXLAN, 2..4).into()).unwrap().changes, []);
        // Before the first look-up, no peer is on the link.
        let mut direct = AnyNetwork::from(network(HOST_GW, 2..4));
        assert!(!direct.plan().rejected.is_empty());
        reconciler.dry_run(&mut direct).unwrap();
        assert_eq!(direct.plan().rejected, []);
    });
}

/// The lease of node `n` in an IPv6 network.
fn lease_v6(conf: &NetConf, n: u32) -> Lease {
    let data = match conf.backend.name() {
        "vxlan" => format!(r#","BackendV6Data":{{"VNI":1,"VtepMAC":"{}"}}"#, mac(n)),
        _ => String::new(),
    };
    let kind = conf.backend.name();
    let value = format!(
        r#"{{"PublicIP":"0.0.0.0","PublicIPv6":"fd00:90::{n}","BackendType":"{kind}"{data}}}"#
    );
    Lease::parse(&format!("fd00:5:0:{n}::-64"), value.as_bytes()).unwrap()
}

/// Nodes exchange a few subnets at random, several at once. Each update has to reach the desired
/// state.
fn check_exchanges(conf: &NetConf, lease: fn(&NetConf, u32) -> Lease) {
    make_eth0();
    let mut reconciler = open();
    let peers = (2..6).map(|n| (format!("node-{n}"), (0, lease(conf, n)))).collect();
    let network = Network::new(conf.clone(), lease(conf, 1), super::node::underlay(), peers);
    assert_converged(&reconciler.set_network(network.unwrap()));
    let mut random = 7_u64;
    let mut below = |limit: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((random >> 33) % limit).unwrap()
    };
    for round in 0..300 {
        let count = 1 + below(4);
        let updates: Vec<PeerUpdate> = (0..count)
            .map(|_| {
                let (name, subnet, node) = (2 + below(4), 2 + below(4), 2 + below(4));
                if below(4) == 0 {
                    return remove(name);
                }
                let attributes = lease(conf, node).attributes;
                let lease = Lease { attributes, ..lease(conf, subnet) };
                PeerUpdate::Set { name: format!("node-{name}"), since: below(3).into(), lease }
            })
            .collect();
        let context = format!("{round}: {updates:?}");
        let outcome = reconciler.set_peers(updates);
        assert_eq!((&outcome.failures, &outcome.conflicts), (&vec![], &vec![]), "{context}");
        // Not after each update: the difference of one peer is computed from the earlier plan.
        let again = if below(4) == 0 { reconciler.compare() } else { Outcome::default() };
        assert!(is_unchanged(&again), "{context}: {outcome:?}: {again:?}");
    }
}

fn conf_v6(backend: &str) -> NetConf {
    let text = format!(
        r#"{{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:5::/48", "Backend": {backend}}}"#
    );
    NetConf::parse(&text).unwrap()
}

#[test]
fn peers_exchange_their_subnets_by_vxlan() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check_exchanges(&conf(VXLAN), lease);
    });
}

#[test]
fn peers_exchange_their_subnets_by_host_gw() {
    in_netns(|| check_exchanges(&conf(HOST_GW), lease));
}

#[test]
fn peers_exchange_their_subnets_by_vxlan_of_ipv6() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check_exchanges(&conf_v6(VXLAN), lease_v6);
    });
}

#[test]
fn peers_exchange_their_subnets_by_host_gw_of_ipv6() {
    in_netns(|| check_exchanges(&conf_v6(HOST_GW), lease_v6));
}

/// The address of this node's tunnel device becomes that of the peer's. The kernel refuses a
/// gateway that is a local address.
#[test]
fn this_node_and_a_peer_exchange_their_subnets() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        let conf = conf(VXLAN);
        let mut reconciler = open();
        let of = |own: u32, peer: u32| {
            let with = |subnet, node| Lease {
                attributes: lease(&conf, node).attributes,
                ..lease(&conf, subnet)
            };
            let peers = [("node-2".to_owned(), (0, with(peer, 2)))].into();
            Network::new(conf.clone(), with(own, 1), super::node::underlay(), peers).unwrap()
        };
        assert_converged(&reconciler.set_network(of(1, 2)));
        for (own, peer) in [(2, 1), (1, 2)] {
            assert_converged(&reconciler.set_network(of(own, peer)));
            assert!(is_unchanged(&reconciler.compare()));
            let shown = ip("-o -4 address show dev flannel.1");
            assert!(shown.contains(&format!("10.0.{own}.0/32")), "{shown}");
            let gateway = format!("via 10.0.{peer}.0 ");
            assert!(ip("route show proto 112").contains(&gateway));
        }
    });
}
