// SPDX-License-Identifier: Apache-2.0
//! A podwire node and a flannel node in one network.

use testkit::in_netns;

use crate::lab::{MTU, nodes, ping, ping_sizes};
use crate::{flannel, streams};

#[test]
fn podwire_and_flannel_nodes_exchange_packets() {
    in_netns(|| {
        let [podwire, flannel_node] = nodes();
        let tunnel = podwire.start();
        assert_eq!(tunnel.set_peers(&flannel_node.peers()), []);
        let _flannel = flannel::start(&flannel_node, [192, 0, 2, 1]);
        let fits = MTU - 28;
        let sizes = [0, 1, 56, 1001, fits, fits + 1, 9000, 40_000];
        ping_sizes(&podwire.pod, &flannel_node.pod_v4(), &sizes);
        ping_sizes(&flannel_node.pod, &podwire.pod_v4(), &sizes);
        // podwire decrements the TTL when sending, flannel when sending and when receiving.
        let answer = ping(&podwire.pod, &flannel_node.pod_v4()).unwrap();
        assert!(answer.contains("ttl=61"), "{answer}");
        let answer = ping(&flannel_node.pod, &podwire.pod_v4()).unwrap();
        assert!(answer.contains("ttl=60"), "{answer}");
        streams::exchange(&podwire, &flannel_node, &flannel_node.pod_v4(), 2 << 20);
        streams::exchange(&flannel_node, &podwire, &podwire.pod_v4(), 2 << 20);
        let counts = tunnel.counts();
        assert!(counts.sent.large > 20 && counts.sent.bytes > 4 << 20, "{counts:?}");
        assert!(counts.received.bytes > 4 << 20, "{counts:?}");
    });
}
