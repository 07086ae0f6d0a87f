// SPDX-License-Identifier: Apache-2.0
//! A flannel node is taken over while its pods communicate, beside one that stays with flannel. What flannel
//! had made is from the records of real nodes, laid down with `ip`, `nft` and `etcdctl`.

use std::fs;

use testkit::{EtcdServer, Node, Pinging, Pod, Wire, in_netns, wait_for};

use super::{Agent, Store, TIMEOUT, etcd};

const SUBNETS: &str = "/coreos.com/network/subnets/";
const MACS: [&str; 3] = ["76:40:2b:2c:32:07", "46:d8:32:8b:ae:24", "b2:c9:28:d2:07:f2"];
const THIRDS: [&str; 3] = ["37", "94", "35"];

/// What flanneld with `--ip-masq` had made on a node; the one after the last had left while it was down.
fn lay_down(node: &Node, which: usize, backend: &str) -> Pod {
    let own = THIRDS[which];
    let mtu = if backend == "vxlan" { 1450 } else { 1500 };
    let env = format!(
        "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.{own}.1/24\nFLANNEL_MTU={mtu}\n\
         FLANNEL_IPMASQ=true\n"
    );
    fs::write(node.dir().join("subnet.env"), env).unwrap();
    let pod = node.pod();
    let address = which + 1;
    if backend == "vxlan" {
        node.sh(&format!(
            "ip link add flannel.1 address {} mtu 1450 type vxlan id 1 local 192.168.90.{address} \
                dev eth0 dstport 8472 nolearning
            ip link set flannel.1 up
            ip address add 10.5.{own}.0/32 dev flannel.1",
            MACS[which]
        ));
    }
    for (peer, (mac, third)) in MACS.iter().zip(THIRDS).enumerate().filter(|one| one.0 != which) {
        let public = format!("192.168.90.{}", peer + 1);
        node.sh(&match backend {
            // On a foreign link such a route may be an administrator's.
            "host-gw" if peer == 2 => "true".to_owned(),
            "vxlan" => format!(
                "ip neigh add 10.5.{third}.0 dev flannel.1 lladdr {mac} nud permanent
                bridge fdb add {mac} dev flannel.1 dst {public} self permanent
                ip route add 10.5.{third}.0/24 via 10.5.{third}.0 dev flannel.1 onlink"
            ),
            _ => format!("ip route add 10.5.{third}.0/24 via {public} dev eth0"),
        });
    }
    node.sh(&format!(
        "nft -f - <<END
        table ip flannel-ipv4 {{
            chain postrtg {{
                type nat hook postrouting priority srcnat; policy accept;
                ip saddr 10.5.{own}.0/24 ip daddr 10.5.0.0/16 return
                ip saddr 10.5.0.0/16 ip daddr 10.5.{own}.0/24 return
                ip saddr 10.5.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
            }}
        }}\nEND"
    ));
    pod
}

fn publish(server: &EtcdServer, which: usize, backend: &str) {
    let data = match backend {
        "vxlan" => format!(r#","BackendData":{{"VNI":1,"VtepMAC":"{}"}}"#, MACS[which]),
        _ => String::new(),
    };
    let value = format!(
        r#"{{"PublicIP":"192.168.90.{}","PublicIPv6":null,"BackendType":"{backend}"{data}}}"#,
        which + 1
    );
    let granted = server.ctl(&["lease", "grant", "86400"]);
    let lease = granted.split(' ').nth(1).unwrap();
    let key = format!("{SUBNETS}10.5.{}.0-24", THIRDS[which]);
    server.ctl(&["put", "--lease", lease, &key, &value]);
}

/// Remains of flannel: its routes, the node that has left, rules.
fn leftovers(node: &Node) -> Vec<String> {
    let routes = node.sh("ip route show root 10.5.0.0/16");
    let is_flannels = |line: &&str| !line.contains("proto kernel") && !line.contains("proto 112");
    let routes = routes.lines().filter(is_flannels).map(str::to_owned);
    let gone = node
        .kernel()
        .into_iter()
        .filter(|line| line.contains("10.5.35.") || line.contains(MACS[2]));
    let tables = node.sh("nft list tables");
    let tables = tables.lines().filter(|line| line.contains("flannel-")).map(str::to_owned);
    routes.chain(gone).chain(tables).collect()
}

/// Properties that change if a device is re-created.
fn device(node: &Node) -> String {
    node.sh("ip -o link show flannel.1 2>/dev/null | cut -d' ' -f1; ip -o link show | grep -o 'flannel.*ether [^ ]*' | sed 's/.*ether//'")
}

fn flannels_nodes_become_ours(backend: &str) {
    let wire = Wire::new();
    let server = etcd();
    let conf = format!(r#"{{"Network":"10.5.0.0/16","Backend":{{"Type":"{backend}"}}}}"#);
    server.ctl(&["put", "/coreos.com/network/config", &conf]);
    let nodes = [1, 2].map(|number| wire.node(number, true, false));
    let pods = [0, 1].map(|which| lay_down(&nodes[which], which, backend));
    for which in [0, 1] {
        publish(&server, which, backend);
    }
    wait_for("packets between flannel's nodes", TIMEOUT, || pods[0].reaches(&pods[1]));
    let (keys, env) = (server.entries(SUBNETS), nodes[0].subnet_env());
    let store = Store::etcd(&server, "").and(&["--ip-masq"]);

    let mut agents = Vec::new();
    for node in &nodes {
        let before = device(node);
        assert!(!leftovers(node).is_empty());
        let pinging =
            [0, 1].map(|from| Pinging::start(&pods[from].ns, pods[1 - from].addresses[0]));
        let agent = Agent::start(node, &store);
        agent.wait("status.ready", |status| status.ready && status.peers.counts.total == 1);
        wait_for(&format!("{:#?} to go", leftovers(node)), TIMEOUT, || leftovers(node).is_empty());
        for pinging in pinging {
            let (sent, answered) = pinging.end();
            assert!(sent - answered <= 1, "{answered} of {sent} came back");
        }
        assert_eq!(device(node), before, "the device is the same, with its MAC address");
        assert_eq!(server.entries(SUBNETS), keys, "keys unchanged");
        wait_for("packets in both directions", TIMEOUT, || {
            pods[0].reaches(&pods[1]) && pods[1].reaches(&pods[0])
        });
        agents.push(agent);
    }
    assert_eq!(nodes[0].subnet_env(), env);
}

#[test]
fn vxlan_nodes_of_flannel_are_taken_over() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        flannels_nodes_become_ours("vxlan");
    });
}

#[test]
fn host_gw_nodes_of_flannel_are_taken_over() {
    in_netns(|| flannels_nodes_become_ours("host-gw"));
}
