// SPDX-License-Identifier: Apache-2.0
//! Agents that cannot write below `/proc/sys`, as in a container without privileges.

use agent::status::{ConditionKind, Status};
use testkit::{Node, Wire, in_netns, run};

use super::{Agent, Store};

const CONF: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;

/// Makes `/proc/sys` read-only for this process. [`set`] goes another way.
fn make_read_only() {
    run(
        "sh",
        &[
            "-ec",
            "mkdir -p /run/lab/sys
            mount --bind /proc/sys /run/lab/sys
            mount --bind /proc/sys /proc/sys
            mount -o remount,bind,ro /proc/sys",
        ],
    );
    assert!(std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").is_err());
}

/// Sets a sysctl from outside of the container.
fn set(node: &Node, switch: &str, value: &str) {
    node.sh(&format!("echo {value} > /run/lab/sys/{switch}"));
}

fn lacks_forwarding(status: &Status) -> bool {
    let words = ["net.ipv4.ip_forward", "read-only", "to 1 on the node"];
    let problem = status.problems.get(&ConditionKind::Rules);
    !status.ready && problem.is_some_and(|one| words.iter().all(|word| one.text.contains(word)))
}

/// Neither a restart nor a periodic comparison is needed.
#[test]
fn node_is_ready_after_forwarding_is_enabled() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let node = wire.node(1, true, false);
        make_read_only();
        set(&node, "net/ipv4/ip_forward", "0");
        let store = Store::embedded(CONF).and(&["--compare-every", "86400"]);
        let agent = Agent::start(&node, &store);
        for _ in 0..2 {
            agent.wait("the forwarding problem", lacks_forwarding);
            set(&node, "net/ipv4/ip_forward", "1");
            agent.wait("status.ready without problems", |status| {
                status.ready && status.problems.is_empty()
            });
            set(&node, "net/ipv4/ip_forward", "0");
        }
    });
}

/// Also one with no peers: checks of their paths lead to comparisons, too.
#[test]
fn unwritable_accept_ra_is_no_failure() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let node = wire.node(1, true, false);
        set_accept_ra(&node);
        make_read_only();
        let agent = Agent::start(&node, &Store::embedded(CONF));
        agent.wait("status.ready", |status| status.ready && status.problems.is_empty());
        assert_eq!(node.sh("cat /proc/sys/net/ipv6/conf/flannel.1/accept_ra"), "1\n");
    });
}

/// The default of a host that does not forward IPv6.
fn set_accept_ra(node: &Node) {
    node.sh("echo 0 > /proc/sys/net/ipv6/conf/all/forwarding
        echo 1 > /proc/sys/net/ipv6/conf/default/accept_ra");
}
