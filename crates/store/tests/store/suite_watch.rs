// SPDX-License-Identifier: Apache-2.0
//! The suite that every store passes: watches.

use std::sync::Arc;
use std::time::Duration;

use store::{Event, Revision, Store, Watched, WriteResult};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::lab::{LONG, Lab, View, changes, done, events};

pub async fn watch_after_list_misses_nothing(lab: &dyn Lab) {
    let store = lab.open().await;
    let writers = churn(lab, 4, 25).await;
    // The writers are still running.
    let (mut view, revision) = View::list(&*store, "k/").await;
    let mut watch = store.watch("k/", revision);
    for writer in writers {
        writer.await.unwrap();
    }
    let last = done(store.create("k/last", b"", None).await);
    view.follow(&mut *watch, revision, last).await;
    let (expected, _) = View::list(&*store, "k/").await;
    assert_eq!(view, expected);
}

pub async fn watch_reports_other_handles_in_order(lab: &dyn Lab) {
    let (store, other) = (lab.open().await, lab.open().await);
    let mut watch = store.watch("", store.list("").await.unwrap().revision);
    let first = done(other.create("a", b"1", None).await);
    let (seen, at) = changes(&mut *watch).await;
    assert!(matches!(&seen[..], [Event::Put(entry)] if entry.value == b"1"), "{seen:?}");
    assert!(at >= first);
    let second = done(other.compare_and_swap("a", b"2", first, None).await);
    let third = done(other.delete("a", Some(second)).await);
    let fourth = done(store.create("a", b"4", None).await);
    let seen = events(&mut *watch, 3).await;
    assert_eq!((seen[0].revision(), seen[2].revision()), (second, fourth));
    assert!(matches!(seen[1], Event::Deleted { .. }));
    assert_eq!(seen[1].revision(), third);
}

pub async fn watch_reports_only_its_prefix(lab: &dyn Lab) {
    let store = lab.open().await;
    let mut watch = store.watch("k/", store.list("").await.unwrap().revision);
    for key in ["k", "k0", "j/x"] {
        done(store.create(key, b"", None).await);
    }
    done(store.create("k/x", b"", None).await);
    done(store.delete("k", None).await);
    done(store.delete("k/x", None).await);
    let seen = events(&mut *watch, 2).await;
    assert!(seen.iter().all(|event| event.key() == "k/x"), "{seen:?}");
}

pub async fn watch_from_old_revision_reports_all(lab: &dyn Lab) {
    let store = lab.open().await;
    let first = done(store.create("k", b"0", None).await);
    let mut newest = first;
    for value in 1..50_u8 {
        newest = done(store.compare_and_swap("k", &[value], newest, None).await);
    }
    let mut watch = store.watch("k", first);
    let seen = events(&mut *watch, 49).await;
    for (event, expected) in seen.iter().zip(1..50_u8) {
        assert!(matches!(event, Event::Put(entry) if entry.value == [expected]), "{event:?}");
    }
    assert_eq!(seen.last().unwrap().revision(), newest);
}

pub async fn watch_waits_for_the_next_change(lab: &dyn Lab) {
    let store = lab.open().await;
    let mut watch = store.watch("", store.list("").await.unwrap().revision);
    let early = timeout(Duration::from_millis(300), watch.next()).await;
    assert!(early.is_err(), "nothing has changed: {early:?}");
    let waiting = tokio::spawn(async move { changes(&mut *watch).await.0 });
    done(lab.open().await.create("k", b"", None).await);
    assert_eq!(timeout(LONG, waiting).await.unwrap().unwrap()[0].key(), "k");
}

