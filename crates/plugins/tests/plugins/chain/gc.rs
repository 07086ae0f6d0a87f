// SPDX-License-Identifier: Apache-2.0
//! A thousand pods whose namespaces went without DEL, and one GC.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::json;
use testkit::in_netns;

use super::{Chain, full, left};
use crate::conf::ranges;
use crate::rules::ruleset;
use crate::world::{Plugins, World};

const PODS: usize = 1000;
/// A bridge has 1023 ports at most; one of the other network's is beside them.
const AT_ONCE: usize = 8;

#[test]
fn a_thousand_pods_are_forgotten_by_one_gc() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, PODS + 1);
        let wide = ranges(&json!([[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]));
        let chain = Chain::new(&world, &ours, full(&json!({"ipam": wide})));
        let elsewhere = ranges(&json!([[{"subnet": "10.2.0.0/24"}]]));
        let other = json!({"name": "other", "bridge": "br1", "ipam": elsewhere});
        let other = Chain::new(&world, &ours, full(&other));
        // What others have on the host.
        world.host.exec(
            "nft",
            &["add table inet theirs; add chain inet theirs c; \
                                  add rule inet theirs c tcp dport 22 accept"],
        );
        world.on_host("link add theirs0 type ifb");
        let kept = other.add(PODS + 1);
        let before = left(&world);
        let next = AtomicUsize::new(1);
        thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    while let pod @ 1..=PODS = next.fetch_add(1, Ordering::Relaxed) {
                        chain.add(pod);
                    }
                });
            }
        });
        assert!(left(&world).len() > 10 * PODS, "a thousand pods have left little");
        // A process for each would take longer than all the rest.
        let lines: String = (1..=PODS).map(|pod| format!("netns del pod{pod}\n")).collect();
        std::fs::write("/run/gone", lines).expect("a file below /run");
        world.on_host("-batch /run/gone");
        chain.gc(&[]);
        assert_eq!(left(&world), before);
        assert!(ruleset(&world.host).contains("tcp dport 22 accept"));
        other.check(PODS + 1, &kept);
        other.del(PODS + 1, &kept);
    });
}

#[test]
fn valid_attachments_are_kept() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 3);
        let chain = Chain::new(&world, &ours, full(&json!({})));
        let results = [1, 2, 3].map(|pod| chain.add(pod));
        chain.gc(&[("c1", "eth0"), ("c3", "eth0")]);
        chain.check(1, &results[0]);
        chain.check(3, &results[2]);
        chain.del(1, &results[0]);
        chain.del_blindly(3);
        chain.gc(&[]);
        assert_eq!(left(&world), Vec::<String>::new());
    });
}
