// SPDX-License-Identifier: Apache-2.0
//! The suite that every store passes: reads, conditions, races. `suite!` defines the tests.

use std::sync::Arc;
use std::time::Duration;

use store::{Error, Event, Revision, Store, WriteResult};

use crate::lab::{Lab, View, conflict, done, events};

/// Defines all tests that every store has to pass. `$run` runs each of them with its own lab.
macro_rules! suite {
    ($run:path) => {
        crate::suite::suite!($run; suite:
            created_entry_is_visible,
            create_of_present_key_conflicts,
            values_are_bytes,
            list_contains_exactly_the_prefix,
            list_exceeds_grpc_default_limit,
            oversized_values_are_not_written,
            large_object_of_calico_is_kept,
            swap_needs_the_newest_revision,
            creation_revision_survives_changes,
            swap_of_absent_key_conflicts,
            delete_of_absent_key_succeeds,
            delete_needs_the_expected_revision,
            invalid_keys_are_rejected,
            concurrent_creates_have_one_winner,
            concurrent_swaps_lose_no_increment,
            concurrent_nodes_get_different_subnets,
        );
        crate::suite::suite!($run; suite_ttl:
            entry_expires_after_its_ttl,
            entry_never_expires_early,
            refresh_prevents_expiry_without_event,
            refresh_needs_the_newest_revision,
            refresh_of_entry_without_ttl_succeeds,
            swap_replaces_the_ttl,
            expired_key_has_one_new_owner,
        );
        crate::suite::suite!($run; suite_watch:
            watch_after_list_misses_nothing,
            watch_reports_other_handles_in_order,
            watch_reports_only_its_prefix,
            watch_from_old_revision_reports_all,
            watch_waits_for_the_next_change,
            cancelled_watch_loses_nothing,
            watch_after_compaction_ends,
            current_watch_survives_compaction,
            watch_from_future_revision_ends,
            all_watches_report_the_same,
        );
    };
    ($run:path; $module:ident: $($name:ident),+ $(,)?) => {
        $(#[test]
        fn $name() {
            $run(|lab| Box::pin(crate::$module::$name(lab)));
        })+
    };
}
pub(crate) use suite;

pub async fn created_entry_is_visible(lab: &dyn Lab) {
    let store = lab.open().await;
    assert_eq!(store.get("/n/config").await.unwrap(), None);
    let revision = done(store.create("/n/config", b"{}", None).await);
    let found = lab.open().await.get("/n/config").await.unwrap().unwrap();
    assert_eq!((found.key.as_str(), found.value.as_slice()), ("/n/config", &b"{}"[..]));
    assert_eq!((found.revision, found.expires), (revision, false));
    assert_eq!(lab.external_entries("/n/"), [("/n/config".to_owned(), "{}".to_owned())]);
}

pub async fn create_of_present_key_conflicts(lab: &dyn Lab) {
    let store = lab.open().await;
    let first = done(store.create("k", b"first", None).await);
    let present = conflict(store.create("k", b"second", None).await).unwrap();
    assert_eq!((present.value.as_slice(), present.revision), (&b"first"[..], first));
    let present = conflict(store.create("k", b"second", Some(Duration::from_secs(60))).await);
    assert_eq!(present.unwrap().revision, first);
    assert_eq!(lab.external_entries("k"), [("k".to_owned(), "first".to_owned())]);
}

pub async fn values_are_bytes(lab: &dyn Lab) {
    let store = lab.open().await;
    let large = vec![0xa5; store::limit::MAX_VALUE];
    for (key, value) in [("empty", &b""[..]), ("odd", b"\0\xff\n"), ("large", &large)] {
        done(store.create(key, value, None).await);
        assert_eq!(store.get(key).await.unwrap().unwrap().value, value, "{key}");
    }
}

pub async fn list_contains_exactly_the_prefix(lab: &dyn Lab) {
    let store = lab.open().await;
    let inside = [
        "/n/subnets/10.5.10.0-24&fd00:5:0:19::-64",
        "/n/subnets/10.5.37.0-24",
        "/n/subnets/\u{7f}",
        "/n/subnets/é\u{10ffff}",
    ];
    for key in ["/n/subnet", "/n/subnets", "/n/subnets0", "/o", "0"].iter().chain(&inside) {
        done(store.create(key, b"x", None).await);
    }
    let list = store.list("/n/subnets/").await.unwrap();
    let keys: Vec<_> = list.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, inside);
    assert_eq!(store.list("").await.unwrap().entries.len(), 9);
    assert_eq!(store.list("/none").await.unwrap().entries, []);
    assert!(list.entries.iter().all(|entry| entry.revision <= list.revision));
}

