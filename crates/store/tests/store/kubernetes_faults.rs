// SPDX-License-Identifier: Apache-2.0
//! The nodes of Kubernetes while its API server has a bad day: killed, restarted, compacted, wiped.

use std::time::Duration;

use store::kubernetes::{Kubernetes, Node};
use store::{Event, Revision, Store, Watch, Watched};
use testkit::run;
use tokio::time::timeout;

use crate::api_server::{PREFIX, admin, with_server};
use crate::lab::{LONG, Lab, View, block_on, done, events};

fn value(text: &str) -> Vec<u8> {
    let annotations = [(format!("{PREFIX}public-ip"), text.to_owned())].into();
    Node { annotations, ..Node::default() }.write()
}

/// As every user of a store does: lists again when told to, goes on through errors, and ends when the
/// view has this many nodes.
struct Follower {
    view: View,
    at: Revision,
    watch: Box<dyn Watch>,
}

impl Follower {
    async fn new(store: &Kubernetes) -> Self {
        let (view, at) = View::list(store, "nodes/").await;
        Self { view, at, watch: store.watch("nodes/", at) }
    }

    async fn until(&mut self, store: &Kubernetes, has_all: impl Fn(&View) -> bool) {
        let all = async {
            while !has_all(&self.view) {
                match self.watch.next().await {
                    Ok(Watched::Changes { events, .. }) => {
                        self.at = self.view.apply(events, self.at);
                    }
                    Ok(Watched::Compacted) => *self = Self::new(store).await,
                    Err(error) => assert!(error.can_retry(), "{error:?}"),
                }
            }
        };
        timeout(LONG * 2, all).await.expect("the watch goes on");
    }
}

#[test]
fn watch_goes_on_after_a_restart() {
    with_server(&[], |server| {
        block_on(async {
            let store = admin(server).await;
            let mut follower = Follower::new(&store).await;
            for round in 0..2 {
                let key = format!("nodes/before-{round}");
                done(store.create(&key, &value("1"), None).await);
                follower.until(&store, |view| view.0.contains_key(&key)).await;
                server.kill();
                let error = store.list("nodes/").await.unwrap_err();
                assert!(error.can_retry(), "{error:?}");
                let error = store.create("nodes/x", &value("1"), None).await.unwrap_err();
                assert!(matches!(error, store::Error::Unavailable { .. }), "{error:?}");
                assert!(error.to_string().contains("https://127.0.0.1:6443"), "{error}");
                server.restart();
                let key = format!("nodes/after-{round}");
                done(store.create(&key, &value("1"), None).await);
                follower.until(&store, |view| view.0.contains_key(&key)).await;
            }
            assert_eq!(follower.view, View::list(&store, "nodes/").await.0);
            assert_eq!(follower.view.0.len(), 4);
        });
    });
}

/// Nobody hears of a server that is gone but by asking: the watch says so, and goes on.
#[test]
fn watch_tells_that_nobody_is_there() {
    with_server(&[], |server| {
        block_on(async {
            let store = admin(server).await;
            let mut watch = store.watch("", store.list("").await.unwrap().revision);
            assert!(timeout(Duration::from_millis(300), watch.next()).await.is_err());
            server.kill();
            for _ in 0..2 {
                let error = timeout(LONG, watch.next()).await.unwrap().unwrap_err();
                assert!(matches!(error, store::Error::Unavailable { .. }), "{error:?}");
            }
        });
    });
}

/// One that hangs keeps its connections: who only waits would wait for a minute and a half.
#[test]
fn server_that_hangs_is_told_and_so_is_that_it_goes_on() {
    with_server(&[], |server| {
        block_on(async {
            let store = admin(server).await;
            let mut watch = store.watch("", store.list("").await.unwrap().revision);
            assert!(timeout(Duration::from_millis(300), watch.next()).await.is_err());
            let process = server.process().to_string();
            run("kill", &["-STOP", &process]);
            let told = timeout(Duration::from_secs(25), watch.next()).await;
            run("kill", &["-CONT", &process]);
            let error = told.expect("it is told in time").unwrap_err();
            assert!(matches!(error, store::Error::Unavailable { .. }), "{error:?}");
            let goes_on = timeout(LONG, watch.next()).await.unwrap();
            assert!(matches!(goes_on, Ok(Watched::Changes { .. })), "{goes_on:?}");
        });
    });
}

/// Without that a watch where nothing happens would soon be from before what the server remembers.
#[test]
fn quiet_watch_is_told_how_far_the_server_has_come() {
    with_server(&[], |server| {
        block_on(async {
            let store = admin(server).await;
            let first = done(store.create("nodes/quiet", &value("1"), None).await);
            let mut watch = store.watch("nodes/quiet", Revision(first.0 - 1));
            events(&mut *watch, 1).await;
            let other = done(store.create("nodes/other", &value("1"), None).await);
            // Once a minute.
            let seen = timeout(LONG * 5, watch.next()).await.unwrap().unwrap();
            let Watched::Changes { events, revision } = seen else { panic!("{seen:?}") };
            assert_eq!(events, []);
            assert!(revision >= other, "{revision} {other}");
        });
    });
}

#[test]
fn history_that_etcd_has_forgotten_is_said_to_be() {
    with_server(&[], |server| {
        block_on(async {
            let store = admin(server).await;
            let first = done(store.create("nodes/a", &value("1"), None).await);
            let second = done(store.swap("nodes/a", &value("2"), first, None).await);
            done(store.swap("nodes/a", &value("3"), second, None).await);
            server.compact().await;
            server.restart();
            let mut watch = store.watch("nodes/", first);
            // And does not say anything else ever again.
            for _ in 0..2 {
                let seen = timeout(LONG, watch.next()).await.unwrap().unwrap();
                assert_eq!(seen, Watched::Compacted);
            }
            let (view, revision) = View::list(&store, "nodes/").await;
            assert_eq!(view.0["nodes/a"].0, value("3"));
            let mut watch = store.watch("nodes/", revision);
            server.kubectl(&["delete", "node", "a"]);
            let seen = events(&mut *watch, 1).await;
            assert!(matches!(&seen[0], Event::Deleted { key, .. } if key == "nodes/a"), "{seen:?}");
        });
    });
}

/// The data was lost: revisions start again below those that we know.
#[test]
fn wiped_cluster_is_another_one() {
    with_server(&[], |server| {
        block_on(async {
            let store = admin(server).await;
            let mut newest = done(store.create("nodes/a", &value("0"), None).await);
            for number in 1..40 {
                let next = value(&number.to_string());
                newest = done(store.swap("nodes/a", &next, newest, None).await);
            }
            // Far above what a new cluster has after its start.
            let far = Revision(newest.0 + 100_000);
            let mut watch = store.watch("nodes/", far);
            server.kill();
            server.etcd.wipe();
            server.etcd.start();
            server.etcd.wait();
            server.restart();
            let seen = loop {
                match timeout(LONG, watch.next()).await.unwrap() {
                    Ok(seen) => break seen,
                    Err(error) => assert!(error.can_retry(), "{error:?}"),
                }
            };
            assert_eq!(seen, Watched::Compacted);
            assert_eq!(View::list(&store, "").await.0, View::default());
        });
    });
}
