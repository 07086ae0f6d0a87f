// SPDX-License-Identifier: Apache-2.0
//! The embedded store: the suite, and properties of its file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use store::embedded::Embedded;
use store::{Error, Store, Watched};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::lab::{LONG, Lab, LocalFuture, block_on, changes, done, events};
use crate::suite::suite;

suite!(in_file);

/// A store in its own directory.
struct FileLab(TempDir);

impl FileLab {
    fn path(&self) -> PathBuf {
        // The store creates its directory.
        self.0.path().join("state/podwire.db")
    }
}

impl Lab for FileLab {
    fn open(&self) -> LocalFuture<'_, Arc<dyn Store>> {
        Box::pin(async { Arc::new(Embedded::open(self.path()).await.unwrap()) as Arc<dyn Store> })
    }

    fn compact(&self) -> LocalFuture<'_, ()> {
        Box::pin(async {
            Embedded::open(self.path()).await.unwrap().compact().await.unwrap();
        })
    }

    fn external_entries(&self, prefix: &str) -> Vec<(String, String)> {
        let sql = format!(
            "SELECT key, CAST(value AS TEXT) FROM entry
             WHERE substr(key, 1, length('{prefix}')) = '{prefix}' ORDER BY key"
        );
        let lines = sqlite(&self.path(), &sql);
        let pairs = lines.lines().map(|line| line.split_once('\t').unwrap());
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

fn in_file(test: impl for<'a> FnOnce(&'a dyn Lab) -> LocalFuture<'a, ()>) {
    let lab = FileLab(tempfile::tempdir().unwrap());
    block_on(test(&lab));
    assert_eq!(sqlite(&lab.path(), "PRAGMA integrity_check"), "ok\n");
}

/// Runs SQL with Debian's `sqlite3`.
pub fn sqlite(path: &Path, sql: &str) -> String {
    let path = path.to_str().unwrap();
    testkit::run("sqlite3", &["-batch", "-cmd", ".timeout 10000", "-separator", "\t", path, sql])
}

#[test]
fn foreign_file_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("theirs.db");
    sqlite(&path, "CREATE TABLE theirs (x)");
    let before = fs::read(&path).unwrap();
    let error = block_on(Embedded::open(&path)).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("theirs.db"), "{error}");
    assert!(!error.can_retry());
    assert_eq!(fs::read(&path).unwrap(), before);

    let below_file = path.join("podwire.db");
    let error = block_on(Embedded::open(&below_file)).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
}

#[test]
fn files_are_accessible_to_the_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let lab = FileLab(tempfile::tempdir().unwrap());
    block_on(async {
        let store = lab.open().await;
        done(store.create("k", b"", None).await);
        // The database, its journal, and the wake file.
        let dir = fs::read_dir(lab.path().parent().unwrap()).unwrap();
        let files: Vec<_> = dir.map(|file| file.unwrap()).collect();
        assert_eq!(files.len(), 3, "{files:?}");
        for file in files {
            let mode = file.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file:?}");
        }
    });
}

/// A writer that is killed after the commit wakes no watch.
#[test]
fn watch_reports_change_without_wake_up() {
    let lab = FileLab(tempfile::tempdir().unwrap());
    block_on(async {
        let store = lab.open().await;
        let first = done(store.create("k", b"1", None).await);
        let mut watch = store.watch("k", first);
        assert!(timeout(Duration::from_millis(50), watch.next()).await.is_err());
        sqlite(
            &lab.path(),
            "BEGIN; UPDATE head SET revision = revision + 1;
             INSERT INTO event (revision, key, expires) SELECT revision, 'k', 0 FROM head;
             DELETE FROM entry; COMMIT",
        );
        let start = Instant::now();
        assert_eq!(events(&mut *watch, 1).await[0].key(), "k");
        // The watch checks after a second. Without that it would take a minute.
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    });
}

/// A watch is woken and does not only poll.
#[test]
fn watch_reports_changes_at_once() {
    let lab = FileLab(tempfile::tempdir().unwrap());
    block_on(async {
        let (store, other) = (lab.open().await, lab.open().await);
        let mut watch = store.watch("", store.list("").await.unwrap().revision);
        let mut times = Vec::new();
        for number in 0..20 {
            let waiting = tokio::spawn(async move {
                changes(&mut *watch).await;
                (Instant::now(), watch)
            });
            // The watch has checked by then and waits.
            sleep(Duration::from_millis(30)).await;
            let start = Instant::now();
            done(other.create(&number.to_string(), b"", None).await);
            let seen;
            (seen, watch) = waiting.await.unwrap();
            times.push(seen - start);
        }
        times.sort();
        // Without a wake-up each one would take a second.
        assert!(times[5] < Duration::from_secs(1), "{times:?}");
    });
}

#[test]
fn old_events_are_dropped() {
    let lab = FileLab(tempfile::tempdir().unwrap());
    block_on(async {
        let store = lab.open().await;
        let first = done(store.create("k", b"1", None).await);
        let second = done(store.compare_and_swap("k", b"2", first, None).await);
        // As after many changes.
        sqlite(&lab.path(), "UPDATE head SET revision = 10001");
        let last = done(store.create("l", b"", None).await);
        assert_eq!(sqlite(&lab.path(), "SELECT revision FROM event"), format!("{}\n", last.0));
        for (from, is_compacted) in [(first, true), (second, false), (last, false)] {
            let mut watch = store.watch("", from);
            // There are no events after the last revision.
            let limit = if from == last { Duration::from_millis(500) } else { LONG };
            let seen = timeout(limit, watch.next()).await;
            let compacted = matches!(seen, Ok(Ok(Watched::Compacted)));
            assert_eq!(compacted, is_compacted, "from {from}: {seen:?}");
        }
    });
}

/// A watch removes expired entries on time, without other readers.
#[test]
fn watch_expires_entries_on_time() {
    let lab = FileLab(tempfile::tempdir().unwrap());
    block_on(async {
        let store = lab.open().await;
        let ttl = Duration::from_millis(300);
        let start = Instant::now();
        let created = done(store.create("k", b"", Some(ttl)).await);
        let mut watch = store.watch("", created);
        timeout(LONG, watch.next()).await.unwrap().unwrap();
        let lived = start.elapsed();
        // A watch that only polls would take a minute.
        assert!(lived >= ttl && lived < ttl + Duration::from_secs(15), "{lived:?}");
    });
}
