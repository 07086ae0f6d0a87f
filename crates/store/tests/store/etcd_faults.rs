// SPDX-License-Identifier: Apache-2.0
//! Faults of etcd: killed, restarted, compacted, without leader, wiped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use store::etcd::Etcd;
use store::{Store, Watch, Watched};
use testkit::{in_netns, require, run, wait_some};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::lab::{LONG, View, block_on, done, events};
use crate::server::{Server, client, compact};

/// Runs a test with a cluster of `count` servers.
fn with_servers(count: u16, test: impl AsyncFnOnce(&mut [Server])) {
    in_netns(|| {
        require!(Program("etcd"), Program("etcdctl"));
        let dir = tempfile::tempdir().unwrap();
        let mut servers = Server::cluster(dir.path(), count);
        servers.iter_mut().for_each(Server::start);
        servers.iter().for_each(Server::wait);
        block_on(test(&mut servers));
    });
}

/// Follows a watch through errors until it has reached a revision. Returns `None` if it ends as compacted.
async fn follow(view: &mut View, watch: &mut dyn Watch, from: u64, until: u64) -> Option<u64> {
    let mut at = store::Revision(from);
    let all = async {
        while at.0 < until {
            match watch.next().await {
                Ok(Watched::Changes { events, .. }) => at = view.apply(events, at),
                Ok(Watched::Compacted) => return None,
                Err(error) => assert!(error.can_retry(), "{error:?}"),
            }
        }
        Some(at.0)
    };
    timeout(LONG * 2, all).await.expect("the watch continues")
}

/// State that writers share with the test.
#[derive(Default)]
struct Progress {
    must_stop: AtomicBool,
    /// Number of acknowledged writes.
    count: AtomicUsize,
}

impl Progress {
    /// Waits for a few more acknowledged writes.
    async fn advance(&self) {
        let before = self.count.load(Ordering::Relaxed);
        let some = async {
            while self.count.load(Ordering::Relaxed) < before + 5 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LONG, some).await.expect("writers continue");
    }
}

