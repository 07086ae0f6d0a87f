// SPDX-License-Identifier: Apache-2.0
//! The embedded store while other programs delete, replace, truncate or damage its files. `sqlite3` is the oracle.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use store::embedded::Embedded;
use store::{Error, Revision, Store, Watched};
use testkit::{Daemon, run, wait_for};
use tokio::time::timeout;

use crate::embedded::sqlite;
use crate::lab::{LONG, block_on, changes, conflict, done, events};
use crate::processes::{child, database, note, notes, start};

const KEYS: &str = "SELECT key FROM entry ORDER BY key";

async fn open(dir: &Path) -> Embedded {
    Embedded::open(database(dir)).await.unwrap()
}

fn beside(dir: &Path, ending: &str) -> PathBuf {
    dir.join(format!("podwire.db{ending}"))
}

/// Returns an error with its cause.
fn chain(error: &Error) -> String {
    match error {
        Error::Unavailable { cause, .. } | Error::Refused { cause, .. } => {
            format!("{error}: {cause}")
        }
        other => panic!("{other:?}"),
    }
}

/// Waits until the backup has the key.
fn wait_for_backup(dir: &Path, key: &str) {
    let backup = beside(dir, ".backup");
    let has = || backup.exists() && sqlite(&backup, KEYS).lines().any(|line| line == key);
    wait_for("the backup contains the key", LONG, has);
}

/// Otherwise two nodes could get the same subnet, each in its own file.
#[test]
fn deleted_file_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path()).await;
        let first = done(store.create("k", b"1", Some(Duration::from_secs(3600))).await);
        let inode = fs::metadata(database(dir.path())).unwrap().ino();
        let mut watch = store.watch("", first);
        fs::remove_file(database(dir.path())).unwrap();
        done(store.create("l", b"2", None).await);
        assert_eq!(sqlite(&database(dir.path()), KEYS), "k\nl\n");
        assert_eq!(sqlite(&database(dir.path()), "PRAGMA integrity_check"), "ok\n");
        assert_ne!(fs::metadata(database(dir.path())).unwrap().ino(), inode);
        let mode = fs::metadata(database(dir.path())).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Revisions and history are unchanged.
        assert_eq!(events(&mut *watch, 1).await[0].key(), "l");
        done(store.compare_and_swap("k", b"3", first, None).await);
        // Moving the file away counts as deletion. The wake file is deleted as well.
        fs::rename(database(dir.path()), dir.path().join("theirs")).unwrap();
        fs::remove_file(beside(dir.path(), "-wake")).unwrap();
        assert_eq!(store.list("").await.unwrap().entries.len(), 2);
        assert_eq!(sqlite(&database(dir.path()), KEYS), "k\nl\n");
    });
}

/// The file of a running agent is deleted, then another agent starts. Both share one network.
#[test]
fn later_process_finds_the_restored_file() {
    if let Some((dir, _)) = child() {
        return block_on(async {
            let store = open(&dir).await;
            let mut watch = store.watch("", done(store.create("first", b"", None).await));
            note(&dir.join("ready"), "ready");
            loop {
                for event in changes(&mut *watch).await.0 {
                    note(&dir.join("seen"), event.key());
                }
            }
        });
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let _first = start(path, 0);
    wait_for("the first process is ready", LONG, || !notes(&path.join("ready")).is_empty());
    for round in 0..3 {
        for ending in ["", "-wake", "-journal"] {
            let _ = fs::remove_file(beside(path, ending));
        }
        // The first process only watches.
        wait_for("the file is restored", LONG, || database(path).exists());
        let key = format!("round {round}");
        block_on(async {
            let later = open(path).await;
            assert!(later.get("first").await.unwrap().is_some());
            done(later.create(&key, b"", None).await);
        });
        wait_for("the first process has seen the key", LONG, || {
            notes(&path.join("seen")).contains(&key)
        });
    }
    assert_eq!(sqlite(&database(path), "SELECT count(*) FROM entry"), "4\n");
}

/// Revisions of two files must not be mixed up.
#[test]
fn process_switches_to_a_replaced_file() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    block_on(async {
        let theirs = done(open(other.path()).await.create("k", b"theirs", None).await);
        let store = open(dir.path()).await;
        let ours = done(store.create("k", b"ours", None).await);
        assert_eq!(ours, theirs, "the same revision of another history");
        let mut watch = store.watch("", ours);
        assert!(timeout(Duration::from_millis(50), watch.next()).await.is_err());
        fs::rename(database(other.path()), database(dir.path())).unwrap();
        let watched = timeout(LONG, watch.next()).await.unwrap().unwrap();
        assert_eq!(watched, Watched::Compacted);
        let present =
            conflict(store.compare_and_swap("k", b"ours again", ours, None).await).unwrap();
        assert_eq!(present.value, b"theirs");
        let list = store.list("").await.unwrap();
        assert!(list.entries[0].revision > ours);
        let mut watch = store.watch("", list.revision);
        done(open(dir.path()).await.create("l", b"", None).await);
        assert_eq!(events(&mut *watch, 1).await[0].key(), "l");
        assert_eq!(sqlite(&database(dir.path()), KEYS), "k\nl\n");
    });
}

