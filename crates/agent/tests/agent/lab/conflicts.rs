// SPDX-License-Identifier: Apache-2.0
//! A foreign device with the name of the agent's device: it stays untouched, and the node is not ready.

use agent::status::{ConditionKind, Status};
use testkit::{Node, Wire, in_netns, wait_for};

use super::{Agent, Member, Store, TIMEOUT, all_reach_all};

const CONF: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;

fn is_blocked(status: &Status) -> bool {
    !status.ready
        && status.kernel.conflicts_total == 1
        && status.kernel.conflicts[0].starts_with("device flannel.1 (bridge)")
        && !status.problems.contains_key(&ConditionKind::Kernel)
}

/// Everything that is configured on the device.
fn found(node: &Node) -> String {
    node.sh("ip -4 address show dev flannel.1 scope global; ip -4 route show dev flannel.1
        ip neigh show dev flannel.1 nud permanent; ip nexthop
        ip link show flannel.1 | grep alias || true")
}

#[test]
fn foreign_device_with_the_same_name_is_a_conflict() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let nodes = [1, 2].map(|number| wire.node(number, true, false));
        let list = nodes[0].dir().join("net.d/10-podwire.conflist");
        let dir = list.parent().unwrap().to_str().unwrap();
        let store = Store::embedded(CONF);
        nodes[0].sh("ip link add flannel.1 type bridge; ip link set flannel.1 up");
        let before = found(&nodes[0]);
        let first = Agent::start(&nodes[0], &store.and(&["--cni-conf-dir", dir]));
        first.wait("the reported conflict", is_blocked);
        let second = Agent::start(&nodes[1], &store);
        second.wait("status.ready of the other node", |status| status.ready);
        first.wait("one peer", |status| status.peers.counts.total == 1);
        assert!(is_blocked(&first.hub.status()), "{:#?}", first.hub.status());
        assert_eq!(found(&nodes[0]), before, "device unchanged");
        assert!(!list.exists());

        nodes[0].sh("ip link del flannel.1");
        first.wait("status.ready without problems", |status| status.ready);
        wait_for("the CNI configuration file", TIMEOUT, || list.exists());
        let join =
            |(agent, node): (Agent, Node)| Member { agent: Some(agent), pod: node.pod(), node };
        let members: Vec<Member> = [first, second].into_iter().zip(nodes).map(join).collect();
        all_reach_all(&members, TIMEOUT);
    });
}

#[test]
fn foreign_device_with_the_same_vni_is_a_conflict() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let node = wire.node(1, true, false);
        node.sh("ip link add theirs type vxlan id 1 dstport 8472 local 192.168.90.1 dev eth0");
        let agent = Agent::start(&node, &Store::embedded(CONF));
        agent.wait("the reported conflict with its name", |status| {
            let problem = status.problems.get(&ConditionKind::Kernel);
            !status.ready
                && problem.is_some_and(|problem| problem.text.contains("theirs already has VNI 1"))
        });
        node.sh("ip link del theirs");
        agent.wait("status.ready without problems", |status| status.ready);
    });
}
