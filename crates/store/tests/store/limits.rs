// SPDX-License-Identifier: Apache-2.0
//! Oversized values of other programs: lists and watches report the key and leave the value out.

use std::fs;
use std::path::Path;

use store::embedded::Embedded;
use store::limit::{MAX_ENTRIES, MAX_KEY, MAX_VALUE};
use store::{Entry, Error, Event, Store, Watched};
use testkit::{in_netns, require, run};
use tokio::time::timeout;

use crate::embedded::sqlite;
use crate::lab::{LONG, block_on, done, events};
use crate::server::{Server, client};

/// Returns keys, lengths of values, and the reported sizes of dropped values.
fn summary(entries: &[Entry]) -> Vec<(&str, usize, Option<u64>)> {
    entries.iter().map(|one| (one.key.as_str(), one.value.len(), one.oversized)).collect()
}

#[test]
fn file_list_leaves_out_oversized_values() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("podwire.db");
    block_on(async {
        let store = Embedded::open(&path).await.unwrap();
        let before = done(store.create("k/1", b"x", None).await);
        let edge = MAX_VALUE;
        sqlite(
            &path,
            &format!(
                "BEGIN; UPDATE head SET revision = revision + 3;
                 INSERT INTO entry SELECT 'k/2', zeroblob(1000000), revision - 2, revision - 2, NULL, NULL FROM head;
                 INSERT INTO entry SELECT 'k/3', zeroblob({edge}), revision - 1, revision - 1, NULL, NULL FROM head;
                 INSERT INTO entry SELECT 'k/4', 'text', revision, revision, NULL, NULL FROM head;
                 INSERT INTO event SELECT revision, key, value, created, 0 FROM entry WHERE key > 'k/1';
                 COMMIT"
            ),
        );
        let all =
            [("k/1", 1, None), ("k/2", 0, Some(1_000_000)), ("k/3", edge, None), ("k/4", 4, None)];
        let list = store.list("k/").await.unwrap();
        assert_eq!(summary(&list.entries), all);
        let found = store.get("k/2").await.unwrap().unwrap();
        assert_eq!(summary(std::slice::from_ref(&found)), all[1..2]);
        let reason = found.too_large().unwrap();
        assert_eq!(reason, "its value has at least 1000000 bytes; the limit is 16384");
        let seen = events(&mut *store.watch("k/", before), 3).await;
        let entries: Vec<Entry> = seen.into_iter().map(put).collect();
        assert_eq!(summary(&entries), all[1..]);
        // It can be replaced and deleted like any other entry.
        done(store.compare_and_swap("k/2", b"y", found.revision, None).await);
        done(store.delete("k/2", None).await);
    });
}

fn put(event: Event) -> Entry {
    match event {
        Event::Put(entry) => entry,
        other => panic!("{other:?}"),
    }
}

#[test]
fn list_with_too_many_entries_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("podwire.db");
    block_on(async {
        let store = Embedded::open(&path).await.unwrap();
        let fill = format!(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {MAX_ENTRIES})
             INSERT INTO entry SELECT 'k/' || i, x'', 1, 1, NULL, NULL FROM n"
        );
        sqlite(&path, &fill);
        let error = store.list("k/").await.unwrap_err();
        let Error::Refused { cause, .. } = error else { panic!("{error:?}") };
        let cause = cause.to_string();
        assert!(cause.starts_with("list \"k/\": the store has more than 65536 entries"), "{cause}");
        sqlite(&path, "DELETE FROM entry WHERE key = 'k/7'");
        assert_eq!(store.list("k/").await.unwrap().entries.len(), MAX_ENTRIES);
    });
}

