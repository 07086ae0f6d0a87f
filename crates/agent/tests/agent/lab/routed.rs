// SPDX-License-Identifier: Apache-2.0
//! Routed pods with addresses from pools.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::status::RouteMode;
use agent_client::ipam::{
    self, AssignRequest, AssignResponse, Error, ReleaseRequest, ReleaseResponse, journal,
};
use serde_json::Value;
use testkit::{Node, Wire, in_netns, wait_for};

use super::tunnels::SWALLOW;
use super::{Agent, Store, TIMEOUT, etcd};

/// Flags of agents that share a file and assign addresses of a pool.
pub fn store(pools: &str, encapsulation: &str) -> Store {
    let flags = ["--store-file", Store::FILE, "--pods", "routed", "--pool-cidr", pools];
    Store(super::words(&[&flags[..], &["--pool-encapsulation", encapsulation]].concat()))
}

pub fn socket(node: &Node) -> PathBuf {
    node.dir().join("run/agent.sock")
}

/// Asks for addresses for the container.
fn try_assign(node: &Node, container: &str, ipv6: bool) -> Result<Vec<IpAddr>, Error> {
    try_assign_to(node, container, ipv6, None)
}

/// Asks for addresses for the container of a pod.
pub fn try_assign_to(
    node: &Node,
    container: &str,
    ipv6: bool,
    pod: Option<ipam::Pod>,
) -> Result<Vec<IpAddr>, Error> {
    let netns = "/proc/self/ns/net".to_owned();
    request(node, &AssignRequest { netns, pod, ipv4: !ipv6, ipv6, ..wanted(container) })
}

/// A request that names no address family.
fn wanted(container: &str) -> AssignRequest {
    AssignRequest {
        network: "pods".to_owned(),
        container_id: container.to_owned(),
        ifname: "eth0".to_owned(),
        handle: ipam::handle("pods", container),
        ..AssignRequest::default()
    }
}

fn request(node: &Node, request: &AssignRequest) -> Result<Vec<IpAddr>, Error> {
    let response = ipam::post(&socket(node), ipam::ASSIGN, request, Duration::from_secs(20));
    response.map(|response: AssignResponse| response.addresses)
}

/// Asks for an address for a container with this network namespace.
#[track_caller]
pub fn assign_in(node: &Node, container: &str, netns: &Path) -> IpAddr {
    let netns = netns.to_str().unwrap().to_owned();
    let assigned = request(node, &AssignRequest { netns, ipv4: true, ..wanted(container) });
    assigned.unwrap()[0]
}

#[track_caller]
pub fn assign(node: &Node, container: &str, ipv6: bool) -> Vec<IpAddr> {
    try_assign(node, container, ipv6).unwrap()
}

#[track_caller]
fn release(node: &Node, container: &str) -> Vec<IpAddr> {
    release_from(node, "pods", container)
}

/// Releases the addresses of a container in a network.
#[track_caller]
pub fn release_from(node: &Node, network: &str, container: &str) -> Vec<IpAddr> {
    let request = ReleaseRequest {
        network: network.to_owned(),
        container_id: container.to_owned(),
        ifname: "eth0".to_owned(),
        handle: ipam::handle(network, container),
        ..ReleaseRequest::default()
    };
    let timeout = Duration::from_secs(20);
    let response = ipam::post(&socket(node), ipam::RELEASE, &request, timeout);
    response.map(|response: ReleaseResponse| response.released).unwrap()
}

/// Starts an agent on each node, and waits until each knows a block of the other.
pub fn start(nodes: &[Node; 2], store: &Store) -> [Agent; 2] {
    let agents = [0, 1].map(|at| Agent::start(&nodes[at], store));
    for agent in &agents {
        agent.wait("status.ready", |status| status.ready);
        agent.wait("one peer", |status| status.peers.counts.total == 1);
    }
    agents
}

