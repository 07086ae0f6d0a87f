// SPDX-License-Identifier: Apache-2.0
//! Encapsulation across a router, and masquerading.

use std::net::IpAddr;

use serde_json::Value;
use testkit::{Ns, Wire, in_netns};

use super::{Host, RoutedPod, STORE, all_reach_all, calico, wait_until};

/// Two nodes on one link and one behind a router.
fn hosts(wire: &Wire, encapsulation: &str) -> [Host; 3] {
    let flags = ["--store-file", STORE, "--pool-cidr", "10.6.0.0/16", "--pool-encapsulation"];
    let flags = [&flags[..], &[encapsulation]].concat();
    let nodes = [wire.node(1, true, false), wire.node(2, true, false), wire.far_node(3)];
    nodes.map(|node| Host::start(node, &flags))
}

/// The route from a host to a pod, as the kernel would use it.
fn route(from: &Host, to: &RoutedPod<'_>) -> Value {
    from.node.ns.ip_json(&["route", "get", &to.addresses()[0].to_string()])[0].clone()
}

/// Counts packets that a pod receives from this address.
struct Counter<'a>(&'a Ns);

impl Counter<'_> {
    fn new(pod: &Ns, source: IpAddr) -> Counter<'_> {
        let rules = format!(
            "table ip seen {{ chain sources {{ type filter hook input priority 0; \
             ip saddr {source} counter; }}; }}"
        );
        pod.exec("nft", &[&rules]);
        Counter(pod)
    }

    fn packets(&self) -> u64 {
        let text = self.0.exec("nft", &["list", "table", "ip", "seen"]);
        let (_, after) = text.split_once("counter packets ").unwrap();
        after.split(' ').next().unwrap().parse().unwrap()
    }
}

/// Checks the network with an encapsulation that nodes on one link do not use.
fn check_cross_subnet(encapsulation: &str, device: &str) {
    let wire = Wire::new();
    let hosts = hosts(&wire, encapsulation);
    let conf = calico(true, false);
    let pods = [0, 1, 2].map(|at| hosts[at].pod(["one", "two", "far"][at], &conf));
    all_reach_all(&[&pods[0], &pods[1], &pods[2]]);
    let direct = route(&hosts[0], &pods[1]);
    assert_eq!((&direct["gateway"], &direct["dev"]), (&"192.168.90.2".into(), &"eth0".into()));
    for (from, to) in [(0, 2), (2, 0), (2, 1)] {
        let route = route(&hosts[from], &pods[to]);
        assert_eq!(route["dev"], device, "{route}");
    }
    // The router has no route to pods, so it answers only what the node masqueraded.
    let outside = Wire::HOST.parse().unwrap();
    assert!(testkit::answers(&pods[0].ns, outside));
    // Pods see each other's addresses.
    let counter = Counter::new(&pods[2].ns, pods[0].addresses()[0]);
    assert!(testkit::answers(&pods[0].ns, pods[2].addresses()[0]));
    assert!(counter.packets() > 0);
}

#[test]
fn vxlan_across_subnets_routes_directly_on_one_link() {
    in_netns(|| {
        testkit::require!(Link("vxlan"), Program("curl"), Program("nft"));
        check_cross_subnet("vxlan-cross-subnet", "vxlan.calico");
    });
}

#[test]
fn vm_ipip_across_subnets_routes_directly_on_one_link() {
    in_netns(|| {
        testkit::not_run_unless!(Link("ipip"));
        check_cross_subnet("ipip-cross-subnet", "ipip.podwire");
    });
}

#[test]
fn vm_ipip_pods_reach_each_other_through_tunnels() {
    in_netns(|| {
        testkit::not_run_unless!(Link("ipip"));
        let wire = Wire::new();
        let hosts = hosts(&wire, "ipip");
        let conf = calico(true, false);
        let pods = [0, 1, 2].map(|at| hosts[at].pod(["one", "two", "far"][at], &conf));
        all_reach_all(&[&pods[0], &pods[1], &pods[2]]);
        for to in [1, 2] {
            assert_eq!(route(&hosts[0], &pods[to])["dev"], "ipip.podwire");
        }
        let link = &pods[0].ns.ip_json(&["link", "show", "eth0"])[0];
        assert_eq!(link["mtu"], 1500, "no file at the default place");
        assert!(testkit::answers(&pods[0].ns, Wire::HOST.parse().unwrap()));
        // The host reaches pods of other nodes from its tunnel's address.
        assert!(testkit::answers(&hosts[0].node.ns, pods[2].addresses()[0]));
    });
}

#[test]
fn pool_without_encapsulation_names_nodes_behind_routers() {
    in_netns(|| {
        testkit::require!(Program("curl"));
        let wire = Wire::new();
        let hosts = hosts(&wire, "none");
        let conf = calico(true, false);
        let pods = [0, 1, 2].map(|at| hosts[at].pod(["one", "two", "far"][at], &conf));
        all_reach_all(&[&pods[0], &pods[1]]);
        assert_eq!(route(&hosts[0], &pods[1])["gateway"], "192.168.90.2");
        wait_until("the reason in the status", || {
            let status = hosts[0].status().to_string();
            status.contains("node-3")
                && status.contains("192.168.3.1 is not on a link of this node")
        });
        assert!(!pods[0].reaches(&pods[2]));
        let mtu = std::fs::read_to_string(hosts[0].node.dir().join("calico/mtu")).unwrap();
        assert_eq!(mtu.trim(), "1500");
    });
}