/// Writes through etcd's HTTP gateway, because etcdctl sends at most 2 MB.
fn put_in_etcd(server: &Server, dir: &Path, key: &str, length: usize) {
    let text = dir.join("put.json");
    // Four characters of base64 encode three zero bytes.
    let (value, key) = ("AAAA".repeat(length / 3), base64(key.as_bytes()));
    fs::write(&text, format!(r#"{{"key":"{key}","value":"{value}"}}"#)).unwrap();
    let (url, data) = (format!("{}/v3/kv/put", server.endpoint()), format!("@{}", text.display()));
    let answer = run("curl", &["-sS", "-m", "60", "--data-binary", &data, &url]);
    assert!(answer.contains("revision"), "{answer}");
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |part: &[u8]| {
        let bits =
            (0..3).fold(0_usize, |bits, at| bits << 8 | usize::from(*part.get(at).unwrap_or(&0)));
        let digit = |at: usize| match at <= part.len() {
            true => char::from(DIGITS[bits >> (18 - 6 * at) & 63]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(digits).collect()
}

/// Several values, and then one value, that exceed the size of one answer.
#[test]
fn etcd_list_leaves_out_oversized_values() {
    in_netns(|| {
        require!(Program("etcd"), Program("etcdctl"), Program("curl"));
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::cluster(dir.path(), 1).remove(0);
        // etcd derives the timeout of a write from this flag, 15 s here: a busy disk needs long for megabytes.
        server.add_flags(&["--election-timeout", "5000"]);
        server.start();
        server.wait();
        block_on(async {
            let store = client(&[&server]);
            let before = done(store.create("k/0", b"x", None).await);
            for number in 1..=6 {
                put_in_etcd(&server, dir.path(), &format!("k/{number}"), 1_500_000);
            }
            let last = done(store.create("k/8", b"y", None).await);
            let large = |number| (format!("k/{number}"), 0, Some(1_500_000));
            let mut all = vec![("k/0".to_owned(), 1, None)];
            all.extend((1..=6).map(large));
            all.push(("k/8".to_owned(), 1, None));
            let owned = |entries: &[Entry]| -> Vec<(String, usize, Option<u64>)> {
                summary(entries)
                    .into_iter()
                    .map(|(key, at, over)| (key.to_owned(), at, over))
                    .collect()
            };
            let list = store.list("k/").await.unwrap();
            assert_eq!(owned(&list.entries), all);
            assert_eq!(list.revision, last);
            let seen = events(&mut *store.watch("k/", before), 7).await;
            assert_eq!(owned(&seen.into_iter().map(put).collect::<Vec<_>>()), all[1..]);

            // One value that fits in no answer: the watch cannot continue, but a list can leave it out.
            server.kill();
            server.add_flags(&["--max-request-bytes", "20000000"]);
            server.start();
            server.wait();
            put_in_etcd(&server, dir.path(), "k/7", 9_000_000);
            let mut watch = store.watch("k/", last);
            let watched = timeout(LONG, watch.next()).await.unwrap().unwrap();
            assert_eq!(watched, Watched::Compacted);
            all.insert(7, ("k/7".to_owned(), 0, Some(8 << 20)));
            let list = store.list("k/").await.unwrap();
            assert_eq!(owned(&list.entries), all);
            let found = store.get("k/7").await.unwrap().unwrap();
            assert_eq!(found.oversized, Some(8 << 20));
            server.ctl(&["del", "k/7"]);
            let seen = events(&mut *store.watch("k/", list.revision), 1).await;
            assert!(matches!(&seen[0], Event::Deleted { key, .. } if key == "k/7"), "{seen:?}");
        });
    });
}

/// With more entries than fit in one page, and one oversized key.
#[test]
fn etcd_list_spans_several_pages() {
    in_netns(|| {
        let lab = crate::server::EtcdLab::start();
        let server = &lab.server;
        block_on(async {
            let store = client(&[server]);
            let long = format!("k/{}", "x".repeat(2 * MAX_KEY));
            let txn = |from: usize| -> String {
                let puts = (from..from + 100).map(|number| format!("put k/{number:04} v\n"));
                format!("\n{}\n\n", puts.collect::<String>())
            };
            for from in (0..2500).step_by(100) {
                let words =
                    format!("printf '%s' \"$1\" | etcdctl --endpoints {} txn", server.endpoint());
                run("sh", &["-c", &words, "sh", &txn(from)]);
            }
            server.ctl(&["put", &long, "v"]);
            let calls = server.calls("Range");
            let list = store.list("k/").await.unwrap();
            assert_eq!(server.calls("Range") - calls, 3);
            assert_eq!(list.entries.len(), 2501);
            assert!(
                list.entries.iter().take(2500).map(|one| &one.key).eq((0..2500)
                    .map(|number| format!("k/{number:04}"))
                    .collect::<Vec<_>>()
                    .iter())
            );
            let shortened = &list.entries[2500].key;
            assert!(shortened.starts_with("k/xxx") && shortened.len() < 300, "{shortened}");
            server.ctl(&["del", &long]);
            let seen = events(&mut *store.watch("k/", list.revision), 1).await;
            assert_eq!(seen[0].key(), shortened);
        });
    });
}