/// The files in a moved directory do not change, so the watch must notice the move of the directory itself.
#[test]
fn moved_directory_is_noticed_by_a_watch() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("state");
    fs::create_dir(&dir).unwrap();
    block_on(async {
        let store = open(&dir).await;
        let mut watch = store.watch("", done(store.create("k", b"1", None).await));
        assert!(timeout(Duration::from_millis(100), watch.next()).await.is_err());
        fs::rename(&dir, parent.path().join("moved")).unwrap();
        // Without the event, the next check is a minute later.
        let failure = timeout(LONG, watch.next()).await.expect("noticed").unwrap_err();
        assert!(chain(&failure).contains("was removed: create it"), "{failure:?}");
        fs::create_dir(&dir).unwrap();
        timeout(LONG, watch.next()).await.expect("restored").unwrap();
        assert_eq!(sqlite(&database(&dir), KEYS), "k\n");
    });
}

#[test]
fn removed_directory_is_reported_then_restored() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("state");
    block_on(async {
        let store = open(&inner).await;
        let created = done(store.create("k", b"", None).await);
        let mut watch = store.watch("", created);
        assert!(timeout(Duration::from_millis(50), watch.next()).await.is_err());
        fs::remove_dir_all(&inner).unwrap();
        let error = timeout(LONG, watch.next()).await.unwrap().unwrap_err();
        let text = chain(&error);
        let remedy = format!("the directory {} was removed: create it", inner.display());
        assert!(error.can_retry() && text.contains(&remedy), "{text}");
        let error = store.create("l", b"", None).await.unwrap_err();
        assert!(chain(&error).contains(&remedy), "{error:?}");
        assert!(!inner.exists());
        run("mkdir", &[inner.to_str().unwrap()]);
        done(store.create("l", b"", None).await);
        assert_eq!(sqlite(&database(&inner), KEYS), "k\nl\n");
        assert!(changes(&mut *watch).await.0.iter().all(|event| event.key() == "l"));
    });
}

/// In SQLite's write-ahead mode the process would die with a bus error.
#[test]
fn truncated_files_kill_no_process() {
    if let Some((dir, _)) = child() {
        let store = block_on(open(&dir));
        for step in 0.. {
            done(block_on(store.create(&format!("k/{step}"), b"x", None)));
            block_on(store.list("")).unwrap();
            note(&dir.join("done"), &step.to_string());
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let _writer = start(path, 0);
    for _ in 0..20 {
        let before = notes(&path.join("done")).len();
        wait_for("the writer has written again", LONG, || notes(&path.join("done")).len() > before);
        for ending in ["-shm", "-wal", "-journal", "-wake"] {
            if beside(path, ending).exists() {
                run("truncate", &["-s", "0", beside(path, ending).to_str().unwrap()]);
            }
        }
    }
    let before = notes(&path.join("done")).len();
    wait_for("the writer has written five more", LONG, || {
        notes(&path.join("done")).len() > before + 5
    });
    assert_eq!(sqlite(&database(path), "PRAGMA integrity_check"), "ok\n");
}

/// Commands that damage a file.
const DAMAGES: [&str; 3] = [
    "truncate -s 0 $0",
    "truncate -s 5000 $0",
    "dd if=/dev/urandom of=$0 bs=1 count=64 conv=notrunc status=none",
];

fn damage(dir: &Path, command: &str) {
    run("sh", &["-c", command, database(dir).to_str().unwrap()]);
}

#[test]
fn damaged_file_is_replaced_by_its_backup() {
    for command in DAMAGES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let (first, last) = block_on(async {
            let store = open(path).await;
            let first = done(store.create("k", b"1", Some(Duration::from_secs(3600))).await);
            let last = done(store.create("l", b"2", None).await);
            wait_for_backup(path, "l");
            (first, last)
        });
        damage(path, command);
        let damaged = fs::read(database(path)).unwrap();
        block_on(async {
            let store = open(path).await;
            let list = store.list("").await.unwrap();
            let keys: Vec<_> =
                list.entries.iter().map(|one| (one.key.as_str(), one.expires)).collect();
            assert_eq!(keys, [("k", true), ("l", false)], "{command}");
            // A watch from before the damage has to list again.
            let watched = timeout(LONG, store.watch("", last).next()).await.unwrap().unwrap();
            assert_eq!(watched, Watched::Compacted);
            assert!(conflict(store.compare_and_swap("k", b"3", first, None).await).is_some());
            assert!(list.entries.iter().all(|one| one.revision > last));
            assert_eq!(
                fs::read(beside(path, ".damaged")).unwrap(),
                damaged,
                "the damaged file is kept"
            );
            done(store.create("m", b"", None).await);
        });
        assert_eq!(sqlite(&database(path), KEYS), "k\nl\nm\n");
        assert_eq!(sqlite(&database(path), "PRAGMA integrity_check"), "ok\n");
    }
}

#[test]
fn damage_of_an_open_file_is_repaired() {
    for command in DAMAGES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        block_on(async {
            let store = open(path).await;
            done(store.create("k", b"1", None).await);
            wait_for_backup(path, "k");
            damage(path, command);
            let mut attempts = 0;
            while let Err(error) = store.create("l", b"2", None).await {
                assert!(error.can_retry(), "{error:?}");
                attempts += 1;
                assert!(attempts < 5, "{command}: {error:?}");
            }
            assert_eq!(store.list("").await.unwrap().entries.len(), 2, "{command}");
        });
        assert_eq!(sqlite(&database(path), KEYS), "k\nl\n", "{command}");
        assert_eq!(sqlite(&database(path), "PRAGMA integrity_check"), "ok\n");
    }
}

