// SPDX-License-Identifier: Apache-2.0
//! The check of addresses, and the release of single addresses, with faults made by hand.

use std::net::IpAddr;
use std::time::Duration;

use agent_client::ipam::{self, Error, ReleaseResponse, journal};
use agent_client::pools::{
    CHECK, CheckReport, CheckRequest, FindingView, RELEASE_ADDRESS, ReleaseAddress,
};
use testkit::{EtcdServer, Node, Ns, Wire, in_netns, wait_for};

use super::routed::{assign_in, socket, store};
use super::{Agent, Store, TIMEOUT, etcd, words};

fn check(node: &Node, fix: bool) -> Vec<FindingView> {
    let timeout = Duration::from_secs(60);
    let report = ipam::post(&socket(node), CHECK, &CheckRequest { fix }, timeout);
    report.map(|report: CheckReport| report.findings).unwrap()
}

/// The findings as `problem object`.
fn found(findings: &[FindingView]) -> Vec<String> {
    findings.iter().map(|one| format!("{} {}", one.problem, one.object)).collect()
}

/// Checks that `--fix` repairs all findings, and that none is left.
#[track_caller]
fn all_repaired(node: &Node, expected: &[&str]) {
    assert_eq!(found(&check(node, false)), expected);
    let repaired = check(node, true);
    assert!(repaired.iter().all(|one| one.repaired), "{repaired:#?}");
    for one in expected {
        assert!(found(&repaired).contains(&(*one).to_owned()), "{one}: {repaired:#?}");
    }
    assert_eq!(check(node, false), []);
}

fn release(node: &Node, address: IpAddr, force: bool) -> Result<Vec<IpAddr>, String> {
    let request = ReleaseAddress { address, force };
    match ipam::post(&socket(node), RELEASE_ADDRESS, &request, Duration::from_secs(20)) {
        Ok(ReleaseResponse { released }) => Ok(released),
        Err(Error::Refused(failure)) => Err(failure.msg),
        Err(error) => panic!("{error}"),
    }
}

/// A node with an agent that is ready.
fn start(wire: &Wire, store: &Store) -> (Node, Agent) {
    let node = wire.node(1, true, false);
    let agent = Agent::start(&node, store);
    agent.wait("status.ready", |status| status.ready);
    (node, agent)
}

fn etcd_store(server: &EtcdServer) -> Store {
    let endpoint = server.endpoint();
    let flags = ["--etcd-endpoints", &endpoint, "--pods", "routed", "--pool-cidr", "10.6.0.0/16"];
    Store(words(&flags))
}

#[test]
fn address_whose_namespace_is_gone_is_released_by_the_check() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let (node, _agent) = start(&wire, &store("10.6.0.0/16", "vxlan"));
        let (kept, gone) = (Ns::new("kept"), Ns::new("gone"));
        let running = assign_in(&node, "kept", &kept.path());
        let leaked = assign_in(&node, "gone", &gone.path());
        assert_eq!(check(&node, false), []);
        drop(gone);
        all_repaired(&node, &[&format!("leaked {leaked}")]);
        assert_eq!(assign_in(&node, "kept", &kept.path()), running);
        let why = release(&node, running, false).unwrap_err();
        assert!(why.contains("its network namespace exists: delete the pod, or pass"), "{why}");
        assert_eq!(release(&node, running, true), Ok(vec![running]));
        // The store learns of a release a moment later.
        let is_unknown = |why: &String| why.starts_with(&format!("{running} is not assigned"));
        wait_for("the release in the store", TIMEOUT, || {
            release(&node, running, true).is_err_and(|why| is_unknown(&why))
        });
    });
}

#[test]
fn removed_journal_file_is_written_again_by_the_check() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let (node, agent) = start(&wire, &store("10.6.0.0/16", "vxlan"));
        let pod = Ns::new("pod");
        let address = assign_in(&node, "c1", &pod.path());
        let file = journal::file(&node.dir().join("state"), "pods.c1", "eth0");
        let content = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        all_repaired(&node, &[&format!("missing {address}")]);
        assert_eq!(std::fs::read(&file).unwrap(), content);
        drop(agent);
    });
}

/// The agent forgets an address whose file is removed while it is stopped, as DEL does it.
#[test]
fn running_pod_gets_its_forgotten_address_back() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let store = store("10.6.0.0/16", "vxlan");
        let (node, agent) = start(&wire, &store);
        let ns = Ns::new("kept");
        let address = assign_in(&node, "c1", &ns.path());
        drop(agent);
        std::fs::remove_file(journal::file(&node.dir().join("state"), "pods.c1", "eth0")).unwrap();
        let _pod = node.routed_pod("pod1", &[address]);
        node.ns.ip(&["link", "set", "calipod1", "alias", "podwire calico pods c1 eth0"]);
        let agent = Agent::start(&node, &store);
        agent.wait("status.ready", |status| status.ready);
        all_repaired(&node, &[&format!("missing {address}")]);
        assert_eq!(assign_in(&node, "c1", &ns.path()), address);
    });
}

