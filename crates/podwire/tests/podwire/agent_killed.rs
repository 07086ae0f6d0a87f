// SPDX-License-Identifier: Apache-2.0
//! Agents that share an embedded store and are killed at random times: no lease is lost or assigned
//! twice, and the next start creates the same kernel state as the first one.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use testkit::{Daemon, Node, Wire, in_netns, run, succeeds, wait_for, wait_some};

use super::program::PODWIRE;

const STORE: &str = "/run/lab/store.db";
const SUBNETS: &str = "/coreos.com/network/subnets/";
const CONF: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;
const ROUNDS: usize = 25;
const NODES: u8 = 4;
/// Maximum lifetime in milliseconds. Longer than a start, so that some agents are killed when idle.
const MAX_LIFETIME_MS: u64 = 400;
const TIMEOUT: Duration = Duration::from_secs(60);

fn start(node: &Node) -> Daemon {
    let flags = node.flags();
    let flags = flags.iter().map(String::as_str);
    let words = ["agent", "--store-file", STORE, "--net-config", CONF];
    let quiet = ["sh", "-c", "exec \"$@\" 2>>/run/lab/log", "sh", PODWIRE];
    let words: Vec<&str> = quiet.into_iter().chain(words).chain(flags).collect();
    node.ns.start(words[0], &words[1..])
}

/// Subnets by node address, read with `sqlite3`; also checks the integrity of the file.
fn leases() -> BTreeMap<String, Vec<String>> {
    let query = "PRAGMA integrity_check; SELECT key, json_extract(CAST(value AS TEXT), '$.PublicIP') \
        FROM entry WHERE key LIKE '%/subnets/%' ORDER BY key;";
    let text =
        run("sqlite3", &["-readonly", "-separator", " ", "-cmd", ".timeout 5000", STORE, query]);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("ok"), "{text}");
    let mut leases: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in lines {
        let (key, public) = line.split_once(' ').unwrap();
        let subnet = key.strip_prefix(SUBNETS).unwrap().replace('-', "/");
        leases.entry(public.to_owned()).or_default().push(subnet);
    }
    leases
}

fn random(below: u64) -> u64 {
    RandomState::new().hash_one(0) % below
}

/// Runs all agents at the same time and kills each one after a random time.
fn start_and_kill(nodes: &[Node]) {
    std::thread::scope(|scope| {
        for node in nodes {
            scope.spawn(|| {
                let agent = start(node);
                let lifetime = Duration::from_millis(random(MAX_LIFETIME_MS));
                assert!(wait_some(lifetime, || None::<()>).is_none());
                drop(agent);
            });
        }
    });
}

/// Each node has one subnet, keeps it, and has it in subnet.env.
fn check(nodes: &[Node], known: &mut BTreeMap<String, Vec<String>>) {
    let leases = leases();
    for (public, subnets) in &leases {
        assert_eq!(subnets.len(), 1, "{public} has {subnets:?}");
        let before = known.insert(public.clone(), subnets.clone());
        assert!(before.is_none_or(|before| before == *subnets), "{public} has a new subnet");
    }
    assert_eq!(*known, leases, "a lease is lost");
    let all: BTreeSet<&String> = leases.values().flatten().collect();
    assert_eq!(all.len(), leases.len(), "a subnet is assigned twice");
    for node in nodes {
        let Some(gateway) = node.subnet_env().get("FLANNEL_SUBNET").cloned() else { continue };
        let subnet = &leases[&format!("192.168.90.{}", node.number())][0];
        assert_eq!(gateway, subnet.replace(".0/", ".1/"));
    }
}

fn is_ready(node: &Node) -> bool {
    let socket = node.dir().join("run/agent.sock");
    succeeds("curl", &["-fsS", "--unix-socket", socket.to_str().unwrap(), "http://agent/readyz"])
}

/// Checks routes, forwarding entries and neighbours of all peers.
fn check_kernel(node: &Node, leases: &BTreeMap<String, Vec<String>>) {
    let own = format!("192.168.90.{}", node.number());
    let others = || leases.iter().filter(|(public, _)| **public != own);
    let subnets: BTreeSet<String> = others().map(|(_, subnets)| subnets[0].clone()).collect();
    let publics: BTreeSet<String> = others().map(|(public, _)| public.clone()).collect();
    let words = |script: &str| -> BTreeSet<String> {
        node.sh(script).lines().map(|line| line.trim().to_owned()).collect()
    };
    let routes = || words("ip route show proto 112 | cut -d' ' -f1");
    wait_for("routes to all peers only", TIMEOUT, || routes() == subnets);
    let forwarding = "bridge fdb show dev flannel.1 | grep -o 'dst [^ ]*' | cut -d' ' -f2";
    wait_for("forwarding entries of all peers only", TIMEOUT, || words(forwarding) == publics);
    let tunnels: BTreeSet<String> = subnets.iter().map(|one| one.replace("/24", "")).collect();
    let neighbours = "ip neigh show dev flannel.1 nud permanent | cut -d' ' -f1";
    wait_for("neighbours of all peers only", TIMEOUT, || words(neighbours) == tunnels);
}

#[test]
fn killed_agents_lose_no_lease() {
    in_netns(|| {
        testkit::require!(Link("vxlan"), Program("sqlite3"), Program("curl"));
        let wire = Wire::new();
        let nodes: Vec<Node> = (1..=NODES).map(|number| wire.node(number, true, false)).collect();
        let mut known = BTreeMap::new();
        for _ in 0..ROUNDS {
            start_and_kill(&nodes);
            if std::fs::exists(STORE).unwrap()
                && succeeds("sqlite3", &["-readonly", STORE, "SELECT 1 FROM entry"])
            {
                check(&nodes, &mut known);
            }
        }
        let agents: Vec<Daemon> = nodes.iter().map(start).collect();
        for node in &nodes {
            wait_for("readiness after the last start", TIMEOUT, || is_ready(node));
        }
        check(&nodes, &mut known);
        assert_eq!(known.len(), usize::from(NODES));
        for node in &nodes {
            check_kernel(node, &known);
        }
        let expected: Vec<_> = nodes.iter().map(Node::kernel).collect();
        drop(agents);
        for (node, expected) in nodes.iter().zip(expected) {
            node.sh("ip link del flannel.1; ip nexthop flush proto 112 2>/dev/null || true");
            assert!(node.kernel().is_empty());
            let _agent = start(node);
            wait_for("kernel state of the first start", TIMEOUT, || node.kernel() == expected);
        }
    });
}
