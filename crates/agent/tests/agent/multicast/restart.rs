// SPDX-License-Identifier: Apache-2.0
//! Bridges, pods and agents that appear and disappear.

use agent::multicast::Command;
use testkit::{in_netns, require, wait_for};

use super::lab::{Listener, TIMEOUT, nodes, running, sh};

const GROUP: &str = "UDP4-DATAGRAM:239.1.2.3:5000";
const JOIN: &str = "UDP4-RECV:5000,ip-add-membership=239.1.2.3:eth0";

#[test]
fn bridge_may_be_removed_and_recreated() {
    in_netns(|| {
        require!(Program("socat"));
        let nodes = nodes();
        let [a, b, c] = &nodes;
        let forwarders = [a.start(&[b, c]), b.start(&[a, c])];
        for _ in 0..2 {
            for node in [a, b] {
                node.make_bridge();
            }
            let [one, two] = [a.pod(2), b.pod(2)];
            let listener = Listener::start(&two.ns, JOIN);
            listener.wait(&one.ns, "hello", GROUP);
            for node in [a, b] {
                node.ns.ip(&["link", "del", "cni0"]);
                node.ns.ip(&["link", "del", "veth2"]);
            }
            forwarders[1].wait_for_groups(0);
        }
    });
}

/// The agent queries pods that joined before it started.
#[test]
fn restarted_agent_learns_existing_groups() {
    in_netns(|| {
        require!(Program("socat"));
        let nodes = nodes();
        let [a, b, c] = &nodes;
        a.make_bridge();
        b.make_bridge();
        let [one, two] = [a.pod(2), b.pod(2)];
        let listener = Listener::start(&two.ns, JOIN);
        let _v6 = Listener::start(&two.ns, "UDP6-RECV:5001,ipv6-join-group=[ff15::42]:eth0");
        let _first = a.start(&[b, c]);
        let second = b.start(&[a, c]);
        second.wait_for_groups(2);
        listener.wait(&one.ns, "hello", GROUP);
        // The same after another restart.
        drop(second);
        let second = b.start(&[a, c]);
        second.wait_for_groups(2);
        listener.wait(&one.ns, "again", GROUP);
    });
}

#[test]
fn removed_peer_gets_no_packets() {
    in_netns(|| {
        require!(Program("socat"), Program("nft"));
        let (nodes, forwarders) = running();
        let [one, two, three] = [nodes[0].pod(2), nodes[1].pod(2), nodes[2].pod(2)];
        let listeners = [Listener::start(&two.ns, JOIN), Listener::start(&three.ns, JOIN)];
        for listener in &listeners {
            listener.wait(&one.ns, "hello", GROUP);
        }
        forwarders[0].send(Command::RemovePeer("node-3".to_owned()));
        wait_for("no packets to the removed peer", TIMEOUT, || {
            let before = nodes[2].received();
            let word = format!("word-{before}");
            listeners[0].wait(&one.ns, &word, GROUP);
            nodes[2].received() == before
        });
        listeners[0].expect(&one.ns, "last", GROUP);
        assert!(!listeners[1].received().contains("last"));
        // The peer returns. A full list keeps what is known of the peers in it.
        forwarders[0].send(Command::SetPeer(nodes[2].peer()));
        listeners[1].wait(&one.ns, "again", GROUP);
        let peers = vec![nodes[2].peer()];
        forwarders[0].send(Command::SetNetwork { subnets: nodes[0].subnets(), peers });
        wait_for("no packets to the peer missing in the list", TIMEOUT, || {
            let before = nodes[1].received();
            let word = format!("now-{before}");
            listeners[1].wait(&one.ns, &word, GROUP);
            nodes[1].received() == before
        });
    });
}

/// With IGMPv2 one pod answers for all, and a leave message concerns the group.
#[test]
fn igmp_v2_and_mld_v1_work() {
    in_netns(|| {
        require!(Program("socat"));
        let (nodes, forwarders) = running();
        let [one, two, other] = [nodes[0].pod(2), nodes[1].pod(2), nodes[1].pod(3)];
        for pod in [&two, &other] {
            sh(&pod.ns, "echo 2 > /proc/sys/net/ipv4/conf/eth0/force_igmp_version");
            sh(&pod.ns, "echo 1 > /proc/sys/net/ipv6/conf/eth0/force_mld_version");
        }
        let first = Listener::start(&two.ns, JOIN);
        let second = Listener::start(&other.ns, JOIN);
        first.wait(&one.ns, "hello", GROUP);
        drop(first);
        // The remaining member answers the query.
        second.wait(&one.ns, "still", GROUP);
        drop(second);
        forwarders[1].wait_for_groups(0);
    });
}
