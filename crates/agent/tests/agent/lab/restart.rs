// SPDX-License-Identifier: Apache-2.0
//! An agent is away while peers come and go. Packets between those that stay go on meanwhile, and
//! afterwards the kernel has those that are there, and nothing of those that are not.

use testkit::{EtcdServer, Pinging, Wire, in_netns, wait_for};

use super::{Agent, Member, Store, TIMEOUT, all_reach_all, etcd, network};

const SUBNETS: &str = "/coreos.com/network/subnets/";

/// The node is switched off for good, and its lease has run out.
fn leaves(member: Member, server: &EtcdServer) {
    let subnet = member.agent().hub.network().unwrap().lease.subnets[0];
    drop(member);
    server.ctl(&["del", &format!("{SUBNETS}{}", subnet.to_string().replace('/', "-"))]);
}

fn peers_come_and_go_while_an_agent_is_away(backend: &str) {
    let wire = Wire::new();
    let server = etcd();
    let conf = format!(r#"{{"Network": "10.5.0.0/16", "Backend": {{"Type": "{backend}"}}}}"#);
    let store = Store::etcd(&server, &conf);
    let nodes = [1, 2, 3].map(|number| wire.node(number, true, false)).into();
    let mut members = network(nodes, &store);
    all_reach_all(&members, TIMEOUT);
    let leaving = members.pop().unwrap();
    let gone = leaving.pod.addresses[0].to_string();
    let gone = gone.strip_suffix('2').unwrap();
    let left = [gone, "192.168.90.3"];
    let mentions = |member: &Member, words: &[&str]| {
        member.node.kernel().iter().any(|line| words.iter().any(|word| line.contains(word)))
    };
    assert!(members.iter().all(|one| mentions(one, &left)), "the leaving node is known");

    let env = members[0].node.subnet_env();
    let pinging = Pinging::start(&members[0].pod.ns, members[1].pod.addresses[0]);
    drop(members[0].agent.take());
    leaves(leaving, &server);
    let newcomer = wire.node(4, true, false);
    let agent = Agent::start(&newcomer, &store);
    agent.wait("status.ready of the new node", |status| {
        status.ready && status.peers.counts.total == 2
    });
    members.push(Member { agent: Some(agent), pod: newcomer.pod(), node: newcomer });
    assert!(mentions(&members[0], &left), "its agent is stopped");
    // Subnets are chosen at random: the new node may get the released one.
    let is_given_again = members[2].pod.addresses[0].to_string().starts_with(gone);
    let left = if is_given_again { &left[1..] } else { &left };
    assert!(!members[0].node.kernel().iter().any(|line| line.contains("90.4")));

    members[0].agent = Some(Agent::start(&members[0].node, &store));
    all_reach_all(&members, TIMEOUT);
    for member in &members {
        wait_for("removal of stale entries", TIMEOUT, || !mentions(member, left));
    }
    let (sent, answered) = pinging.end();
    assert!(sent - answered <= 1, "{answered} of {sent} came back");
    assert_eq!(members[0].node.subnet_env(), env, "same subnet");
    assert_eq!(server.entries(SUBNETS).len(), 3);
}

#[test]
fn vxlan_restart_keeps_traffic() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        peers_come_and_go_while_an_agent_is_away("vxlan");
    });
}

#[test]
fn host_gw_restart_keeps_traffic() {
    in_netns(|| peers_come_and_go_while_an_agent_is_away("host-gw"));
}
