// SPDX-License-Identifier: Apache-2.0
//! A peer that becomes unreachable and recovers.

use agent::status::PathStatus;
use testkit::{Wire, in_netns, require};

use super::{Agent, Store, network};

const CONF: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;

/// Waits for a state of the path to the only peer.
#[track_caller]
fn wait_for_path(agent: &Agent, is_so: impl Fn(&PathStatus) -> bool) {
    agent.wait("the path status", |status| {
        status.peers.list.first().is_some_and(|peer| is_so(&peer.path))
    });
}

#[test]
fn unreachable_peer_recovers() {
    in_netns(|| {
        require!(Link("vxlan"), Program("nft"));
        let wire = Wire::new();
        let store = Store::embedded(CONF);
        let mut members =
            network([1, 2].map(|number| wire.node(number, true, false)).into(), &store);
        wait_for_path(members[0].agent(), |path| path.last_contact.is_some());

        drop(members[0].agent.take());
        members[1].node.ns.exec(
            "nft",
            &["add table inet silent; add chain inet silent in { type filter hook input priority 0; }; \
               add rule inet silent in udp dport 8472 drop"],
        );
        let agent = Agent::start(&members[0].node, &store);
        wait_for_path(&agent, |path| path.problem.as_deref() == Some("it does not answer"));
        members[1].node.ns.exec("nft", &["delete table inet silent"]);
        wait_for_path(&agent, |path| path.problem.is_none() && path.last_contact.is_some());
        members[0].agent = Some(agent);
    });
}
