// SPDX-License-Identifier: Apache-2.0
//! What holds for every store: reading, conditions, races. `suite!` makes a test of each.

use std::sync::Arc;
use std::time::Duration;

use store::{Error, Event, Revision, Store, WriteResult};

use crate::lab::{Lab, View, conflict, done, events};

/// Defines all tests that every store has to pass. `$run` runs each of them with its own lab.
macro_rules! suite {
    ($run:path) => {
        crate::suite::suite!($run; suite:
            what_is_created_is_there,
            create_is_no_change_where_something_is,
            values_are_bytes,
            list_is_exactly_the_prefix,
            list_may_be_large,
            too_large_values_are_not_written,
            swap_needs_the_newest_revision,
            who_came_first_stays_so,
            nothing_can_be_swapped_for_something,
            delete_is_quiet_about_what_is_gone,
            delete_respects_a_change,
            empty_keys_are_refused,
            one_of_many_creates,
            no_increment_is_lost,
            subnets_are_given_once,
        );
        crate::suite::suite!($run; suite_ttl:
            time_to_live_ends,
            time_is_not_over_early,
            keeping_keeps_and_is_no_change,
            keeping_needs_the_newest_revision,
            keeping_what_stays_anyway,
            swap_replaces_the_time_to_live,
            one_of_many_gets_what_has_expired,
        );
        crate::suite::suite!($run; suite_watch:
            watch_misses_nothing_after_a_list,
            watch_sees_other_handles_in_order,
            watch_sees_its_prefix_only,
            watch_from_the_past,
            watch_waits_for_what_is_to_come,
            watch_that_is_interrupted_loses_nothing,
            watch_after_compaction_says_so,
            watch_that_is_up_to_date_survives_compaction,
            watch_from_the_future_says_so,
            many_watches_see_the_same,
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

pub async fn what_is_created_is_there(lab: &dyn Lab) {
    let store = lab.open().await;
    assert_eq!(store.get("/n/config").await.unwrap(), None);
    let revision = done(store.create("/n/config", b"{}", None).await);
    let found = lab.open().await.get("/n/config").await.unwrap().unwrap();
    assert_eq!((found.key.as_str(), found.value.as_slice()), ("/n/config", &b"{}"[..]));
    assert_eq!((found.revision, found.expires), (revision, false));
    assert_eq!(lab.witness("/n/"), [("/n/config".to_owned(), "{}".to_owned())]);
}

pub async fn create_is_no_change_where_something_is(lab: &dyn Lab) {
    let store = lab.open().await;
    let first = done(store.create("k", b"first", None).await);
    let present = conflict(store.create("k", b"second", None).await).unwrap();
    assert_eq!((present.value.as_slice(), present.revision), (&b"first"[..], first));
    let present = conflict(store.create("k", b"second", Some(Duration::from_secs(60))).await);
    assert_eq!(present.unwrap().revision, first);
    assert_eq!(lab.witness("k"), [("k".to_owned(), "first".to_owned())]);
}

pub async fn values_are_bytes(lab: &dyn Lab) {
    let store = lab.open().await;
    let large = vec![0xa5; lab.longest_value()];
    for (key, value) in [("empty", &b""[..]), ("odd", b"\0\xff\n"), ("large", &large)] {
        done(store.create(key, value, None).await);
        assert_eq!(store.get(key).await.unwrap().unwrap().value, value, "{key}");
    }
}

pub async fn list_is_exactly_the_prefix(lab: &dyn Lab) {
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

/// More than 4 MB, where the usual limit of gRPC lies.
pub async fn list_may_be_large(lab: &dyn Lab) {
    let store = lab.open().await;
    let value = vec![b'x'; lab.longest_value()];
    let count = 280;
    for number in 0..count {
        done(store.create(&format!("k/{number}"), &value, None).await);
    }
    let list = store.list("k/").await.unwrap();
    assert_eq!(list.entries.len(), count);
    assert!(list.entries.iter().all(|entry| entry.value == value));
}

/// No node would read it.
pub async fn too_large_values_are_not_written(lab: &dyn Lab) {
    let store = lab.open().await;
    let first = done(store.create("k", b"x", None).await);
    let large = vec![b'x'; store::limit::MAX_VALUE + 1];
    let refused = |result: Error| assert!(matches!(result, Error::Invalid(_)), "{result}");
    refused(store.create("l", &large, None).await.unwrap_err());
    refused(store.compare_and_swap("k", &large, first, None).await.unwrap_err());
    assert_eq!(store.get("l").await.unwrap(), None);
    assert_eq!(lab.witness("k"), [("k".to_owned(), "x".to_owned())]);
}

pub async fn swap_needs_the_newest_revision(lab: &dyn Lab) {
    let store = lab.open().await;
    let first = done(store.create("k", b"1", None).await);
    let second = done(store.compare_and_swap("k", b"2", first, None).await);
    assert!(second > first);
    let present = conflict(store.compare_and_swap("k", b"3", first, None).await).unwrap();
    assert_eq!((present.value.as_slice(), present.revision), (&b"2"[..], second));
    done(store.create("other", b"", None).await);
    // What happens to others does not matter.
    let third = done(store.compare_and_swap("k", b"2", second, None).await);
    assert_eq!(store.get("k").await.unwrap().unwrap().revision, third);
    assert_eq!(lab.witness("k"), [("k".to_owned(), "2".to_owned())]);
}

pub async fn who_came_first_stays_so(lab: &dyn Lab) {
    let store = lab.open().await;
    let before = store.list("").await.unwrap().revision;
    let older = done(store.create("older", b"1", None).await);
    done(store.create("younger", b"1", None).await);
    done(store.compare_and_swap("older", b"2", older, None).await);
    let entry = async |key| store.get(key).await.unwrap().unwrap();
    let (first, second) = (entry("older").await.created, entry("younger").await.created);
    assert!(first <= second, "{first} {second}");
    let seen = events(&mut *store.watch("older", before), 2).await;
    let told = |event: &Event| matches!(event, Event::Put(entry) if entry.created == first);
    assert!(seen.iter().all(told), "{seen:?}");
    done(store.delete("older", None).await);
    done(store.create("older", b"3", None).await);
    assert!(entry("older").await.created >= second, "it is another one");
}

pub async fn nothing_can_be_swapped_for_something(lab: &dyn Lab) {
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
        "it is another one"
    );
    assert_eq!(lab.witness("k"), [("k".to_owned(), "z".to_owned())]);
}

pub async fn delete_is_quiet_about_what_is_gone(lab: &dyn Lab) {
    let store = lab.open().await;
    let first = done(store.create("k", b"x", None).await);
    done(store.create("kk", b"y", None).await);
    let gone = done(store.delete("k", None).await);
    assert!(gone > first);
    assert!(done(store.delete("k", None).await) >= gone);
    assert!(done(store.delete("k", Some(first)).await) >= gone);
    assert_eq!(store.get("k").await.unwrap(), None);
    assert_eq!(lab.witness("k"), [("kk".to_owned(), "y".to_owned())]);
}

pub async fn delete_respects_a_change(lab: &dyn Lab) {
    let store = lab.open().await;
    let first = done(store.create("k", b"1", None).await);
    let second = done(store.compare_and_swap("k", b"2", first, None).await);
    let present = conflict(store.delete("k", Some(first)).await).unwrap();
    assert_eq!(present.revision, second);
    assert_eq!(store.get("k").await.unwrap().unwrap().value, b"2");
    done(store.delete("k", Some(second)).await);
    assert_eq!(lab.witness("k"), []);
}

pub async fn empty_keys_are_refused(lab: &dyn Lab) {
    let store = lab.open().await;
    for key in ["", "a\0b"] {
        let refused = |result: Error| assert!(matches!(result, Error::Invalid(_)), "{result}");
        refused(store.get(key).await.unwrap_err());
        refused(store.create(key, b"", None).await.unwrap_err());
        refused(store.compare_and_swap(key, b"", Revision(1), None).await.unwrap_err());
        refused(store.refresh_ttl(key, Revision(1)).await.unwrap_err());
        refused(store.delete(key, None).await.unwrap_err());
    }
}

/// Tasks that share no connection try to create the same key at once, again and again.
pub async fn one_of_many_creates(lab: &dyn Lab) {
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

/// Everybody tries to create the key with their number as value: who succeeded.
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

pub async fn no_increment_is_lost(lab: &dyn Lab) {
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
    assert_eq!(lab.witness("counter"), [("counter".to_owned(), total)]);
}

/// Adds one to the counter so many times, however many others do the same.
pub async fn increment(store: &dyn Store, times: u64) {
    let mut entry = store.get("counter").await.unwrap();
    let mut left = times;
    while left > 0 {
        let present = entry.expect("nobody deletes the counter");
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

/// Twenty nodes start at one instant, list, and each takes the first subnet that looks free.
pub async fn subnets_are_given_once(lab: &dyn Lab) {
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
        let free = all.into_iter().find(|key| !view.0.contains_key(key)).expect("one for each");
        if store.create(&free, node.to_string().as_bytes(), ttl).await.unwrap().is_done() {
            return free;
        }
    }
}