/// The default limit of gRPC is 4 MB.
pub async fn list_exceeds_grpc_default_limit(lab: &dyn Lab) {
    let store = lab.open().await;
    let value = vec![b'x'; store::limit::MAX_VALUE];
    let count = 280;
    for number in 0..count {
        done(store.create(&format!("k/{number}"), &value, None).await);
    }
    let list = store.list("k/").await.unwrap();
    assert_eq!(list.entries.len(), count);
    assert!(list.entries.iter().all(|entry| entry.value == value));
}

/// Every reader would drop such a value.
pub async fn oversized_values_are_not_written(lab: &dyn Lab) {
    let store = lab.open().await;
    let first = done(store.create("k", b"x", None).await);
    let large = vec![b'x'; store::limit::MAX_VALUE + 1];
    let check_invalid = |error: Error| assert!(matches!(error, Error::Invalid(_)), "{error}");
    check_invalid(store.create("l", &large, None).await.unwrap_err());
    check_invalid(store.compare_and_swap("k", &large, first, None).await.unwrap_err());
    assert_eq!(store.get("l").await.unwrap(), None);
    assert_eq!(lab.external_entries("k"), [("k".to_owned(), "x".to_owned())]);
}

/// A block of addresses may be as large as etcd allows.
pub async fn large_object_of_calico_is_kept(lab: &dyn Lab) {
    let store = lab.open().await;
    let before = store.list("/calico/").await.unwrap().revision;
    let (key, value) = ("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-20", vec![b'x'; 1_300_000]);
    done(store.create(key, &value, None).await);
    assert!(store.get(key).await.unwrap().unwrap().value == value);
    let list = store.list("/calico/").await.unwrap();
    assert!(list.entries[0].value == value && list.entries[0].too_large().is_none());
    let seen = events(&mut *store.watch("/calico/", before), 1).await;
    assert!(matches!(&seen[0], Event::Put(entry) if entry.value == value));
}

pub async fn swap_needs_the_newest_revision(lab: &dyn Lab) {
    let store = lab.open().await;
    let first = done(store.create("k", b"1", None).await);
    let second = done(store.compare_and_swap("k", b"2", first, None).await);
    assert!(second > first);
    let present = conflict(store.compare_and_swap("k", b"3", first, None).await).unwrap();
    assert_eq!((present.value.as_slice(), present.revision), (&b"2"[..], second));
    done(store.create("other", b"", None).await);
    // Changes of other keys do not matter.
    let third = done(store.compare_and_swap("k", b"2", second, None).await);
    assert_eq!(store.get("k").await.unwrap().unwrap().revision, third);
    assert_eq!(lab.external_entries("k"), [("k".to_owned(), "2".to_owned())]);
}

pub async fn creation_revision_survives_changes(lab: &dyn Lab) {
    let store = lab.open().await;
    let before = store.list("").await.unwrap().revision;
    let older = done(store.create("older", b"1", None).await);
    done(store.create("younger", b"1", None).await);
    done(store.compare_and_swap("older", b"2", older, None).await);
    let entry = async |key| store.get(key).await.unwrap().unwrap();
    let (first, second) = (entry("older").await.created, entry("younger").await.created);
    assert!(first <= second, "{first} {second}");
    let seen = events(&mut *store.watch("older", before), 2).await;
    let is_first = |event: &Event| matches!(event, Event::Put(entry) if entry.created == first);
    assert!(seen.iter().all(is_first), "{seen:?}");
    done(store.delete("older", None).await);
    done(store.create("older", b"3", None).await);
    assert!(entry("older").await.created >= second, "this is a new entry");
}

pub async fn swap_of_absent_key_conflicts(lab: &dyn Lab) {
    let store = lab.open().await;
    for expected in [Revision(0), Revision(1), Revision(u64::MAX)] {
        assert_eq!(conflict(store.compare_and_swap("k", b"x", expected, None).await), None);
    }
    let first = done(store.create("k", b"x", None).await);
    done(store.delete("k", None).await);
    assert_eq!(conflict(store.compare_and_swap("k", b"y", first, None).await), None);
    done(store.create("k", b"z", None).await);
    assert!(
        conflict(store.compare_and_swap("k", b"y", first, None).await).is_some(),
        "this is a new entry"
    );
    assert_eq!(lab.external_entries("k"), [("k".to_owned(), "z".to_owned())]);
}

pub async fn delete_of_absent_key_succeeds(lab: &dyn Lab) {
    let store = lab.open().await;
    let first = done(store.create("k", b"x", None).await);
    done(store.create("kk", b"y", None).await);
    let gone = done(store.delete("k", None).await);
    assert!(gone > first);
    assert!(done(store.delete("k", None).await) >= gone);
    assert!(done(store.delete("k", Some(first)).await) >= gone);
    assert_eq!(store.get("k").await.unwrap(), None);
    assert_eq!(lab.external_entries("k"), [("kk".to_owned(), "y".to_owned())]);
}

