// SPDX-License-Identifier: Apache-2.0
//! Bridges, pods and agents that come and go.

use agent::multicast::Command;
use testkit::{in_netns, require, wait_for};

use super::lab::{Listener, PATIENCE, nodes, running, sh};

const GROUP: &str = "UDP4-DATAGRAM:239.1.2.3:5000";
const JOIN: &str = "UDP4-RECV:5000,ip-add-membership=239.1.2.3:eth0";

#[test]
fn bridge_may_come_late_and_go_and_come_again() {
    in_netns(|| {
        require!(Program("socat"));
        let nodes = nodes();
        let [a, b, c] = &nodes;
        let stations = [a.start(&[b, c]), b.start(&[a, c])];
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
            stations[1].wait_for_groups(0);
        }
    });
}

/// Pods that joined before are asked.
#[test]
fn agent_that_starts_late_finds_out_who_is_in_what() {
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
        // And once more after another restart of either.
        drop(second);
        let second = b.start(&[a, c]);
        second.wait_for_groups(2);
        listener.wait(&one.ns, "again", GROUP);
    });
}

#[test]
fn peer_that_has_left_is_sent_nothing() {
    in_netns(|| {
        require!(Program("socat"), Program("nft"));
        let (nodes, stations) = running();
        let [one, two, three] = [nodes[0].pod(2), nodes[1].pod(2), nodes[2].pod(2)];
        let listeners = [Listener::start(&two.ns, JOIN), Listener::start(&three.ns, JOIN)];
        for listener in &listeners {
            listener.wait(&one.ns, "hello", GROUP);
        }
        stations[0].tell(Command::Remove("node-3".to_owned()));
        wait_for("silence", PATIENCE, || {
            let seen = nodes[2].seen();
            let word = format!("word-{seen}");
            listeners[0].wait(&one.ns, &word, GROUP);
            nodes[2].seen() == seen
        });
        listeners[0].expect(&one.ns, "last", GROUP);
        assert!(!listeners[1].heard().contains("last"));
        // And it comes back; told all anew, what is known of others stays known.
        stations[0].tell(Command::Set(nodes[2].peer()));
        listeners[1].wait(&one.ns, "again", GROUP);
        let peers = vec![nodes[2].peer()];
        stations[0].tell(Command::Begin { subnets: nodes[0].subnets(), peers });
        wait_for("silence of the other", PATIENCE, || {
            let seen = nodes[1].seen();
            let word = format!("now-{seen}");
            listeners[1].wait(&one.ns, &word, GROUP);
            nodes[1].seen() == seen
        });
    });
}

/// Version 2 of IGMP has one pod answer for all, and a leave for the group.
#[test]
fn old_versions_are_understood() {
    in_netns(|| {
        require!(Program("socat"));
        let (nodes, stations) = running();
        let [one, two, other] = [nodes[0].pod(2), nodes[1].pod(2), nodes[1].pod(3)];
        for pod in [&two, &other] {
            sh(&pod.ns, "echo 2 > /proc/sys/net/ipv4/conf/eth0/force_igmp_version");
            sh(&pod.ns, "echo 1 > /proc/sys/net/ipv6/conf/eth0/force_mld_version");
        }
        let first = Listener::start(&two.ns, JOIN);
        let second = Listener::start(&other.ns, JOIN);
        first.wait(&one.ns, "hello", GROUP);
        drop(first);
        // The other one is asked, and stays.
        second.wait(&one.ns, "still", GROUP);
        drop(second);
        stations[1].wait_for_groups(0);
    });
}