#[test]
fn damage_without_backup_names_a_command() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    block_on(async {
        done(open(path).await.create("k", b"", None).await);
        damage(path, DAMAGES[2]);
        let before = fs::read(database(path)).unwrap();
        let error = Embedded::open(database(path)).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let text = chain(&error);
        assert_eq!(fs::read(database(path)).unwrap(), before, "the file is unchanged");
        let command = text.split('`').nth(1).unwrap_or_else(|| panic!("{text}"));
        run("sh", &["-c", command]);
        done(open(path).await.create("k", b"", None).await);
    });
}

/// If the file is deleted while no process has it open, a new store is created and the old backup is kept.
#[test]
fn deleted_store_keeps_its_backup() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    block_on(async {
        let store = open(path).await;
        done(store.create("k", b"", None).await);
        wait_for_backup(path, "k");
    });
    fs::remove_file(database(path)).unwrap();
    let list = block_on(async { open(path).await.list("").await.unwrap() });
    assert_eq!((list.entries.len(), list.revision), (0, Revision(0)));
    assert_eq!(sqlite(&beside(path, ".backup.old"), KEYS), "k\n");
}

/// Files of earlier versions are in write-ahead mode, and a process of such a version may have one open.
#[test]
fn files_of_earlier_versions_are_converted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    // sqlite3 reports "delete" if there is no log.
    let mode = || sqlite(&database(path), "PRAGMA journal_mode");
    block_on(async {
        done(open(path).await.create("k", b"", None).await);
        sqlite(&database(path), "DROP TABLE origin; PRAGMA journal_mode = WAL");
        let (fifo, name) = (dir.path().join("fifo"), database(path));
        run("mkfifo", &[fifo.to_str().unwrap()]);
        // sqlite3 waits for input from the pipe.
        let wait = format!(".read {}", fifo.display());
        let earlier = Daemon::start("sqlite3", &[name.to_str().unwrap(), "-cmd", KEYS, &wait]);
        wait_for("the log exists", LONG, || beside(path, "-shm").exists());
        let store = open(path).await;
        let created = done(store.create("l", b"", None).await);
        assert_eq!(mode(), "wal\n", "another process has it open");
        let mut watch = store.watch("", created);
        done(open(path).await.create("m", b"", None).await);
        assert_eq!(events(&mut *watch, 1).await[0].key(), "m");
        drop(earlier);
    });
    // After all processes have closed it.
    wait_for("write-ahead mode has ended", LONG, || {
        block_on(open(path));
        mode() == "delete\n"
    });
    assert!(!beside(path, "-shm").exists() && !beside(path, "-wal").exists());
    block_on(async {
        // A process of an earlier version turns the mode on again, and all continue.
        let store = open(path).await;
        sqlite(&database(path), "PRAGMA journal_mode = WAL");
        done(store.create("n", b"", None).await);
        assert_eq!(sqlite(&database(path), KEYS), "k\nl\nm\nn\n");
    });
}
