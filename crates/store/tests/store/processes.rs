// SPDX-License-Identifier: Apache-2.0
//! The embedded store, shared by several processes that are killed. A test starts its own program again for each
//! process; environment variables tell the child its role.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use store::embedded::Embedded;
use store::{Store, WriteResult};
use testkit::{Daemon, test_name, wait_for, wait_some};

use crate::embedded::sqlite;
use crate::lab::{LONG, View, block_on, done};
use crate::suite::increment;

/// Directory of the test, and number of the child process.
const DIR: &str = "STORE_TEST_DIR";
const CHILD: &str = "STORE_TEST_CHILD";

pub fn child() -> Option<(PathBuf, u32)> {
    let dir = env::var_os(DIR)?;
    Some((dir.into(), env::var(CHILD).unwrap().parse().unwrap()))
}

/// Runs this test again in a child process.
pub fn start(dir: &Path, number: u32) -> Daemon {
    let variables = [format!("{DIR}={}", dir.display()), format!("{CHILD}={number}")];
    let program = env::current_exe().unwrap();
    // The child's test harness writes to stdout, which would mix with that of the parent.
    let quiet = ["-c", "exec \"$@\" >/dev/null", "sh", "env", &variables[0], &variables[1]];
    let words = [program.to_str().unwrap(), "--exact", &test_name(), "--nocapture"];
    Daemon::start("sh", &[&quiet[..], &words].concat())
}

pub fn database(dir: &Path) -> PathBuf {
    dir.join("podwire.db")
}

/// Appends a line to a file for the parent.
pub fn note(file: &Path, line: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(file).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Returns all complete lines of a file.
pub fn notes(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(str::to_owned).collect()
}

#[test]
fn concurrent_processes_lose_no_increment() {
    const EACH: u64 = 50;
    if let Some((dir, number)) = child() {
        let store = block_on(Embedded::open(database(&dir))).unwrap();
        block_on(increment(&store, EACH));
        return note(&dir.join("done"), &number.to_string());
    }
    let dir = tempfile::tempdir().unwrap();
    let store = block_on(Embedded::open(database(dir.path()))).unwrap();
    done(block_on(store.create("counter", b"0", None)));
    let children: Vec<_> = (0..4).map(|number| start(dir.path(), number)).collect();
    let ended = || notes(&dir.path().join("done")).len() == children.len();
    wait_for("all processes have ended", LONG * 2, ended);
    let total = sqlite(&database(dir.path()), "SELECT CAST(value AS TEXT) FROM entry");
    assert_eq!(total, format!("{}\n", EACH * 4));
}

/// The processes also race for creating the file.
#[test]
fn concurrent_starts_create_one_store() {
    if let Some((dir, number)) = child() {
        let store = block_on(Embedded::open(database(&dir))).unwrap();
        let won = block_on(store.create("k", number.to_string().as_bytes(), None)).unwrap();
        return note(&dir.join("done"), if won.is_done() { "won" } else { "lost" });
    }
    for _ in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let children: Vec<_> = (0..6).map(|number| start(dir.path(), number)).collect();
        let ended = || notes(&dir.path().join("done")).len() == children.len();
        wait_for("all processes have ended", LONG * 2, ended);
        let won = notes(&dir.path().join("done")).into_iter().filter(|line| line == "won").count();
        assert_eq!(won, 1);
    }
}

#[test]
fn watch_reports_changes_of_other_processes() {
    const EACH: usize = 30;
    if let Some((dir, number)) = child() {
        let store = block_on(Embedded::open(database(&dir))).unwrap();
        for step in 0..EACH {
            done(block_on(store.create(&format!("k/{number}/{step}"), b"x", None)));
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = Embedded::open(database(dir.path())).await.unwrap();
        let (mut view, revision) = View::list(&store, "k/").await;
        let mut watch = store.watch("k/", revision);
        let _children: Vec<_> = (0..3).map(|number| start(dir.path(), number)).collect();
        let mut at = revision;
        while view.0.len() < 3 * EACH {
            at = view.apply(crate::lab::changes(&mut *watch).await.0, at);
        }
        assert_eq!(view, View::list(&store, "k/").await.0);
    });
}

/// A writer is killed at a hundred moments while another process watches. Acknowledged writes survive, entries are
/// complete, and the watch has reported the same as a list.
#[test]
fn killed_writers_lose_no_acknowledged_write() {
    if let Some((dir, number)) = child() {
        return write_forever(&dir, number);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let store = block_on(Embedded::open(database(path))).unwrap();
    let (mut view, revision) = block_on(View::list(&store, "k/"));
    for number in 0..100 {
        let writer = start(path, number);
        wait_for("the first write is acknowledged", LONG, || {
            !notes(&path.join(number.to_string())).is_empty()
        });
        // At some moment in the next 5 ms.
        let moment = Duration::from_micros(u64::from(number) * 7919 % 5000);
        wait_some(moment, || None::<()>);
        drop(writer);
        check_acknowledged(&store, path, number);
    }
    let last = done(block_on(store.create("k/last", b"", None)));
    block_on(async { view.follow(&mut *store.watch("k/", revision), revision, last).await });
    assert_eq!(view, block_on(View::list(&store, "k/")).0);
    assert_eq!(sqlite(&database(path), "PRAGMA integrity_check"), "ok\n");
}

/// Creates keys, notes what was acknowledged, deletes every third, and changes all others once.
fn write_forever(dir: &Path, number: u32) {
    let store = block_on(Embedded::open(database(dir))).unwrap();
    let file = dir.join(number.to_string());
    for step in 0.. {
        let key = format!("k/{number}/{step}");
        let first = done(block_on(store.create(&key, value(&key).as_bytes(), None)));
        if step % 3 == 2 {
            note(&file, &format!("deleting {key}"));
            done(block_on(store.delete(&key, Some(first))));
            note(&file, &format!("deleted {key}"));
            continue;
        }
        note(&file, &format!("created {key}"));
        done(block_on(store.compare_and_swap(&key, value(&key).as_bytes(), first, None)));
        note(&file, &format!("swapped {key}"));
    }
}

/// Long enough for several pages of the database.
fn value(key: &str) -> String {
    key.repeat(1000)
}

fn check_acknowledged(store: &Embedded, dir: &Path, number: u32) {
    let list = block_on(store.list(&format!("k/{number}/"))).unwrap();
    for entry in &list.entries {
        assert_eq!(entry.value, value(&entry.key).into_bytes(), "{} is incomplete", entry.key);
    }
    let present: BTreeSet<_> = list.entries.iter().map(|entry| entry.key.as_str()).collect();
    for line in notes(&dir.join(number.to_string())) {
        let (verb, key) = line.split_once(' ').unwrap();
        match verb {
            "created" | "swapped" => assert!(present.contains(key), "{key} is lost"),
            "deleted" => assert!(!present.contains(key), "{key} is back"),
            _ => {}
        }
    }
    // The next process can write.
    let again = block_on(store.create(&format!("after {number}"), b"", None)).unwrap();
    assert!(matches!(again, WriteResult::Done(_)));
}