/// Assigns addresses on both nodes, and checks that their pods reach each other.
pub fn check_pods(nodes: &[Node; 2], ipv6: bool) {
    let pods =
        [0, 1].map(|at| nodes[at].routed_pod(&format!("pod{at}"), &assign(&nodes[at], "c1", ipv6)));
    for (from, to) in [(0, 1), (1, 0)] {
        wait_for("the pod of the other node", TIMEOUT, || pods[from].reaches(&pods[to]));
    }
}

fn routes(node: &Node, family: &str) -> Vec<Value> {
    let routes = node.ns.ip_json(&[family, "route", "show", "proto", "112"]);
    routes.as_array().cloned().unwrap_or_default()
}

#[test]
fn routed_pods_reach_each_other_through_vxlan() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let nodes = [1, 2].map(|number| wire.node(number, true, false));
        let _agents = start(&nodes, &store("10.6.0.0/16", "vxlan"));
        check_pods(&nodes, false);
        let link = &nodes[0].ns.ip_json(&["link", "show", "vxlan.calico"])[0];
        let data = &link["linkinfo"]["info_data"];
        assert_eq!((&data["id"], &data["port"]), (&4096.into(), &4789.into()));
        // The own block, and the block of the other node.
        let routes = routes(&nodes[0], "-4");
        assert_eq!(routes.len(), 2, "{routes:?}");
        assert!(routes.iter().any(|route| route["type"] == "blackhole"), "{routes:?}");
        assert!(routes.iter().any(|route| route["dev"] == "vxlan.calico"), "{routes:?}");
    });
}

#[test]
fn routed_pods_reach_each_other_by_ipv6() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let nodes = [1, 2].map(|number| wire.node(number, false, true));
        let _agents = start(&nodes, &store("fd00:6::/64", "vxlan"));
        check_pods(&nodes, true);
    });
}

#[test]
fn cross_subnet_pool_uses_plain_routes_on_one_link() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let nodes = [1, 2].map(|number| wire.node(number, true, false));
        let _agents = start(&nodes, &store("10.6.0.0/16", "vxlan-cross-subnet"));
        check_pods(&nodes, false);
        let routes = routes(&nodes[0], "-4");
        assert!(routes.iter().any(|route| route["gateway"] == "192.168.90.2"), "{routes:?}");
    });
}

#[test]
fn mtu_follows_the_smallest_network_card() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let node = wire.node(1, true, false);
        let agent = Agent::start(&node, &store("10.6.0.0/16", "vxlan"));
        agent.wait("status.ready", |status| status.ready);
        let mtu = || node.ns.ip_json(&["link", "show", "vxlan.calico"])[0]["mtu"].clone();
        let file = || std::fs::read_to_string(node.dir().join("calico/mtu")).unwrap_or_default();
        assert_eq!((mtu(), file().trim()), (1450.into(), "1450"));
        node.ns.ip(&["link", "add", "eth9", "mtu", "1400", "type", "veth", "peer", "name", "far9"]);
        for end in ["eth9", "far9"] {
            node.ns.ip(&["link", "set", end, "up"]);
        }
        wait_for("the MTU of eth9", TIMEOUT, || mtu() == 1350 && file().trim() == "1350");
        node.ns.ip(&["link", "del", "eth9"]);
        wait_for("the MTU of the underlay", TIMEOUT, || mtu() == 1450 && file().trim() == "1450");
    });
}

#[test]
fn narrow_path_sets_the_mtu_of_routes_to_blocks() {
    in_netns(|| {
        testkit::require!(Link("vxlan"), Program("nft"), Program("ethtool"));
        let wire = Wire::new();
        testkit::run("sh", &["-ec", SWALLOW]);
        let nodes = [wire.node(1, true, false), wire.far_node(3)];
        for node in &nodes {
            // Else the router sees many packets as a large one.
            node.sh("ethtool -K eth0 gso off tso off tx-udp-segmentation off");
        }
        let agents = start(&nodes, &store("10.6.0.0/16", "vxlan-cross-subnet"));
        for (agent, node) in agents.iter().zip(&nodes) {
            agent.wait("the path MTU", |status| {
                let peer = &status.peers.list[0];
                peer.route == RouteMode::Tunnel && peer.path.path_mtu == Some(1350)
            });
            let has_mtu =
                || routes(node, "-4").iter().any(|route| route["metrics"][0]["mtu"] == 1350);
            wait_for("the MTU of the route", TIMEOUT, has_mtu);
        }
    });
}

