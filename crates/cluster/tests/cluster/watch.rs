// SPDX-License-Identifier: Apache-2.0
//! Watches and the reflector, without faults.

use std::time::Duration;

use cluster::{Cluster, Event, Mirror, Node, Reflector, Revision, Update, WatchUpdate, Write};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::server::{
    ApiServer, LONG, View, admin, annotate, block_on, changes, events, get, list, prefixes,
    register, set, value, watch, with_server,
};

/// Makes the server's etcd drop its history.
async fn compact(server: &ApiServer, revision: Revision) {
    server.etcd.ctl(&["compact", &revision.to_string()]);
}

/// Starts tasks that annotate a few shared nodes.
async fn churn(server: &ApiServer, tasks: usize, steps: usize) -> Vec<JoinHandle<()>> {
    let mut writers = Vec::new();
    for task in 0..tasks {
        let cluster = admin(server).await;
        writers.push(tokio::spawn(async move {
            for step in 0..steps {
                let name = format!("node-{}", (task * 7 + step) % 5);
                let revision = get(&cluster, &name).await.revision;
                // Another task may have been faster.
                annotate(&cluster, &name, &format!("{task}.{step}"), revision).await;
            }
        }));
    }
    writers
}

fn register_five(server: &ApiServer) {
    (0..5).for_each(|number| register(server, &format!("node-{number}")));
}

#[test]
fn watch_after_list_misses_nothing() {
    with_server(&[], |server| {
        register_five(server);
        block_on(async {
            let cluster = admin(server).await;
            let writers = churn(server, 4, 25).await;
            // The writers are still running.
            let (mut view, revision) = View::list(&cluster).await;
            let mut watcher = watch(&cluster, revision);
            for writer in writers {
                writer.await.unwrap();
            }
            let last = set(&cluster, "node-0", "last").await;
            view.follow(&mut watcher, revision, last).await;
            assert_eq!(view, View::list(&cluster).await.0);
        });
    });
}

#[test]
fn watch_reports_changes_of_other_clients_in_order() {
    with_server(&[], |server| {
        block_on(async {
            let (cluster, other) = (admin(server).await, admin(server).await);
            let mut watcher = watch(&cluster, list(&cluster).await.revision);
            register(server, "a");
            let created = get(&cluster, "a").await;
            assert_eq!(changes(&mut watcher).await, [Event::Applied(created)]);
            let second = set(&other, "a", "2").await;
            server.kubectl(&["delete", "node", "a"]);
            register(server, "a");
            let seen = events(&mut watcher, 3).await;
            assert_eq!(seen[0].revision(), second);
            let Event::Deleted { name, revision } = &seen[1] else { panic!("{seen:?}") };
            assert_eq!(name, "a");
            let recreated = get(&cluster, "a").await;
            assert!(*revision > second && *revision < recreated.revision, "{seen:?}");
            assert_eq!(seen[2], Event::Applied(recreated));
        });
    });
}

#[test]
fn watch_from_an_older_revision_reports_all_changes() {
    with_server(&[], |server| {
        register(server, "a");
        block_on(async {
            let cluster = admin(server).await;
            let first = get(&cluster, "a").await.revision;
            let mut newest = first;
            for number in 1..50 {
                let written = annotate(&cluster, "a", &number.to_string(), newest).await;
                let Write::Done(revision) = written else { panic!("only this test writes") };
                newest = revision;
            }
            let seen = events(&mut watch(&cluster, first), 49).await;
            for (event, expected) in seen.iter().zip(1..50) {
                let Event::Applied(object) = event else { panic!("{event:?}") };
                assert_eq!(value(object), Some(expected.to_string().as_str()));
            }
            assert_eq!(seen.last().unwrap().revision(), newest);
        });
    });
}

#[test]
fn watch_waits_for_the_next_change() {
    with_server(&[], |server| {
        block_on(async {
            let cluster = admin(server).await;
            let mut watcher = watch(&cluster, list(&cluster).await.revision);
            let early = timeout(Duration::from_millis(300), watcher.next()).await;
            assert!(early.is_err(), "nothing has changed: {early:?}");
            register(server, "a");
            assert_eq!(changes(&mut watcher).await[0].name(), "a");
        });
    });
}

/// The agent waits for many things at once, and cancels a wait whenever another one ends.
#[test]
fn cancelled_watch_loses_nothing() {
    with_server(&[], |server| {
        register_five(server);
        block_on(async {
            let cluster = admin(server).await;
            let (mut view, revision) = View::list(&cluster).await;
            let mut watcher = watch(&cluster, revision);
            let writers = churn(server, 2, 30).await;
            let mut at = revision;
            while !writers.iter().all(JoinHandle::is_finished) {
                let limit = Duration::from_micros(at.0 % 7 * 300);
                if let Ok(update) = timeout(limit, watcher.next()).await {
                    let WatchUpdate::Changes { events, .. } = update.unwrap() else {
                        panic!("expired")
                    };
                    at = view.apply(&events, at);
                }
            }
            let last = set(&cluster, "node-0", "last").await;
            view.follow(&mut watcher, at, last).await;
            assert_eq!(view, View::list(&cluster).await.0);
        });
    });
}

