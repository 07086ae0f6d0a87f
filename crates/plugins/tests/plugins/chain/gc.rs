// SPDX-License-Identifier: Apache-2.0
//! One GC for a thousand pods whose namespaces were deleted without DEL.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::json;
use testkit::in_netns;

use super::{Chain, full, left};
use crate::conf::ranges;
use crate::rules::ruleset;
use crate::world::{Plugins, World};

const PODS: usize = 1000;
/// Number of threads that run ADD. The 1000 pods share one bridge, which has at most 1023 ports.
const THREADS: usize = 8;

#[test]
fn gc_of_thousand_stale_pods_removes_everything() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, PODS + 1);
        let wide = ranges(&json!([[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]));
        let chain = Chain::new(&world, &ours, full(&json!({"ipam": wide})));
        let elsewhere = ranges(&json!([[{"subnet": "10.2.0.0/24"}]]));
        let other = json!({"name": "other", "bridge": "br1", "ipam": elsewhere});
        let other = Chain::new(&world, &ours, full(&other));
        // Host objects that do not belong to podwire and must survive.
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
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while let pod @ 1..=PODS = next.fetch_add(1, Ordering::Relaxed) {
                        chain.add(pod);
                    }
                });
            }
        });
        assert!(left(&world).len() > 10 * PODS, "too few objects for a thousand pods");
        // One batch, because one `ip` process per pod would take longer than the rest of the test.
        let lines: String = (1..=PODS).map(|pod| format!("netns del pod{pod}\n")).collect();
        std::fs::write("/run/gone", lines).expect("write a file in /run");
        world.on_host("-batch /run/gone");
        chain.gc(&[]);
        assert_eq!(left(&world), before);
        assert!(ruleset(&world.host).contains("tcp dport 22 accept"));
        other.check(PODS + 1, &kept);
        other.del(PODS + 1, &kept);
    });
}

#[test]
fn gc_with_valid_attachments_keeps_them() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 3);
        let chain = Chain::new(&world, &ours, full(&json!({})));
        let results = [1, 2, 3].map(|pod| chain.add(pod));
        chain.gc(&[("c1", "eth0"), ("c3", "eth0")]);
        chain.check(1, &results[0]);
        chain.check(3, &results[2]);
        chain.del(1, &results[0]);
        chain.del_without_netns_and_result(3);
        chain.gc(&[]);
        assert_eq!(left(&world), Vec::<String>::new());
    });
}