pub async fn delete_needs_the_expected_revision(lab: &dyn Lab) {
    let store = lab.open().await;
    let first = done(store.create("k", b"1", None).await);
    let second = done(store.compare_and_swap("k", b"2", first, None).await);
    let present = conflict(store.delete("k", Some(first)).await).unwrap();
    assert_eq!(present.revision, second);
    assert_eq!(store.get("k").await.unwrap().unwrap().value, b"2");
    done(store.delete("k", Some(second)).await);
    assert_eq!(lab.external_entries("k"), []);
}

pub async fn invalid_keys_are_rejected(lab: &dyn Lab) {
    let store = lab.open().await;
    for key in ["", "a\0b"] {
        let check_invalid = |error: Error| assert!(matches!(error, Error::Invalid(_)), "{error}");
        check_invalid(store.get(key).await.unwrap_err());
        check_invalid(store.create(key, b"", None).await.unwrap_err());
        check_invalid(store.compare_and_swap(key, b"", Revision(1), None).await.unwrap_err());
        check_invalid(store.refresh_ttl(key, Revision(1)).await.unwrap_err());
        check_invalid(store.delete(key, None).await.unwrap_err());
    }
}

/// Several tasks with separate connections try to create the same key, ten times.
pub async fn concurrent_creates_have_one_winner(lab: &dyn Lab) {
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(lab.open().await);
    }
    for round in 0..10 {
        let key = format!("round {round}");
        let winners = race(&stores, &key, None).await;
        assert_eq!(winners.len(), 1, "{key}: {winners:?}");
        let value = stores[0].get(&key).await.unwrap().unwrap().value;
        assert_eq!(value, winners[0].to_string().into_bytes());
    }
}

/// All stores try to create the key with their number as value. Returns the numbers of those that succeeded.
pub async fn race(stores: &[Arc<dyn Store>], key: &str, ttl: Option<Duration>) -> Vec<usize> {
    let mut tasks = Vec::new();
    for (number, store) in stores.iter().cloned().enumerate() {
        let key = key.to_owned();
        tasks.push(tokio::spawn(async move {
            store.create(&key, number.to_string().as_bytes(), ttl).await.unwrap().is_done()
        }));
    }
    let mut winners = Vec::new();
    for (number, task) in tasks.into_iter().enumerate() {
        if task.await.unwrap() {
            winners.push(number);
        }
    }
    winners
}

pub async fn concurrent_swaps_lose_no_increment(lab: &dyn Lab) {
    const TASKS: u64 = 6;
    const EACH: u64 = 20;
    let store = lab.open().await;
    done(store.create("counter", b"0", None).await);
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        let store = lab.open().await;
        tasks.push(tokio::spawn(async move { increment(&*store, EACH).await }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let total = (TASKS * EACH).to_string();
    assert_eq!(lab.external_entries("counter"), [("counter".to_owned(), total)]);
}

/// Increments the counter while other tasks do the same.
pub async fn increment(store: &dyn Store, times: u64) {
    let mut entry = store.get("counter").await.unwrap();
    let mut left = times;
    while left > 0 {
        let present = entry.expect("the counter is never deleted");
        let count: u64 = String::from_utf8(present.value).unwrap().parse().unwrap();
        let next = (count + 1).to_string().into_bytes();
        entry =
            match store.compare_and_swap("counter", &next, present.revision, None).await.unwrap() {
                WriteResult::Done(_) => {
                    left -= 1;
                    store.get("counter").await.unwrap()
                }
                WriteResult::Conflict(newer) => newer,
            };
    }
}

/// Twenty nodes start at the same time, list, and take the first free subnet.
pub async fn concurrent_nodes_get_different_subnets(lab: &dyn Lab) {
    let mut tasks = Vec::new();
    for node in 0..20 {
        let store = lab.open().await;
        tasks.push(tokio::spawn(async move { take_subnet(&*store, node).await }));
    }
    let mut taken = Vec::new();
    for task in tasks {
        taken.push(task.await.unwrap());
    }
    taken.sort();
    let expected: Vec<_> = (0..20).map(|number| format!("s/{number:02}")).collect();
    assert_eq!(taken, expected);
    let (view, _) = View::list(&*lab.open().await, "s/").await;
    assert_eq!(view.0.len(), 20);
}

async fn take_subnet(store: &dyn Store, node: usize) -> String {
    let ttl = Some(Duration::from_secs(3600));
    loop {
        let (view, _) = View::list(store, "s/").await;
        let all = (0..20).map(|number| format!("s/{number:02}"));
        let free = all
            .into_iter()
            .find(|key| !view.0.contains_key(key))
            .expect("there is one subnet for each node");
        if store.create(&free, node.to_string().as_bytes(), ttl).await.unwrap().is_done() {
            return free;
        }
    }
}
