// SPDX-License-Identifier: Apache-2.0
//! Faults of the API server: killed, restarted, hanging, compacted, wiped.

use std::time::Duration;

use cluster::{AnnotationChanges, Cluster, Error, Event, Revision, WatchUpdate, Watcher};
use testkit::run;
use tokio::time::timeout;

use crate::server::{
    LONG, View, admin, block_on, events, get, list, prefixes, register, set, watch, with_server,
};

/// Follows a watch as its users do: lists again when the watch has expired, and continues after errors.
struct Follower {
    view: View,
    at: Revision,
    watcher: Watcher<cluster::Node>,
}

impl Follower {
    async fn new(cluster: &Cluster) -> Self {
        let (view, at) = View::list(cluster).await;
        Self { view, at, watcher: watch(cluster, at) }
    }

    async fn until_node(&mut self, cluster: &Cluster, name: &str) {
        let followed = async {
            while !self.view.0.contains_key(name) {
                match self.watcher.next().await {
                    Ok(WatchUpdate::Changes { events, .. }) => {
                        self.at = self.view.apply(&events, self.at);
                    }
                    Ok(WatchUpdate::Expired) => *self = Self::new(cluster).await,
                    Err(error) => assert!(error.can_retry(), "{error:?}"),
                }
            }
        };
        timeout(LONG * 2, followed).await.expect("the watch continues");
    }
}

#[test]
fn watch_continues_after_a_restart() {
    with_server(&[], |server| {
        block_on(async {
            let cluster = admin(server).await;
            let mut follower = Follower::new(&cluster).await;
            for round in 0..2 {
                let name = format!("before-{round}");
                register(server, &name);
                follower.until_node(&cluster, &name).await;
                let revision = get(&cluster, &name).await.revision;
                server.kill();
                let error = cluster.list::<cluster::Node>(&prefixes()).await.unwrap_err();
                assert!(error.can_retry(), "{error:?}");
                let changes: AnnotationChanges = [("a/b".to_owned(), None)].into();
                let error = cluster.annotate_node(&name, &changes, revision).await.unwrap_err();
                assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
                assert!(error.to_string().contains("https://127.0.0.1:6443"), "{error}");
                server.restart();
                let name = format!("after-{round}");
                register(server, &name);
                follower.until_node(&cluster, &name).await;
            }
            assert_eq!(follower.view, View::list(&cluster).await.0);
            assert_eq!(follower.view.0.len(), 4);
        });
    });
}

/// The server closes the connection, and nothing else listens on its port.
#[test]
fn watch_reports_a_killed_server() {
    with_server(&[], |server| {
        block_on(async {
            let cluster = admin(server).await;
            let mut watcher = watch(&cluster, list(&cluster).await.revision);
            assert!(timeout(Duration::from_millis(300), watcher.next()).await.is_err());
            server.kill();
            for _ in 0..2 {
                let error = timeout(LONG, watcher.next()).await.unwrap().unwrap_err();
                assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            }
        });
    });
}

/// A server that hangs keeps its connections open. Without a ping the watch would wait for 90 seconds.
#[test]
fn watch_reports_a_hanging_server_and_recovery() {
    with_server(&[], |server| {
        block_on(async {
            let cluster = admin(server).await;
            let mut watcher = watch(&cluster, list(&cluster).await.revision);
            assert!(timeout(Duration::from_millis(300), watcher.next()).await.is_err());
            let process = server.process().to_string();
            run("kill", &["-STOP", &process]);
            let reported = timeout(Duration::from_secs(25), watcher.next()).await;
            run("kill", &["-CONT", &process]);
            let error = reported.expect("the error is reported in time").unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            let recovered = timeout(LONG, watcher.next()).await.unwrap();
            assert!(matches!(recovered, Ok(WatchUpdate::Changes { .. })), "{recovered:?}");
        });
    });
}

/// Without bookmarks a quiet watch would fall behind the history that the server keeps.
#[test]
fn quiet_watch_receives_bookmarks() {
    with_server(&[], |server| {
        block_on(async {
            let cluster = admin(server).await;
            let mut watcher = watch(&cluster, list(&cluster).await.revision);
            register(server, "a");
            events(&mut watcher, 1).await;
            // The server sends no bookmark before a change that happens while the watch is open.
            register(server, "b");
            let created = events(&mut watcher, 1).await[0].revision();
            // The server sends one per minute.
            let update = timeout(LONG * 5, watcher.next()).await.unwrap().unwrap();
            let WatchUpdate::Changes { events, revision } = update else { panic!("{update:?}") };
            assert_eq!(events, []);
            assert!(revision >= created, "{revision} {created}");
        });
    });
}

#[test]
fn watch_expires_after_restart_and_compaction() {
    with_server(&[], |server| {
        block_on(async {
            let cluster = admin(server).await;
            register(server, "a");
            let first = get(&cluster, "a").await.revision;
            set(&cluster, "a", "2").await;
            let third = set(&cluster, "a", "3").await;
            server.etcd.ctl(&["compact", &third.to_string()]);
            server.restart();
            let mut watcher = watch(&cluster, first);
            // The end is final.
            for _ in 0..2 {
                let update = timeout(LONG, watcher.next()).await.unwrap().unwrap();
                assert_eq!(update, WatchUpdate::Expired);
            }
            let (view, revision) = View::list(&cluster).await;
            assert_eq!(view.0["a"].0.as_deref(), Some("3"));
            let mut watcher = watch(&cluster, revision);
            server.kubectl(&["delete", "node", "a"]);
            let seen = events(&mut watcher, 1).await;
            assert!(matches!(&seen[0], Event::Deleted { name, .. } if name == "a"), "{seen:?}");
        });
    });
}

/// The data was lost, so revisions start again below the known ones.
#[test]
fn watch_expires_after_the_cluster_was_wiped() {
    with_server(&[], |server| {
        block_on(async {
            let cluster = admin(server).await;
            register(server, "a");
            let newest = set(&cluster, "a", "1").await;
            // Far above the revisions of a new cluster after its start.
            let mut watcher = watch(&cluster, Revision(newest.0 + 100_000));
            server.kill();
            server.etcd.wipe();
            server.etcd.start();
            server.etcd.wait();
            server.restart();
            let update = loop {
                match timeout(LONG, watcher.next()).await.unwrap() {
                    Ok(update) => break update,
                    Err(error) => assert!(error.can_retry(), "{error:?}"),
                }
            };
            assert_eq!(update, WatchUpdate::Expired);
            assert_eq!(View::list(&cluster).await.0, View::default());
        });
    });
}
