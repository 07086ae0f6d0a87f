// SPDX-License-Identifier: Apache-2.0
//! The store is unreachable while the node changes or its agent restarts. Traffic needs no store.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use agent::status::{ConditionKind, RepairKind, Status};
use testkit::{EtcdServer, Wire, in_netns, wait_for};

use super::{Agent, Member, Store, TIMEOUT, all_reach_all, etcd, network};

const SUBNETS: &str = "/coreos.com/network/subnets/";
const CONF: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;

fn masquerading(server: &EtcdServer) -> Store {
    Store::etcd(server, CONF).and(&["--ip-masq"])
}

/// The node is ready, and the failure is reported.
fn goes_on(status: &Status) -> bool {
    status.ready
        && status.store.reachable == Some(false)
        && status.problems.contains_key(&ConditionKind::Store)
}

fn two_nodes(wire: &Wire, server: &EtcdServer) -> Vec<Member> {
    let nodes = [1, 2].map(|number| wire.node(number, true, false)).into();
    let members = network(nodes, &masquerading(server));
    all_reach_all(&members, TIMEOUT);
    members
}

#[track_caller]
fn device_has(member: &Member, word: &str) {
    let shown = || member.node.sh("ip -d link show flannel.1");
    wait_for(&format!("{word}: {}", shown()), TIMEOUT, || shown().contains(word));
}

#[test]
fn underlay_change_is_followed_without_the_store() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let mut server = etcd();
        let members = two_nodes(&wire, &server);
        let first = &members[0];
        let subnet = first.node.subnet_env()["FLANNEL_SUBNET"].clone();
        server.kill();
        first.agent().wait("the reported failure", goes_on);

        first.node.sh("ip link set eth0 mtu 1400");
        device_has(first, "mtu 1350");
        wait_for("FLANNEL_MTU in subnet.env", TIMEOUT, || {
            first.node.subnet_env()["FLANNEL_MTU"] == "1350"
        });
        all_reach_all(&members, TIMEOUT);
        first.agent().wait("the reported failure", goes_on);
        let before = first.agent().repairs(RepairKind::Rules);
        first.node.sh("nft delete table inet podwire-agent-podwire");
        first
            .agent()
            .wait("rules to be back", |_| first.agent().repairs(RepairKind::Rules) > before);
        first.node.sh("nft list table inet podwire-agent-podwire");

        first.node.sh("ip address del 192.168.90.1/24 dev eth0");
        first.agent().wait("the reported second failure", |status| {
            !status.ready
                && status.store.reachable == Some(false)
                && status.problems.contains_key(&ConditionKind::Underlay)
        });
        first.node.sh("ip address add 192.168.90.101/24 dev eth0");
        device_has(first, "local 192.168.90.101");
        first.agent().wait("status.ready from the cache", goes_on);

        server.start();
        server.wait();
        all_reach_all(&members, TIMEOUT);
        first.agent().wait("the store to be reachable", |status| {
            status.ready && status.store.reachable == Some(true) && status.warnings.is_empty()
        });
        assert_eq!(first.node.subnet_env()["FLANNEL_SUBNET"], subnet);
        let leases = server.entries(SUBNETS);
        assert_eq!(leases.len(), 2);
        assert!(leases.iter().any(|(_, value)| value.contains("192.168.90.101")), "{leases:?}");
    });
}

#[test]
fn restarted_agent_uses_the_cache_without_the_store() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let mut server = etcd();
        let mut members = two_nodes(&wire, &server);
        let dir = members[0].node.dir().to_owned();
        let (cni, view) = (dir.join("cni"), dir.join("state/podwire.view"));
        let store = masquerading(&server).and(&["--cni-conf-dir", cni.to_str().unwrap()]);
        let cni = cni.join("10-podwire.conflist");
        drop(members[0].agent.take());
        members[0].node.sh(&format!("rm -f {}", view.display()));
        members[0].agent = Some(Agent::start(&members[0].node, &store));
        wait_for("both files", TIMEOUT, || cni.exists() && view.exists());
        let mode = fs::metadata(&view).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "a configuration may have a key of WireGuard's");
        let env = members[0].node.subnet_env();
        server.kill();
        drop(members[0].agent.take());
        members[0].node.sh("ip link del flannel.1; nft delete table inet podwire-agent-podwire");

        // The subnet may belong to another node by now.
        let good = fs::read_to_string(&view).unwrap();
        let (before, after) = good.split_once("\"leaseUntil\":").unwrap();
        let (_, after) = after.split_once(',').unwrap();
        fs::write(&view, format!("{before}\"leaseUntil\":1,{after}")).unwrap();
        let agent = Agent::start(&members[0].node, &Store::etcd(&server, CONF));
        agent.wait("the reported failure", |status| status.store.reachable == Some(false));
        assert!(agent.hub.network().is_none());
        drop(agent);
        fs::write(&view, good).unwrap();

        members[0].agent = Some(Agent::start(&members[0].node, &store));
        members[0].agent().wait("status.ready from the cache", goes_on);
        all_reach_all(&members, TIMEOUT);
        assert!(cni.exists() && members[0].agent().hub.summary().membership.lease_until.is_some());
        members[0].node.sh("nft list table inet podwire-agent-podwire");
        members[0].node.sh("ip route del $(ip route show proto 112 | head -n 1 | cut -d' ' -f1)");
        all_reach_all(&members, TIMEOUT);

        server.start();
        server.wait();
        let newcomer = wire.node(3, true, false);
        let agent = Agent::start(&newcomer, &Store::etcd(&server, CONF));
        agent.wait("status.ready of the new node", |status| {
            status.ready && status.peers.counts.total == 2
        });
        members.push(Member { agent: Some(agent), pod: newcomer.pod(), node: newcomer });
        all_reach_all(&members, TIMEOUT);
        members[0].agent().wait("status.ready without problems", |status| {
            status.ready && status.store.reachable == Some(true) && status.warnings.is_empty()
        });
        assert_eq!(members[0].node.subnet_env(), env, "same subnet");
        assert_eq!(server.entries(SUBNETS).len(), 3);
    });
}
