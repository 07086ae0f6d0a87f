// SPDX-License-Identifier: Apache-2.0
//! A node of ours and one of flannel's in one network.

use testkit::in_netns;

use crate::lab::{MTU, nodes, ping, ping_sizes};
use crate::{flannel, streams};

#[test]
fn node_of_flannel_and_ours_serve_each_other() {
    in_netns(|| {
        let [ours, theirs] = nodes();
        let tunnel = ours.start();
        assert_eq!(tunnel.set_peers(&theirs.peers()), []);
        let _flannel = flannel::start(&theirs, [192, 0, 2, 1]);
        let fits = MTU - 28;
        let sizes = [0, 1, 56, 1001, fits, fits + 1, 9000, 40_000];
        ping_sizes(&ours.pod, &theirs.pod_v4(), &sizes);
        ping_sizes(&theirs.pod, &ours.pod_v4(), &sizes);
        // Ours takes a hop as sender, theirs as sender and receiver.
        let answer = ping(&ours.pod, &theirs.pod_v4()).unwrap();
        assert!(answer.contains("ttl=61"), "{answer}");
        let answer = ping(&theirs.pod, &ours.pod_v4()).unwrap();
        assert!(answer.contains("ttl=60"), "{answer}");
        streams::exchange(&ours, &theirs, &theirs.pod_v4(), 2 << 20);
        streams::exchange(&theirs, &ours, &ours.pod_v4(), 2 << 20);
        let counts = tunnel.counts();
        assert!(counts.sent.large > 20 && counts.sent.bytes > 4 << 20, "{counts:?}");
        assert!(counts.received.bytes > 4 << 20, "{counts:?}");
    });
}
