// SPDX-License-Identifier: Apache-2.0
//! The suite that every store passes: times to live.

use std::time::{Duration, Instant};

use store::{Event, Revision, WriteResult};
use tokio::time::{sleep, timeout};

use crate::lab::{LONG, Lab, changes, conflict, done, events};
use crate::suite::race;

/// Longer than a few writes to a busy disk.
const TTL: Duration = Duration::from_secs(5);

pub async fn entry_expires_after_its_ttl(lab: &dyn Lab) {
    let store = lab.open().await;
    let created = done(store.create("lease", b"x", Some(TTL)).await);
    let reserved = done(store.create("reserved", b"y", None).await);
    let list = store.list("").await.unwrap();
    assert_eq!(list.entries.iter().map(|entry| entry.expires).collect::<Vec<_>>(), [true, false]);

    let mut watch = lab.open().await.watch("", created);
    let seen = events(&mut *watch, 2).await;
    assert!(matches!(&seen[0], Event::Put(entry) if !entry.expires && entry.revision == reserved));
    let Event::Deleted { key, revision } = &seen[1] else { panic!("not deleted: {seen:?}") };
    assert_eq!(key, "lease");
    let list = store.list("").await.unwrap();
    assert!(list.revision >= *revision);
    assert_eq!(lab.external_entries(""), [("reserved".to_owned(), "y".to_owned())]);
    // The key is free again.
    assert_eq!(conflict(store.compare_and_swap("lease", b"z", created, None).await), None);
    done(store.create("lease", b"z", None).await);
}

pub async fn entry_never_expires_early(lab: &dyn Lab) {
    let store = lab.open().await;
    let start = Instant::now();
    let created = done(store.create("lease", b"x", Some(TTL)).await);
    let mut watch = store.watch("", created);
    let (gone, _) = changes(&mut *watch).await;
    let lived = start.elapsed();
    assert!(matches!(gone[0], Event::Deleted { .. }), "{gone:?}");
    assert!(lived >= TTL, "gone after {lived:?}");
}

pub async fn refresh_prevents_expiry_without_event(lab: &dyn Lab) {
    let store = lab.open().await;
    let created = done(store.create("lease", b"x", Some(TTL)).await);
    let mut watch = lab.open().await.watch("", created);
    let start = Instant::now();
    while start.elapsed() < TTL * 3 / 2 {
        // Another handle refreshes it, as after a restart.
        assert_eq!(done(lab.open().await.refresh_ttl("lease", created).await), created);
        let early = timeout(TTL / 4, watch.next()).await;
        assert!(early.is_err(), "after {:?}: {early:?}", start.elapsed());
    }
    let entry = store.get("lease").await.unwrap().unwrap();
    assert_eq!((entry.revision, entry.expires), (created, true));
    let (gone, _) = changes(&mut *watch).await;
    assert!(matches!(gone[0], Event::Deleted { .. }), "{gone:?}");
}

pub async fn refresh_needs_the_newest_revision(lab: &dyn Lab) {
    let store = lab.open().await;
    assert_eq!(conflict(store.refresh_ttl("lease", Revision(1)).await), None);
    let first = done(store.create("lease", b"1", Some(LONG)).await);
    let second = done(store.compare_and_swap("lease", b"2", first, Some(LONG)).await);
    let present = conflict(store.refresh_ttl("lease", first).await).unwrap();
    assert_eq!((present.revision, present.value.as_slice()), (second, &b"2"[..]));
    assert_eq!(done(store.refresh_ttl("lease", second).await), second);
    done(store.delete("lease", None).await);
    assert_eq!(conflict(store.refresh_ttl("lease", second).await), None);
}

pub async fn refresh_of_entry_without_ttl_succeeds(lab: &dyn Lab) {
    let store = lab.open().await;
    let created = done(store.create("reserved", b"x", None).await);
    assert_eq!(done(store.refresh_ttl("reserved", created).await), created);
    assert!(!store.get("reserved").await.unwrap().unwrap().expires);
}

pub async fn swap_replaces_the_ttl(lab: &dyn Lab) {
    let store = lab.open().await;
    let longer = done(store.create("longer", b"x", Some(TTL)).await);
    let stays = done(store.create("stays", b"x", Some(TTL)).await);
    let ends = done(store.create("ends", b"x", None).await);
    let longer = done(store.compare_and_swap("longer", b"x", longer, Some(LONG)).await);
    let stays = done(store.compare_and_swap("stays", b"x", stays, None).await);
    let ends = done(store.compare_and_swap("ends", b"x", ends, Some(TTL)).await);

    let mut watch = store.watch("", ends);
    let (gone, _) = changes(&mut *watch).await;
    assert_eq!(gone.len(), 1, "{gone:?}");
    assert_eq!(gone[0].key(), "ends");
    // The other two would have expired by now without the swap. etcd checks every half second.
    sleep(Duration::from_secs(2)).await;
    let left = store.list("").await.unwrap().entries;
    let left: Vec<_> = left.iter().map(|entry| (entry.key.as_str(), entry.revision)).collect();
    assert_eq!(left, [("longer", longer), ("stays", stays)]);
    let entries = store.list("").await.unwrap().entries;
    assert_eq!(entries.iter().map(|entry| entry.expires).collect::<Vec<_>>(), [true, false]);
}

pub async fn expired_key_has_one_new_owner(lab: &dyn Lab) {
    let mut stores = Vec::new();
    for _ in 0..6 {
        stores.push(lab.open().await);
    }
    let start = Instant::now();
    done(stores[0].create("lease", b"old", Some(TTL)).await);
    let winners = loop {
        let winners = race(&stores, "lease", Some(LONG)).await;
        if !winners.is_empty() {
            break winners;
        }
        assert!(start.elapsed() < LONG, "the entry did not expire");
    };
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert!(start.elapsed() >= TTL, "{:?}", start.elapsed());
    let value = stores[0].get("lease").await.unwrap().unwrap().value;
    assert_eq!(value, winners[0].to_string().into_bytes());
    let lost = stores[0].create("lease", b"late", None).await.unwrap();
    assert!(matches!(lost, WriteResult::Conflict(Some(_))), "{lost:?}");
}