/// The agent waits for many things at once, and cancels a wait whenever another one ends.
pub async fn cancelled_watch_loses_nothing(lab: &dyn Lab) {
    let store = lab.open().await;
    let (mut view, revision) = View::list(&*store, "k/").await;
    let mut watch = store.watch("k/", revision);
    let writers = churn(lab, 2, 30).await;
    let mut at = revision;
    while !writers.iter().all(JoinHandle::is_finished) {
        let limit = Duration::from_micros(at.0 % 7 * 300);
        if let Ok(watched) = timeout(limit, watch.next()).await {
            let Watched::Changes { events, .. } = watched.unwrap() else { panic!("compacted") };
            at = view.apply(events, at);
        }
    }
    let last = done(store.create("k/last", b"", None).await);
    view.follow(&mut *watch, at, last).await;
    let (expected, _) = View::list(&*store, "k/").await;
    assert_eq!(view, expected);
}

pub async fn watch_after_compaction_ends(lab: &dyn Lab) {
    let store = lab.open().await;
    let first = done(store.create("k", b"1", None).await);
    let second = done(store.compare_and_swap("k", b"2", first, None).await);
    done(store.compare_and_swap("k", b"3", second, None).await);
    lab.compact().await;
    let mut watch = store.watch("k", first);
    // The end is final.
    for _ in 0..2 {
        let seen = timeout(LONG, watch.next()).await.unwrap().unwrap();
        assert_eq!(seen, Watched::Compacted);
    }
    let (view, revision) = View::list(&*store, "k").await;
    assert_eq!(view.0["k"].0, b"3");
    let mut watch = store.watch("k", revision);
    done(store.delete("k", None).await);
    assert_eq!(events(&mut *watch, 1).await[0].key(), "k");
}

pub async fn current_watch_survives_compaction(lab: &dyn Lab) {
    let store = lab.open().await;
    let mut watch = store.watch("k", store.list("").await.unwrap().revision);
    let first = done(store.create("k", b"1", None).await);
    assert_eq!(events(&mut *watch, 1).await[0].revision(), first);
    lab.compact().await;
    let second = done(store.compare_and_swap("k", b"2", first, None).await);
    assert_eq!(events(&mut *watch, 1).await[0].revision(), second);
}

/// The data was lost, or another database has the same address.
pub async fn watch_from_future_revision_ends(lab: &dyn Lab) {
    let store = lab.open().await;
    let first = done(store.create("k", b"1", None).await);
    let mut watch = store.watch("k", Revision(first.0 + 1000));
    let seen = timeout(LONG, watch.next()).await.unwrap().unwrap();
    assert_eq!(seen, Watched::Compacted);
}

pub async fn all_watches_report_the_same(lab: &dyn Lab) {
    let store = lab.open().await;
    let from = store.list("").await.unwrap().revision;
    let mut followers = Vec::new();
    for _ in 0..8 {
        let mut watch = lab.open().await.watch("k/", from);
        followers.push(tokio::spawn(async move { events(&mut *watch, 40).await }));
    }
    for number in 0..40 {
        done(store.create(&format!("k/{number}"), b"", None).await);
    }
    let first = timeout(LONG, followers.remove(0)).await.unwrap().unwrap();
    assert_eq!(first.len(), 40);
    for follower in followers {
        assert_eq!(timeout(LONG, follower).await.unwrap().unwrap(), first);
    }
}

/// Starts tasks that create, change and delete a few shared keys.
async fn churn(lab: &dyn Lab, tasks: usize, steps: usize) -> Vec<JoinHandle<()>> {
    let mut writers = Vec::new();
    for task in 0..tasks {
        let store = lab.open().await;
        writers.push(tokio::spawn(async move {
            for step in 0..steps {
                churn_step(&store, task, step).await;
            }
        }));
    }
    writers
}

async fn churn_step(store: &Arc<dyn Store>, task: usize, step: usize) {
    let key = format!("k/{}", (task * 7 + step) % 5);
    let value = format!("{task}.{step}").into_bytes();
    if let WriteResult::Conflict(Some(present)) = store.create(&key, &value, None).await.unwrap() {
        // Another task may have been faster.
        if step.is_multiple_of(3) {
            store.delete(&key, Some(present.revision)).await.unwrap();
        } else {
            store.compare_and_swap(&key, &value, present.revision, None).await.unwrap();
        }
    }
}