/// Creates keys through errors until the test ends. Returns the acknowledged keys.
fn writer(store: Etcd, name: &'static str, progress: Arc<Progress>) -> JoinHandle<Vec<String>> {
    tokio::spawn(async move {
        let mut acknowledged = Vec::new();
        for number in 0.. {
            if progress.must_stop.load(Ordering::Relaxed) {
                break;
            }
            let key = format!("k/{name}/{number}");
            match store.create(&key, b"x", None).await {
                Ok(written) => {
                    assert!(written.is_done(), "{key} belongs to this writer");
                    acknowledged.push(key);
                    progress.count.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => assert!(error.can_retry(), "{error:?}"),
            }
        }
        acknowledged
    })
}

#[test]
fn kills_during_churn_lose_no_write() {
    with_servers(1, async |servers| {
        let server = &mut servers[0];
        let store = client(&[server]);
        let (mut view, from) = View::list(&store, "k/").await;
        let mut watch = store.watch("k/", from);
        let progress = Arc::new(Progress::default());
        let writers = ["a", "b"].map(|name| writer(client(&[server]), name, Arc::clone(&progress)));
        for _ in 0..3 {
            progress.advance().await;
            server.kill();
            sleep(Duration::from_millis(300)).await;
            server.start();
            server.wait();
        }
        progress.advance().await;
        progress.must_stop.store(true, Ordering::Relaxed);
        let mut acknowledged = Vec::new();
        for writer in writers {
            acknowledged.extend(timeout(LONG, writer).await.unwrap().unwrap());
        }
        let last = done(store.create("k/last", b"", None).await);
        follow(&mut view, &mut *watch, from.0, last.0).await.unwrap();
        assert_eq!(view, View::list(&store, "k/").await.0);
        for key in acknowledged {
            assert!(view.0.contains_key(&key), "{key} is lost");
        }
    });
}

/// A node cannot reach etcd while other nodes change everything and etcd compacts its history.
#[test]
fn watch_ends_if_compacted_while_away() {
    with_servers(1, async |servers| {
        let server = &mut servers[0];
        let store = client(&[server]);
        let first = done(store.create("k", b"1", None).await);
        let mut watch = store.watch("k", first);
        let second = done(store.compare_and_swap("k", b"2", first, None).await);
        assert_eq!(events(&mut *watch, 1).await[0].revision(), second);
        // This node loses the connection; other nodes write later.
        server.kill();
        let error = watch.next().await.unwrap_err();
        assert!(error.can_retry(), "{error:?}");
        server.start();
        server.wait();
        server.ctl(&["put", "k", "3"]);
        server.ctl(&["put", "k", "4"]);
        compact(server).await;
        let seen = loop {
            match timeout(LONG, watch.next()).await.unwrap() {
                // This only reports the recovery.
                Ok(Watched::Changes { events, .. }) if events.is_empty() => {}
                Ok(seen) => break seen,
                Err(error) => assert!(error.can_retry(), "{error:?}"),
            }
        };
        assert_eq!(seen, Watched::Compacted);
        let (view, revision) = View::list(&store, "k").await;
        assert_eq!(view.0["k"].0, b"4");
        let mut watch = store.watch("k", revision);
        server.ctl(&["del", "k"]);
        events(&mut *watch, 1).await;
    });
}

/// The data was lost, so revisions start again below the known ones.
#[test]
fn watch_ends_if_wiped_while_away() {
    with_servers(1, async |servers| {
        let server = &mut servers[0];
        let store = client(&[server]);
        let mut newest = done(store.create("k", b"", None).await);
        for _ in 0..20 {
            newest = done(store.compare_and_swap("k", b"", newest, None).await);
        }
        let mut watch = store.watch("k", newest);
        assert!(timeout(Duration::from_millis(200), watch.next()).await.is_err());
        server.wipe();
        server.start();
        server.wait();
        let mut view = View::default();
        assert_eq!(follow(&mut view, &mut *watch, newest.0, u64::MAX).await, None);
        assert_eq!(View::list(&store, "").await.0, View::default());
    });
}

#[test]
fn loss_of_the_leader_loses_no_write() {
    with_servers(3, async |servers| {
        let store = client(&servers.iter().collect::<Vec<_>>());
        let (mut view, from) = View::list(&store, "k/").await;
        let mut watch = store.watch("k/", from);
        let progress = Arc::new(Progress::default());
        let second = client(&servers.iter().rev().collect::<Vec<_>>());
        let writer = writer(second, "a", Arc::clone(&progress));
        for _ in 0..3 {
            progress.advance().await;
            let leader = leader(servers);
            servers[leader].kill();
            sleep(Duration::from_secs(2)).await;
            servers[leader].start();
            servers[leader].wait();
        }
        progress.must_stop.store(true, Ordering::Relaxed);
        let acknowledged = timeout(LONG, writer).await.unwrap().unwrap();
        let last = done(store.create("k/last", b"", None).await);
        follow(&mut view, &mut *watch, from.0, last.0).await.unwrap();
        assert_eq!(view, View::list(&store, "k/").await.0);
        assert!(acknowledged.iter().all(|key| view.0.contains_key(key)));
    });
}

/// Without a majority nothing can be written or watched, and errors are reported until it is back.
#[test]
fn loss_of_the_majority_is_reported() {
    with_servers(3, async |servers| {
        let store = client(&servers.iter().collect::<Vec<_>>());
        let first = done(store.create("k", b"1", None).await);
        let mut watch = store.watch("k", first);
        assert!(timeout(Duration::from_millis(200), watch.next()).await.is_err());
        servers[0].kill();
        servers[1].kill();
        let error = timeout(LONG, watch.next()).await.unwrap().unwrap_err();
        assert!(error.can_retry(), "{error:?}");
        let error = store.compare_and_swap("k", b"2", first, None).await.unwrap_err();
        assert!(error.can_retry(), "{error:?}");
        servers[0].start();
        servers[0].wait();
        let second = done(store.compare_and_swap("k", b"2", first, None).await);
        let mut view = View::list(&store, "none").await.0;
        follow(&mut view, &mut *watch, first.0, second.0).await.unwrap();
        assert_eq!(view.0["k"].0, b"2");
    });
}

/// A server that hangs accepts connections and does not answer.
#[test]
fn hanging_server_is_skipped() {
    with_servers(3, async |servers| {
        let hung = (leader(servers) + 1) % 3;
        let others: Vec<_> = (0..3).filter(|number| *number != hung).collect();
        let store = client(&servers.iter().collect::<Vec<_>>());
        let mut at = done(client(&[&servers[others[0]]]).create("k", b"1", None).await);
        let mut watch = store.watch("k", at);
        let process = servers[hung].process().to_string();
        run("kill", &["-STOP", &process]);
        for value in [b"2", b"3", b"4"] {
            at = done(client(&[&servers[others[0]]]).compare_and_swap("k", value, at, None).await);
            let seen = timeout(LONG, events(&mut *watch, 1)).await.unwrap();
            assert_eq!(seen[0].revision(), at);
            assert_eq!(store.get("k").await.unwrap().unwrap().value, value);
        }
        run("kill", &["-CONT", &process]);
    });
}

fn leader(servers: &[Server]) -> usize {
    // `None` during an election.
    let leads = |server: &Server| {
        let status = server.ctl(&["endpoint", "status", "-w", "json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let status = &status[0]["Status"];
        status["leader"] == status["header"]["member_id"]
    };
    let leader = || servers.iter().position(|server| server.is_running() && leads(server));
    wait_some(LONG, leader).expect("the cluster has a leader")
}

/// Before the first answer the configuration may be wrong, so calls fail at once. Later calls wait for the server.
#[test]
fn first_call_fails_at_once_later_ones_wait() {
    with_servers(1, async |servers| {
        let store = client(&[&servers[0]]);
        servers[0].kill();
        // After a first answer a call would wait twice as long.
        let error = timeout(Duration::from_secs(5), store.list("")).await.expect("at once");
        let cause = std::error::Error::source(&error.unwrap_err()).unwrap().to_string();
        assert!(cause.contains("refused"), "{cause}");
        servers[0].start();
        servers[0].wait();
        store.list("").await.unwrap();
        servers[0].kill();
        assert!(timeout(Duration::from_secs(2), store.list("")).await.is_err());
    });
}
