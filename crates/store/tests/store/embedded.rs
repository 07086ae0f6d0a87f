// SPDX-License-Identifier: Apache-2.0
//! The store in a file: the suite, and what only it can suffer.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use store::embedded::Embedded;
use store::{Error, Store, Watched};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::lab::{LONG, Lab, Later, block_on, changes, done, events};
use crate::suite::suite;

suite!(in_file);

/// Alone in a directory.
struct FileLab(TempDir);

impl FileLab {
    fn path(&self) -> PathBuf {
        // Nobody has to make the directory first.
        self.0.path().join("state/podwire.db")
    }
}

impl Lab for FileLab {
    fn open(&self) -> Later<'_, Arc<dyn Store>> {
        Box::pin(async { Arc::new(Embedded::open(self.path()).await.unwrap()) as Arc<dyn Store> })
    }

    fn compact(&self) -> Later<'_, ()> {
        Box::pin(async {
            Embedded::open(self.path()).await.unwrap().compact().await.unwrap();
        })
    }

    fn witness(&self, prefix: &str) -> Vec<(String, String)> {
        let sql = format!(
            "SELECT key, CAST(value AS TEXT) FROM entry
             WHERE substr(key, 1, length('{prefix}')) = '{prefix}' ORDER BY key"
        );
        let lines = sqlite(&self.path(), &sql);
        let pairs = lines.lines().map(|line| line.split_once('\t').unwrap());
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

fn in_file(test: impl for<'a> FnOnce(&'a dyn Lab) -> Later<'a, ()>) {
    let lab = FileLab(tempfile::tempdir().unwrap());
    block_on(test(&lab));
    assert_eq!(sqlite(&lab.path(), "PRAGMA integrity_check"), "ok\n");
}

/// Debian's SQLite, which knows nothing of us.
pub fn sqlite(path: &Path, sql: &str) -> String {
    let path = path.to_str().unwrap();
    testkit::run("sqlite3", &["-batch", "-cmd", ".timeout 10000", "-separator", "\t", path, sql])
}

#[test]
fn foreign_files_are_refused_with_their_name() {
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
fn file_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let lab = FileLab(tempfile::tempdir().unwrap());
    block_on(async {
        let store = lab.open().await;
        done(store.create("k", b"", None).await);
        // The database, its journal, and the file that wakes.
        let dir = fs::read_dir(lab.path().parent().unwrap()).unwrap();
        let files: Vec<_> = dir.map(|file| file.unwrap()).collect();
        assert_eq!(files.len(), 3, "{files:?}");
        for file in files {
            let mode = file.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file:?}");
        }
    });
}

/// Who was killed after the commit has woken nobody.
#[test]
fn change_that_woke_nobody_is_seen() {
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
        // A second later; a watch that only looks now and then takes a minute.
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    });
}

/// A watch is woken, and does not only look now and then.
#[test]
fn changes_are_seen_at_once() {
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
            // Until it has looked and sleeps.
            sleep(Duration::from_millis(30)).await;
            let start = Instant::now();
            done(other.create(&number.to_string(), b"", None).await);
            let seen;
            (seen, watch) = waiting.await.unwrap();
            times.push(seen - start);
        }
        times.sort();
        // Of a change that it is not woken for it hears a second later.
        assert!(times[5] < Duration::from_secs(1), "{times:?}");
    });
}

#[test]
fn old_changes_are_forgotten() {
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
            // There is nothing to come after the last.
            let patience = if from == last { Duration::from_millis(500) } else { LONG };
            let seen = timeout(patience, watch.next()).await;
            let compacted = matches!(seen, Ok(Ok(Watched::Compacted)));
            assert_eq!(compacted, is_compacted, "from {from}: {seen:?}");
        }
    });
}

/// What is due is removed by a watch when it is due, with nobody else looking.
#[test]
fn watch_ends_times_to_live_on_time() {
    let lab = FileLab(tempfile::tempdir().unwrap());
    block_on(async {
        let store = lab.open().await;
        let ttl = Duration::from_millis(300);
        let start = Instant::now();
        let created = done(store.create("k", b"", Some(ttl)).await);
        let mut watch = store.watch("", created);
        timeout(LONG, watch.next()).await.unwrap().unwrap();
        let lived = start.elapsed();
        // A watch that only looks now and then takes a minute.
        assert!(lived >= ttl && lived < ttl + Duration::from_secs(15), "{lived:?}");
    });
}