#[test]
fn nodes_see_pods_addresses_with_nat_exclusions() {
    in_netns(|| {
        testkit::require!(Link("vxlan"), Program("nft"));
        let wire = Wire::new();
        let nodes = [1, 2].map(|number| wire.node(number, true, false));
        let mut store = store("10.6.0.0/16", "vxlan");
        let flags = ["--pool-nat-exclusions", "pools-and-nodes"];
        store.0.extend(super::words(
            &[&flags[..], &["--non-masquerade-cidrs", "203.0.113.0/24"]].concat(),
        ));
        let excluded = || {
            let set = ["list", "set", "inet", "podwire-agent-podwire", "direct4"];
            let set = nodes[0].ns.try_exec("nft", &set).unwrap_or_default();
            ["192.168.90.1", "192.168.90.2", "203.0.113.0/24"].map(|one| set.contains(one))
        };
        let first = Agent::start(&nodes[0], &store);
        first.wait("status.ready", |status| status.ready);
        wait_for("the own address", TIMEOUT, || excluded() == [true, false, true]);
        let _second = Agent::start(&nodes[1], &store);
        wait_for("the address of the other node", TIMEOUT, || excluded() == [true; 3]);
    });
}

#[test]
fn addresses_survive_a_restart_of_the_agent() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let node = wire.node(1, true, false);
        let store = store("10.6.0.0/16", "vxlan");
        let agent = Agent::start(&node, &store);
        agent.wait("status.ready", |status| status.ready);
        let kept = assign(&node, "kept", false);
        let deleted = assign(&node, "deleted", false);
        drop(agent);
        // DEL without the agent.
        let handle = ipam::handle("pods", "deleted");
        let file = journal::file(&node.dir().join("state"), &handle, "eth0");
        std::fs::remove_file(file).unwrap();
        let agent = Agent::start(&node, &store);
        agent.wait("status.ready", |status| status.ready);
        assert_eq!(assign(&node, "kept", false), kept);
        // The address that has been free longest is assigned first.
        let mut others: Vec<IpAddr> = Vec::new();
        wait_for("the released address", TIMEOUT, || {
            others.extend(try_assign(&node, &format!("new{}", others.len()), false).unwrap());
            others.contains(&deleted[0])
        });
        assert!(!others.contains(&kept[0]), "{others:?}");
    });
}

#[test]
fn addresses_are_assigned_while_etcd_is_down() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let node = wire.node(1, true, false);
        let mut server = etcd();
        let endpoint = server.endpoint();
        let flags = ["--etcd-endpoints", &endpoint, "--pods", "routed"];
        let store = Store(super::words(&[&flags[..], &["--pool-cidr", "10.6.0.0/16"]].concat()));
        let agent = Agent::start(&node, &store);
        agent.wait("status.ready", |status| status.ready);
        let before = assign(&node, "before", false);
        server.kill();
        let during: Vec<IpAddr> =
            (0..20).flat_map(|number| assign(&node, &format!("during{number}"), false)).collect();
        assert_eq!(release(&node, "before"), before);
        server.start();
        server.wait();
        // The store learns all of them.
        let stored = || server.ctl(&["get", "--prefix", "/calico/ipam/v2/handle/", "--keys-only"]);
        wait_for("the handles in the store", TIMEOUT, || {
            let stored = stored();
            (0..20).all(|number| stored.contains(&format!("/pods.during{number}")))
                && !stored.contains("/pods.before")
        });
        let mut unique = during.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), during.len(), "{during:?}");
    });
}
