// SPDX-License-Identifier: Apache-2.0
//! Twenty nodes with one etcd that fails, loses history and returns. Traffic is not affected.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};

use agent::status::{ConditionKind, Status};
use testkit::{EtcdServer, Node, Pinging, Wire, in_netns, wait_for};

use super::{Agent, Store, TIMEOUT, etcd};

const SUBNETS: &str = "/coreos.com/network/subnets/";
const NODES: u8 = 20;
const CONF: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;

/// All at the same instant.
fn start_together(nodes: &[Node], store: &Store) -> Vec<Agent> {
    let barrier = Arc::new(Barrier::new(nodes.len()));
    std::thread::scope(|scope| {
        let start = |node| {
            let barrier = Arc::clone(&barrier);
            scope.spawn(move || {
                barrier.wait();
                Agent::start(node, store)
            })
        };
        let started: Vec<_> = nodes.iter().map(start).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn subnets(server: &EtcdServer) -> BTreeSet<String> {
    let names = server.entries(SUBNETS).into_iter().map(|(key, _)| key);
    names.map(|key| key.strip_prefix(SUBNETS).unwrap().replace('-', "/")).collect()
}

/// Route destinations of a node, as `ip` prints them.
fn routes(node: &Node) -> BTreeSet<String> {
    let text = node.sh("ip route show proto 112");
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// Waits until each node has routes to all others and no more.
#[track_caller]
fn all_see_all(nodes: &[Node], agents: &[Agent], server: &EtcdServer) {
    let all = subnets(server);
    for (node, agent) in nodes.iter().zip(agents) {
        let own = agent.hub.network().unwrap().lease.subnets[0].to_string();
        let mut others = all.clone();
        assert!(others.remove(&own), "{own} is in the store");
        let what = format!("{} to see {others:?}", node.number());
        wait_for(&what, TIMEOUT, || routes(node) == others);
    }
}

/// Writes and deletes leases of other nodes in flannel's format.
fn churn(server: &EtcdServer, from: u8, count: u8) {
    for number in from..from + count {
        let key = format!("{SUBNETS}10.5.{number}.0-24");
        let value = format!(
            r#"{{"PublicIP":"192.168.90.{number}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"02:00:00:00:01:{number:02x}"}}}}"#
        );
        server.ctl(&["put", &key, &value]);
        if number % 2 == 0 {
            server.ctl(&["del", &key]);
        }
    }
}

fn compact(server: &EtcdServer) {
    let status = server.ctl(&["get", SUBNETS, "-w", "json"]);
    let (_, rest) = status.split_once("\"revision\":").unwrap();
    let revision: String = rest.chars().take_while(char::is_ascii_digit).collect();
    server.ctl(&["compact", &revision]);
}

#[test]
fn twenty_nodes_survive_etcd_failures() {
    in_netns(|| {
        testkit::require!(Link("vxlan"), Program("curl"));
        let wire = Wire::new();
        let mut server = etcd();
        let nodes: Vec<Node> = (1..=NODES).map(|number| wire.node(number, true, false)).collect();
        // Names of nodes that come and go later are not among those that may be chosen.
        let conf = CONF.replace("\"Backend", "\"SubnetMax\": \"10.5.99.0\", \"Backend");
        let agents =
            start_together(&nodes, &Store::etcd(&server, &conf).and(&["--path-check=false"]));
        for agent in &agents {
            agent.wait("status.ready with all peers", |status| {
                status.ready && status.peers.counts.total == usize::from(NODES) - 1
            });
        }
        assert_eq!(subnets(&server).len(), usize::from(NODES), "all subnets differ");
        all_see_all(&nodes, &agents, &server);

        let pods = [nodes[0].pod(), nodes[1].pod()];
        wait_for("the first packet to pass", TIMEOUT, || pods[0].reaches(&pods[1]));
        let pinging = Pinging::start(&pods[0].ns, pods[1].addresses[0]);
        let before: Vec<_> = nodes.iter().map(Node::kernel).collect();
        server.kill();
        for agent in &agents {
            agent.wait("the reported failure", |status| status.store.reachable == Some(false));
            assert!(agent.hub.readiness().is_ready);
        }
        let socket = nodes[0].dir().join("run/agent.sock");
        let words = ["-sS", "--unix-socket", socket.to_str().unwrap(), "http://agent/status"];
        let status = testkit::json("curl", &words);
        assert_eq!(
            (&status["store"]["reachable"], &status["ready"]),
            (&false.into(), &true.into())
        );
        let after: Vec<_> = nodes.iter().map(Node::kernel).collect();
        assert_eq!(after, before, "kernel state unchanged");

        // Half of the agents miss changes until etcd has compacted them.
        let deaf = &nodes[..usize::from(NODES) / 2];
        deaf.iter().for_each(|node| drop(node.sh("ip route add blackhole 192.168.90.254")));
        server.start();
        server.wait();
        churn(&server, 101, 10);
        compact(&server);
        deaf.iter().for_each(|node| drop(node.sh("ip route del blackhole 192.168.90.254")));
        churn(&server, 111, 10);
        server.kill();
        server.start();
        server.wait();
        churn(&server, 121, 10);
        all_see_all(&nodes, &agents, &server);
        assert_eq!(subnets(&server).len(), usize::from(NODES) + 15);
        for agent in &agents {
            agent.wait("status.ready without problems", |status| {
                status.store.reachable == Some(true)
                    && !status.problems.contains_key(&ConditionKind::Store)
            });
        }
        let (sent, answered) = pinging.end();
        assert!(sent - answered <= 1, "{answered} of {sent} came back");
    });
}

#[test]
fn store_recovery_is_noticed_without_changes() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let mut server = etcd();
        server.kill();
        let node = wire.node(1, true, false);
        let agent = Agent::start(&node, &Store::etcd(&server, CONF));
        let store = agent.hub.status().store;
        assert_ne!(store.reachable, Some(true), "no answer yet");
        let lost = |status: &Status| status.store.reachable == Some(false);
        agent.wait("the reported failure", |status| lost(status) && !status.ready);
        server.start();
        server.wait();
        agent.wait("status.ready", |status| status.ready);
        server.kill();
        agent.wait("the reported failure", |status| lost(status) && status.ready);
        server.start();
        server.wait();
        agent.wait("store.reachable", |status| status.store.reachable == Some(true));
    });
}
