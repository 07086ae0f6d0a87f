// SPDX-License-Identifier: Apache-2.0
//! A cluster of Calico is taken over with its pods running.

use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::{EtcdServer, Node, Ns, Pinging, Wire, in_netns};

use super::{
    BLOCKS, HANDLES, Host, NODES, RoutedPod, allocations, calico, etcd, put_pool, wait_until, with,
};

const NETWORK: &str = "k8s-pod-network";
const CONTAINERS: [&str; 2] = [
    "1f2e3d4c5b6a79880716253443526170f1e2d3c4b5a697887960514233241506",
    "a1b2c3d4e5f60718293a4b5c6d7e8f90112233445566778899aabbccddeeff00",
];

/// Puts what Calico has in etcd for a node with one pod: the forms are those of its source, in
/// libcalico-go/lib/backend/model and libcalico-go/lib/ipam.
fn put_node(server: &EtcdServer, number: u8) {
    let name = format!("node-{number}");
    let node = json!({"kind": "Node", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name, "uid": "5b2c", "creationTimestamp": "2026-06-15T11:00:00Z",
            "labels": {"kubernetes.io/hostname": name}},
        "spec": {"bgp": {"ipv4Address": format!("192.168.90.{number}/24"), "asNumber": 64512},
            "ipv4VXLANTunnelAddr": format!("10.244.{number}.0"),
            "vxlanTunnelMACAddr": format!("66:00:00:00:00:0{number}"),
            "orchRefs": [{"nodeName": name, "orchestrator": "k8s"}]}});
    let cidr = format!("10.244.{number}.0");
    let handle = format!("{NETWORK}.{}", CONTAINERS[usize::from(number) - 1]);
    let tunnel = format!("vxlan-tunnel-addr-{name}");
    let mut allocations = vec![json!(0), json!(1)];
    allocations.resize(64, Value::Null);
    let block = json!({"cidr": format!("{cidr}/26"), "affinity": format!("host:{name}"),
        "affinity_claim_time": "2026-06-15T11:00:00Z",
        "allocations": allocations, "unallocated": (2..64).collect::<Vec<u8>>(),
        "attributes": [
            {"handle_id": tunnel, "secondary": {"node": name, "type": "vxlanTunnelAddress"}},
            {"handle_id": handle, "secondary": {"namespace": "default", "node": name,
                "pod": format!("web-{number}"),
                "timestamp": "2026-06-15 11:00:01.123456789 +0000 UTC"}}],
        "sequenceNumber": 1_781_521_200_000_000_002_u64,
        "sequenceNumberForAllocation": {"0": 1_781_521_200_000_000_000_u64,
            "1": 1_781_521_200_000_000_001_u64},
        "deleted": false});
    let affinity = json!({"state": "confirmed", "deleted": false});
    let counts = json!({"block": {format!("{cidr}/26"): 1}, "deleted": false});
    for (key, value) in [
        (format!("{NODES}{name}"), node),
        (format!("{BLOCKS}ipv4/block/{cidr}-26"), block),
        (format!("/calico/ipam/v2/host/{name}/ipv4/block/{cidr}-26"), affinity),
        (format!("{HANDLES}{tunnel}"), counts.clone()),
        (format!("{HANDLES}{handle}"), counts),
    ] {
        server.ctl(&["put", &key, &value.to_string()]);
    }
}

/// Connects a pod as Calico's plugin does: without permanent neighbours, with proxy ARP.
fn calicos_pod(node: &Node, number: u8) -> (Ns, IpAddr, String) {
    let name = format!("web-{number}");
    let digest = node.sh(&format!("printf default.{name} | sha1sum"));
    let (ns, end) = (Ns::new(&name), format!("cali{}", &digest[..11]));
    let address: IpAddr = format!("10.244.{number}.1").parse().unwrap();
    node.ns.connect(&end, &ns, "eth0");
    node.sh(&format!(
        "ip link set {end} address ee:ee:ee:ee:ee:ee
        echo 1 > /proc/sys/net/ipv4/conf/{end}/proxy_arp
        echo 0 > /proc/sys/net/ipv4/neigh/{end}/proxy_delay
        ip route add {address} dev {end} scope link"
    ));
    ns.ip(&["link", "set", "lo", "up"]);
    ns.ip(&["address", "add", &format!("{address}/32"), "dev", "eth0"]);
    ns.ip(&["route", "add", "169.254.1.1", "dev", "eth0", "scope", "link"]);
    ns.ip(&["route", "add", "default", "via", "169.254.1.1", "dev", "eth0"]);
    (ns, address, end)
}

