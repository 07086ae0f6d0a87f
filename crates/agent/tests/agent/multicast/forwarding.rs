// SPDX-License-Identifier: Apache-2.0
//! Which packets are forwarded, to which nodes, and their content there.

use std::sync::atomic::Ordering;

use agent::multicast::DropReason;
use testkit::{Ns, in_netns, require, wait_for};

use super::lab::{Listener, TIMEOUT, running, send, sh};

const GROUP: &str = "UDP4-DATAGRAM:239.1.2.3:5000";
const JOIN: &str = "UDP4-RECV:5000,ip-add-membership=239.1.2.3:eth0";
const ALL: &str = "UDP4-DATAGRAM:255.255.255.255:6000,broadcast,so-bindtodevice=eth0";

#[test]
fn group_reaches_only_nodes_with_members() {
    in_netns(|| {
        require!(Program("socat"), Program("nft"));
        let (nodes, forwarders) = running();
        let [one, two, three] = [nodes[0].pod(2), nodes[1].pod(2), nodes[2].pod(2)];
        let listener = Listener::start(&two.ns, JOIN);
        let all = Listener::start(&two.ns, "UDP4-RECV:6000");
        let others = Listener::start(&three.ns, "UDP4-RECV:6000");
        listener.wait(&one.ns, "first", GROUP);
        assert_eq!(nodes[2].received(), 0, "no member there");
        // A broadcast reaches that node, too. When it arrives, no earlier packet is pending.
        others.wait(&one.ns, "all", ALL);
        others.expect(&one.ns, "before", ALL);
        let before = nodes[2].received();
        listener.expect(&one.ns, "second", GROUP);
        others.expect(&one.ns, "after", ALL);
        assert_eq!(nodes[2].received(), before + 1);
        // The last member leaves.
        drop(listener);
        forwarders[1].wait_for_groups(0);
        all.wait(&one.ns, "left", ALL);
        all.expect(&one.ns, "silence", ALL);
        // The other node learns that a moment later.
        let mut round = 0;
        wait_for("no packets of the group", TIMEOUT, || {
            let before = nodes[1].received();
            send(&one.ns, "unwanted", GROUP);
            send(&one.ns, "unwanted", GROUP);
            round += 1;
            all.expect(&one.ns, &format!("end-{round}."), ALL);
            nodes[1].received() == before + 1
        });
    });
}

#[test]
fn source_and_content_are_unchanged() {
    in_netns(|| {
        require!(Program("socat"));
        let (nodes, _forwarders) = running();
        let [one, two] = [nodes[0].pod(2), nodes[1].pod(2)];
        let receive = "UDP4-RECVFROM:5000,fork,ip-add-membership=239.1.2.3:eth0";
        let note = "SYSTEM:'echo $SOCAT_PEERADDR >> /run/from; cat >> /run/content'";
        let _listener = two.ns.start("socat", &["-u", "-b", "65536", receive, note]);
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        wait_for("the source address", TIMEOUT, || {
            send(&one.ns, "hello", GROUP);
            read("/run/from").contains(&one.address)
        });
        assert_eq!(read("/run/from").lines().next(), Some(one.address.as_str()));
        // A packet of the link's MTU, so that the outer datagram exceeds it; then a fragmented one.
        for size in [1472, 4000] {
            let before = read("/run/content").matches('x').count();
            sh(
                &one.ns,
                &format!("head -c {size} /dev/zero | tr '\\0' x | socat -u -b 65536 - {GROUP}"),
            );
            wait_for("the whole content", TIMEOUT, || {
                read("/run/content").matches('x').count() == before + size
            });
        }
    });
}

#[test]
fn broadcast_reaches_all_pods_of_all_nodes() {
    in_netns(|| {
        require!(Program("socat"));
        let (nodes, _forwarders) = running();
        let one = nodes[0].pod(2);
        let pods = [nodes[1].pod(2), nodes[1].pod(3), nodes[2].pod(2)];
        let listeners = pods.each_ref().map(|pod| Listener::start(&pod.ns, "UDP4-RECV:6000"));
        let subnet = "UDP4-DATAGRAM:10.244.1.255:6000,broadcast";
        let hosts = "UDP4-DATAGRAM:224.0.0.1:6000,so-bindtodevice=eth0";
        for (word, socket) in [("limited", ALL), ("subnet", subnet), ("hosts", hosts)] {
            for listener in &listeners {
                listener.wait(&one.ns, word, socket);
            }
        }
    });
}

#[test]
fn mdns_and_ipv6_groups_are_forwarded() {
    in_netns(|| {
        require!(Program("socat"));
        let (nodes, _forwarders) = running();
        let [one, two] = [nodes[0].pod(2), nodes[1].pod(2)];
        for (join, socket) in [
            (
                "UDP4-RECV:5353,ip-add-membership=224.0.0.251:eth0,reuseaddr",
                "UDP4-DATAGRAM:224.0.0.251:5353,so-bindtodevice=eth0",
            ),
            // From a link-local address, as is usual for link-local groups.
            (
                "UDP6-RECV:5354,ipv6-join-group=[ff02::fb]:eth0",
                "UDP6-DATAGRAM:[ff02::fb]:5354,so-bindtodevice=eth0",
            ),
            (
                "UDP6-RECV:5001,ipv6-join-group=[ff15::42]:eth0",
                "UDP6-DATAGRAM:[ff15::42]:5001,so-bindtodevice=eth0",
            ),
        ] {
            Listener::start(&two.ns, join).wait(&one.ns, "hello", socket);
        }
    });
}

#[test]
fn pod_cannot_impersonate_a_node() {
    in_netns(|| {
        require!(Program("socat"));
        let (nodes, forwarders) = running();
        let [one, two] = [nodes[0].pod(2), nodes[1].pod(2)];
        let listener = Listener::start(&two.ns, JOIN);
        listener.wait(&one.ns, "first", GROUP);
        listener.expect(&one.ns, "last", GROUP);
        let dropped = || forwarders[1].counters.dropped(DropReason::Forged);
        let delivered = || forwarders[1].counters.delivered.load(Ordering::Relaxed);
        // A datagram of the first node with a packet from 10.244.1.2 to the group.
        let header = format!("PWMC\\001\\001\\004\\030\\012\\364\\001{}", "\\000".repeat(13));
        let packet = "E\\000\\000\\042\\000\\000\\000\\000\\001\\021\\000\\000\\012\\364\\001\\002\
            \\357\\001\\002\\003\\023\\210\\023\\210\\000\\016\\000\\000forged";
        sh(&nodes[0].ns, &format!("printf '{header}{packet}' > /run/datagram"));
        let forge = |from: &Ns, more: &str| {
            sh(from, &format!("socat -u OPEN:/run/datagram UDP4-DATAGRAM:10.244.2.1:8287{more}"));
        };
        assert_eq!(dropped(), 0);
        forge(&one.ns, "");
        wait_for("the first drop", TIMEOUT, || dropped() == 1);
        // Earlier packets are counted by now.
        let before = delivered();
        // Datagrams from the node's own bridge are ignored, also with the address of another node.
        sh(&two.ns, "ip addr add 10.244.1.1/32 dev eth0");
        forge(&two.ns, ",bind=10.244.1.1");
        forge(&one.ns, "");
        wait_for("the second drop", TIMEOUT, || dropped() == 2);
        assert_eq!(delivered(), before);
        assert!(!listener.received().contains("forged"));
        // The same datagram from the node itself is valid.
        forge(&nodes[0].ns, ",bind=10.244.1.1");
        wait_for("the delivery", TIMEOUT, || delivered() == before + 1);
    });
}