#[test]
fn route_without_a_pod_is_named_and_left_alone() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let (node, _agent) = start(&wire, &store("10.6.0.0/16", "vxlan"));
        let other = Ns::new("other");
        node.ns.connect("stray0", &other, "eth0");
        node.ns.ip(&["link", "set", "stray0", "up"]);
        node.ns.ip(&["route", "add", "10.6.77.7", "dev", "stray0"]);
        let findings = check(&node, true);
        assert_eq!(found(&findings), ["missing 10.6.77.7"]);
        assert!(findings[0].reason.contains("interface stray0 has it"), "{findings:?}");
        assert!(!findings[0].automatic && !findings[0].repaired, "{findings:?}");
    });
}

#[test]
fn objects_of_a_node_that_does_not_exist_are_released() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let (wire, server) = (Wire::new(), etcd());
        let (node, _agent) = start(&wire, &etcd_store(&server));
        put_block(
            &server,
            "10.6.200.0/30",
            "ghost",
            r#""handle_id":"net.g1","secondary":{"node":"ghost"}"#,
        );
        server.ctl(&["put", "/calico/ipam/v2/handle/net.lost", r#"{"block":{"10.6.200.0/30":1}}"#]);
        // The affinity follows when the block has no owner any more.
        all_repaired(&node, &["stale 10.6.200.0/30", "stale IPAMHandle net.lost"]);
        let left = server.ctl(&["get", "--prefix", "/calico/ipam/v2/", "--keys-only"]);
        assert!(
            !left.contains("ghost") && !left.contains("10.6.200.0") && !left.contains("net.lost"),
            "{left}"
        );
    });
}

/// An address of a departed node can also be released alone, but not one of a node that exists.
#[test]
fn address_of_a_departed_node_is_released_by_name() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let (wire, server) = (Wire::new(), etcd());
        let (node, _agent) = start(&wire, &etcd_store(&server));
        let attribute = r#""handle_id":"net.g1","secondary":{"node":"n9"}"#;
        put_node(&server, "n9");
        put_block(&server, "10.6.200.0/30", "n9", attribute);
        let address: IpAddr = "10.6.200.0".parse().unwrap();
        wait_for("the refusal", TIMEOUT, || {
            release(&node, address, true)
                .is_err_and(|why| why.contains("on node n9: release it there"))
        });
        server.ctl(&["del", "/calico/resources/v3/projectcalico.org/nodes/n9"]);
        wait_for("the release", TIMEOUT, || release(&node, address, false).is_ok());
        wait_for("the store", TIMEOUT, || {
            !server.ctl(&["get", "--prefix", "/calico/ipam/v2/assignment/"]).contains("net.g1")
        });
    });
}

/// The agent corrects its own part of a contradiction; that of another node is named.
#[test]
fn second_owner_of_a_block_is_named() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let (wire, server) = (Wire::new(), etcd());
        let (node, _agent) = start(&wire, &etcd_store(&server));
        assign_in(&node, "c1", &Ns::new("kept").path());
        put_node(&server, "n9");
        let listed = server.ctl(&["get", "--prefix", "/calico/ipam/v2/assignment/", "--keys-only"]);
        let block = listed.lines().find_map(|key| key.rsplit_once('/')).unwrap().1.to_owned();
        let key = format!("/calico/ipam/v2/host/n9/ipv4/block/{block}");
        server.ctl(&["put", &key, r#"{"state":"confirmed","deleted":false}"#]);
        let findings = check(&node, true);
        let object = format!("conflict BlockAffinity {} of node n9", block.replace('-', "/"));
        assert!(found(&findings).contains(&object), "{findings:#?}");
        let conflict = findings.iter().find(|one| one.problem == "conflict").unwrap();
        assert_eq!(conflict.repair, "the agent of n9 repairs it: start it");
        assert!(!conflict.repaired);
    });
}

fn put_node(server: &EtcdServer, name: &str) {
    let key = format!("/calico/resources/v3/projectcalico.org/nodes/{name}");
    let value = format!(
        r#"{{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{{"name":"{name}"}},"spec":{{}}}}"#
    );
    server.ctl(&["put", &key, &value]);
}

/// Writes a block of four addresses of which the first is assigned, with its affinity.
fn put_block(server: &EtcdServer, cidr: &str, node: &str, attribute: &str) {
    let dashed = cidr.replace('/', "-");
    let affinity = format!("/calico/ipam/v2/host/{node}/ipv4/block/{dashed}");
    server.ctl(&["put", &affinity, r#"{"state":"confirmed","deleted":false}"#]);
    let block = format!(
        r#"{{"cidr":"{cidr}","affinity":"host:{node}","allocations":[0,null,null,null],"unallocated":[1,2,3],"attributes":[{{{attribute}}}],"deleted":false}}"#
    );
    server.ctl(&["put", &format!("/calico/ipam/v2/assignment/ipv4/block/{dashed}"), &block]);
}