/// The plugin calls for a pod that Calico connected.
fn adopted<'a>(
    host: &'a Host,
    number: u8,
    (ns, address, end): (Ns, IpAddr, String),
) -> RoutedPod<'a> {
    let (name, mac) =
        (format!("web-{number}"), ns.ip_json(&["link", "show", "eth0"])[0]["address"].clone());
    let netns = ns.path().display().to_string();
    // The result of Calico's ADD.
    let result = json!({"cniVersion": "1.0.0",
        "interfaces": [{"name": end}, {"name": "eth0", "mac": mac, "sandbox": netns}],
        "ips": [{"interface": 1, "address": format!("{address}/32")}], "dns": {}});
    let conf = with(calico(true, false), &json!({"name": NETWORK, "cniVersion": "1.0.0"}));
    RoutedPod {
        ns,
        host,
        netns,
        container: CONTAINERS[usize::from(number) - 1].to_owned(),
        ifname: "eth0",
        args: format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}"),
        conf,
        result,
    }
}

#[test]
fn calico_cluster_is_taken_over_with_running_pods() {
    in_netns(|| {
        testkit::require!(Link("vxlan"), Program("sha1sum"));
        let wire = Wire::new();
        let server = etcd();
        let spec = json!({"cidr": "10.244.0.0/16", "blockSize": 26, "ipipMode": "Never",
            "vxlanMode": "Always", "natOutgoing": true, "nodeSelector": "all()",
            "allowedUses": ["Workload", "Tunnel"], "assignmentMode": "Automatic"});
        put_pool(&server, "default-ipv4-ippool", &spec);
        let config = json!({"auto_allocate_blocks": true, "maxBlocksPerHost": 20});
        server.ctl(&["put", "/calico/ipam/v2/config", &config.to_string()]);
        // Other objects of Calico are none of podwire's business.
        let other = "/calico/resources/v3/projectcalico.org/felixconfigurations/default";
        server.ctl(&["put", other, "{\"kind\": \"FelixConfiguration\"}"]);
        for number in [1, 2] {
            put_node(&server, number);
        }
        let nodes = [1, 2].map(|number| wire.node(number, true, false));
        let pods = [calicos_pod(&nodes[0], 1), calicos_pod(&nodes[1], 2)];
        let stream = Pinging::start(&nodes[0].ns, pods[0].1);

        let endpoint = server.endpoint();
        let flags = ["--etcd-endpoints", &endpoint];
        let hosts = nodes.map(|node| Host::start(node, &flags));
        let [first, second] = pods;
        let pods = [adopted(&hosts[0], 1, first), adopted(&hosts[1], 2, second)];
        super::all_reach_all(&[&pods[0], &pods[1]]);

        // The tunnels keep their addresses and MAC addresses.
        let link = &hosts[0].node.ns.ip_json(&["address", "show", "vxlan.calico"])[0];
        assert_eq!(link["address"], "66:00:00:00:00:01", "{link}");
        assert_eq!(link["addr_info"][0]["local"], "10.244.1.0", "{link}");

        // New pods come from the same block, and never get the address of a running one.
        let conf = with(calico(true, false), &json!({"name": NETWORK}));
        let new: Vec<_> = (0..6).map(|n| hosts[0].pod(&format!("new{n}"), &conf)).collect();
        for pod in &new {
            let address = pod.addresses()[0].to_string();
            assert!(address.starts_with("10.244.1."), "{address}");
            assert!(!["10.244.1.0", "10.244.1.1"].contains(&&*address), "{address}");
        }
        super::all_reach_all(&[&new[0], &pods[0], &pods[1]]);
        // Two looks for unused addresses later, the running pods have theirs.
        let (lost, end) = (new[5].addresses()[0], hosts[0].host_ends());
        let end = end.iter().find(|end| {
            hosts[0].node.sh(&format!("ip route show dev {end}")).contains(&lost.to_string())
        });
        hosts[0].node.ns.ip(&["link", "del", end.unwrap()]);
        new[5].host.node.sh(&format!("ip netns del {}", new[5].ns.name()));
        wait_until("the collection", || !allocations(&server).iter().any(|(a, ..)| *a == lost));
        let of = |number: usize| format!("{NETWORK}.{}", CONTAINERS[number]);
        for number in [0, 1] {
            assert!(allocations(&server).iter().any(|(_, handle, _)| *handle == of(number)));
            pods[number].call("CHECK").unwrap();
        }
        let (sent, answered) = stream.end();
        assert_eq!(sent, answered, "packets were lost");

        // DEL of a pod of Calico removes everything; a repeated one succeeds.
        let calicos = pods[0].addresses()[0];
        for _ in 0..2 {
            pods[0].del();
        }
        assert_eq!(pods[0].ns.ip(&["-o", "link", "show", "type", "veth"]), "");
        assert!(!hosts[0].node.sh("ip route").contains(&format!("{calicos} ")));
        wait_until("the release", || {
            !allocations(&server).iter().any(|(_, handle, _)| *handle == of(0))
                && !server.ctl(&["get", "--prefix", HANDLES, "--keys-only"]).contains(&of(0))
        });
        let affinity =
            server.ctl(&["get", "--prefix", "/calico/ipam/v2/host/node-1", "--print-value-only"]);
        let affinity: Value = serde_json::from_str(affinity.trim()).unwrap();
        assert_eq!(affinity, json!({"state": "confirmed", "deleted": false}));
    });
}
