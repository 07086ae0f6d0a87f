// SPDX-License-Identifier: Apache-2.0
//! The source address of packets from a node to pods of another node, as docs/agent.md says.

use testkit::{Wire, can_ping, in_netns, wait_for};

use super::configuration::replace;
use super::{Member, Store, TIMEOUT, network};

const VXLAN: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;
const DIRECT: &str =
    r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan", "DirectRouting": true}}"#;

/// Drops packets that arrive by another interface than an answer would leave by.
const STRICT: &str = "for device in /proc/sys/net/ipv4/conf/*; do echo 1 > $device/rp_filter; done";

fn source(from: &Member, to: &Member) -> String {
    let found = from.node.ns.ip_json(&["route", "get", &to.pod.addresses[0].to_string()]);
    found[0]["prefsrc"].as_str().unwrap().to_owned()
}

#[test]
fn node_uses_the_tunnel_address_as_source() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let nodes = [1, 2].map(|number| wire.node(number, true, false));
        let members = network(nodes.into(), &Store::embedded(VXLAN));
        let [first, second] = &members[..] else { panic!("two") };
        let subnet = first.agent().hub.network().unwrap().lease.subnets[0];
        assert_eq!(source(first, second), subnet.addr().to_string());
        let pod = second.pod.addresses[0];
        let with_own = ["-nc1", "-W1", "-I", "192.168.90.1", &pod.to_string()];
        let reaches_with_own = || first.node.ns.try_exec("ping", &with_own).is_ok();
        wait_for("an answer to the tunnel's address", TIMEOUT, || can_ping(&first.node.ns, pod));
        assert!(reaches_with_own(), "an answer without a tunnel gets through on this wire");
        for member in &members {
            member.node.sh(STRICT);
        }
        assert!(can_ping(&first.node.ns, pod));
        assert!(!reaches_with_own(), "a strict filter drops the node's own address");

        replace(&first.node, &Store::embedded(DIRECT), &[]);
        let is_own = || source(first, second) == "192.168.90.1";
        wait_for("the node's own address as source", TIMEOUT, is_own);
        wait_for("direct routes on both nodes", TIMEOUT, || can_ping(&first.node.ns, pod));
    });
}