/// The server keeps no history of its own, so the compaction of etcd is visible.
#[test]
fn watch_after_compaction_expires() {
    with_server(&["--watch-cache-sizes=nodes#0"], |server| {
        register(server, "a");
        block_on(async {
            let cluster = admin(server).await;
            let first = get(&cluster, "a").await.revision;
            set(&cluster, "a", "2").await;
            let third = set(&cluster, "a", "3").await;
            compact(server, third).await;
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
            assert_eq!(events(&mut watcher, 1).await[0].name(), "a");
        });
    });
}

#[test]
fn current_watch_survives_compaction() {
    with_server(&[], |server| {
        register(server, "a");
        block_on(async {
            let cluster = admin(server).await;
            let mut watcher = watch(&cluster, list(&cluster).await.revision);
            let first = set(&cluster, "a", "1").await;
            assert_eq!(events(&mut watcher, 1).await[0].revision(), first);
            compact(server, first).await;
            let second = set(&cluster, "a", "2").await;
            assert_eq!(events(&mut watcher, 1).await[0].revision(), second);
        });
    });
}

/// The data of the cluster was lost, or another cluster has the same address.
#[test]
fn watch_from_a_future_revision_expires() {
    with_server(&[], |server| {
        block_on(async {
            let cluster = admin(server).await;
            let future = Revision(list(&cluster).await.revision.0 + 1000);
            let update = timeout(LONG, watch(&cluster, future).next()).await.unwrap().unwrap();
            assert_eq!(update, WatchUpdate::Expired);
        });
    });
}

#[test]
fn all_watches_report_the_same() {
    with_server(&[], |server| {
        register(server, "a");
        block_on(async {
            let cluster = admin(server).await;
            let from = list(&cluster).await.revision;
            let mut followers = Vec::new();
            for _ in 0..8 {
                let mut watcher = watch(&admin(server).await, from);
                followers.push(tokio::spawn(async move { events(&mut watcher, 40).await }));
            }
            for number in 0..40 {
                set(&cluster, "a", &number.to_string()).await;
            }
            let first = timeout(LONG, followers.remove(0)).await.unwrap().unwrap();
            assert_eq!(first.len(), 40);
            for follower in followers {
                assert_eq!(timeout(LONG, follower).await.unwrap().unwrap(), first);
            }
        });
    });
}

async fn next_update(reflector: &mut Reflector<Node>) -> Update<Node> {
    timeout(LONG, reflector.next()).await.expect("the reflector continues").unwrap()
}

fn names(mirror: &Mirror<Node>) -> Vec<String> {
    mirror.map(|object| object.name.clone())
}

#[test]
fn reflector_lists_and_follows() {
    with_server(&[], |server| {
        register(server, "a");
        block_on(async {
            let (cluster, mirror) = (admin(server).await, Mirror::default());
            let mut reflector = Reflector::new(cluster.clone(), prefixes(), mirror.clone());
            let Update::Replaced { revision } = next_update(&mut reflector).await else {
                panic!("the first update is a list");
            };
            assert_eq!(mirror.revision(), Some(revision));
            assert_eq!(names(&mirror), ["a"]);
            register(server, "b");
            next_update(&mut reflector).await;
            server.kubectl(&["delete", "node", "a"]);
            next_update(&mut reflector).await;
            assert_eq!(mirror.snapshot().unwrap().objects, list(&cluster).await.objects);
            assert_eq!(names(&mirror), ["b"]);
        });
    });
}

#[test]
fn reflector_lists_again_after_compaction() {
    with_server(&["--watch-cache-sizes=nodes#0"], |server| {
        register(server, "a");
        block_on(async {
            let (cluster, mirror) = (admin(server).await, Mirror::default());
            let snapshot = list(&cluster).await;
            let old = snapshot.revision;
            mirror.replace(snapshot);
            server.kubectl(&["delete", "node", "a"]);
            register(server, "b");
            compact(server, list(&cluster).await.revision).await;
            let cluster: Cluster = cluster.clone();
            let mut reflector = Reflector::resume(cluster, prefixes(), mirror.clone(), old);
            assert!(matches!(next_update(&mut reflector).await, Update::Replaced { .. }));
            assert_eq!(names(&mirror), ["b"]);
            register(server, "c");
            next_update(&mut reflector).await;
            assert_eq!(names(&mirror), ["b", "c"]);
        });
    });
}
