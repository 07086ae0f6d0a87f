// SPDX-License-Identifier: Apache-2.0
//! The etcd store: the suite, and compatibility with `etcdctl`.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use store::etcd::{Etcd, EtcdConf};
use store::{Error, Event, Store};
use testkit::in_netns;

use crate::lab::{block_on, conflict, done, events};
use crate::server::{EtcdLab, client, in_etcd};
use crate::suite::suite;

suite!(in_etcd);

/// flannel makes one more request for every key, so 1,000 nodes cause 1,000 requests.
#[test]
fn list_and_watch_are_one_request_each() {
    in_netns(|| {
        let lab = EtcdLab::start();
        let server = &lab.server;
        block_on(async {
            let store = client(&[server]);
            let ttl = Some(Duration::from_secs(3600));
            for number in 0..100 {
                done(store.create(&format!("s/{number}"), b"{}", ttl).await);
            }
            let methods = ["Range", "Watch", "LeaseTimeToLive", "LeaseLeases"];
            let before = methods.map(|method| server.calls(method));
            let list = store.list("s/").await.unwrap();
            assert_eq!(list.entries.len(), 100);
            assert!(list.entries.iter().all(|entry| entry.expires));
            let mut watch = store.watch("s/", list.revision);
            for number in 0..100 {
                done(store.delete(&format!("s/{number}"), None).await);
            }
            assert_eq!(events(&mut *watch, 100).await.len(), 100);
            let after = methods.map(|method| server.calls(method));
            let calls: Vec<_> =
                after.iter().zip(before).map(|(after, before)| after - before).collect();
            assert_eq!(calls, [1, 1, 0, 0]);
        });
    });
}

/// `etcdctl` reads the leases of this store, and this store reads those of `etcdctl`.
#[test]
fn leases_are_compatible_with_etcdctl() {
    in_netns(|| {
        let lab = EtcdLab::start();
        let server = &lab.server;
        block_on(async {
            let store = client(&[server]);
            let ours = done(store.create("ours", b"x", Some(Duration::from_secs(86_400))).await);
            let leases = || -> Vec<String> {
                let list = server.ctl(&["lease", "list"]);
                list.lines().skip(1).map(str::to_owned).collect()
            };
            let of_ours = leases();
            assert_eq!(of_ours.len(), 1);
            let shown = server.ctl(&["lease", "timetolive", "--keys", &of_ours[0]]);
            assert!(shown.contains("granted with TTL(86400s)"), "{shown}");
            assert!(shown.contains("[ours]"), "{shown}");

            // The lease of a failed write is revoked.
            conflict(store.create("ours", b"y", Some(Duration::from_secs(60))).await);
            assert_eq!(leases(), of_ours);
            done(store.refresh_ttl("ours", ours).await);
            assert_eq!(leases(), of_ours);

            let grant = server.ctl(&["lease", "grant", "600"]);
            let lease = grant.split_whitespace().nth(1).unwrap();
            let mut watch = store.watch("theirs", ours);
            server.ctl(&["put", "--lease", lease, "theirs", "v"]);
            server.ctl(&["put", "theirs reserved", "v"]);
            let seen = events(&mut *watch, 2).await;
            assert!(matches!(&seen[0], Event::Put(entry) if entry.expires), "{seen:?}");
            assert!(matches!(&seen[1], Event::Put(entry) if !entry.expires), "{seen:?}");
            server.ctl(&["lease", "revoke", lease]);
            let seen = events(&mut *watch, 1).await;
            assert!(matches!(&seen[0], Event::Deleted { key, .. } if key == "theirs"), "{seen:?}");
        });
    });
}

#[test]
fn keys_that_are_not_utf8_are_ignored() {
    in_netns(|| {
        let lab = EtcdLab::start();
        let server = &lab.server;
        block_on(async {
            let store = client(&[server]);
            let first = done(store.create("k/a", b"", None).await);
            let put = format!(
                "printf 'k/\\377' | xargs -0 -I@ etcdctl --endpoints {} put @ v",
                server.endpoint()
            );
            testkit::run("sh", &["-c", &put]);
            done(store.create("k/b", b"", None).await);
            let list = store.list("k/").await.unwrap();
            assert_eq!(list.entries.len(), 2);
            let seen = events(&mut *store.watch("k/", first), 1).await;
            assert_eq!(seen[0].key(), "k/b");
        });
    });
}

#[test]
fn dead_and_silent_endpoints_are_skipped() {
    in_netns(|| {
        let lab = EtcdLab::start();
        let server = &lab.server;
        // Accepts connections and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = format!("http://{}", silent.local_addr().unwrap());
        block_on(async {
            for other in ["http://127.0.0.1:1", "http://192.0.2.1:2379", &silent] {
                let endpoints = vec![other.to_owned(), server.endpoint()];
                // The first endpoint is random.
                for _ in 0..3 {
                    let endpoints = endpoints.clone();
                    let store = Etcd::new(&EtcdConf { endpoints, ..EtcdConf::default() }).unwrap();
                    let start = Instant::now();
                    store.list("").await.unwrap();
                    assert!(start.elapsed() < Duration::from_secs(20), "{other}");
                }
            }
        });
    });
}

#[test]
fn unreachable_etcd_is_reported_with_addresses() {
    in_netns(|| {
        let endpoints = vec!["http://127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()];
        let store = Etcd::new(&EtcdConf { endpoints, ..EtcdConf::default() }).unwrap();
        block_on(async {
            let error = store.create("k", b"", None).await.unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            assert!(error.to_string().contains("127.0.0.1:1, 127.0.0.1:2"), "{error}");
            let mut watch = store.watch("k", store::Revision(1));
            // Every call reports the error and continues.
            for _ in 0..2 {
                let error = watch.next().await.unwrap_err();
                assert!(error.can_retry(), "{error:?}");
            }
        });
    });
}
