// SPDX-License-Identifier: Apache-2.0
//! The file: how it is opened, and what is in it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::clock::{self, Moment};
use crate::error::Cause;

/// In the file's header, so that `file` and we can tell it from others: "podw".
const APPLICATION: i32 = 0x706f_6477;
const VERSION: i32 = 1;

/// How long to wait for a writer in another process. It holds the lock while the disk writes.
const BUSY: Duration = Duration::from_secs(10);

/// `head` is one row. `entry` is what is there; `event` is how it came to be, one for each revision
/// after `compacted`; a deletion has no value. `ttl` and `due` are milliseconds, `due` since boot.
const TABLES: &str = "
CREATE TABLE head (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    revision INTEGER NOT NULL,
    compacted INTEGER NOT NULL,
    boot TEXT NOT NULL
);
INSERT INTO head VALUES (1, 0, 0, '');
CREATE TABLE entry (
    key TEXT PRIMARY KEY NOT NULL,
    value BLOB NOT NULL,
    revision INTEGER NOT NULL,
    created INTEGER NOT NULL,
    ttl INTEGER,
    due INTEGER
) WITHOUT ROWID;
CREATE INDEX entry_due ON entry (due) WHERE due IS NOT NULL;
CREATE TABLE event (
    revision INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    value BLOB,
    created INTEGER,
    expires INTEGER NOT NULL
);
";

/// Makes the file and its tables where they are missing. The caller holds a lock that
/// keeps others from doing the same: SQLite does not wait when two turn on write-ahead mode.
pub fn open(path: &Path) -> Result<Connection, Cause> {
    // For us alone; SQLite gives its other files the same mode.
    private(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    let application: i32 = pragma(&connection, "application_id")?;
    let version: i32 = pragma(&connection, "user_version")?;
    let is_new = application == 0 && version == 0 && is_empty(&connection)?;
    if !is_new && application != APPLICATION {
        return Err("it is a database of another program".into());
    }
    if !is_new && version != VERSION {
        return Err(format!("it has format {version}, and this program knows {VERSION}").into());
    }
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err("its file system has no shared memory, so processes cannot share it".into());
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Otherwise the last to leave holds up, for a moment and without a queue, who comes then.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let boot = clock::boot()?;
    if is_new {
        create(&mut connection, &boot)?;
    }
    adopt(&mut connection, &boot)?;
    Ok(connection)
}

/// A file that root, or whoever we are, can open and nobody else; made if missing.
pub fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i32> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn is_empty(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT count(*) = 0 FROM sqlite_schema", (), |row| row.get(0))
}

fn create(connection: &mut Connection, boot: &str) -> rusqlite::Result<()> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute_batch(TABLES)?;
    tx.execute("UPDATE head SET boot = ?1", [boot])?;
    tx.pragma_update(None, "application_id", APPLICATION)?;
    tx.pragma_update(None, "user_version", VERSION)?;
    tx.commit()
}

/// After a boot the moments in the file mean nothing. How long the machine was off nobody knows for
/// sure, so everybody gets their whole time again.
fn adopt(connection: &mut Connection, boot: &str) -> rusqlite::Result<()> {
    let known: String = connection.query_row("SELECT boot FROM head", (), |row| row.get(0))?;
    if known == boot {
        return Ok(());
    }
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let sql = "UPDATE entry SET due = iif(ttl > ?2, ?2, ttl) + ?1 WHERE ttl IS NOT NULL";
    let now = Moment::now().0;
    tx.execute(sql, (now, i64::MAX - now))?;
    tx.execute("UPDATE head SET boot = ?1", [boot])?;
    tx.commit()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_of_others_are_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("text");
        fs::write(
            &text,
            "Not a database, but long enough to be taken for the header of one. ".repeat(20),
        )
        .unwrap();
        let before = fs::read(&text).unwrap();
        assert!(open(&text).is_err());
        assert_eq!(fs::read(&text).unwrap(), before);

        let other = dir.path().join("other");
        let connection = Connection::open(&other).unwrap();
        connection.execute_batch("CREATE TABLE theirs (x)").unwrap();
        drop(connection);
        let why = open(&other).unwrap_err().to_string();
        assert!(why.contains("another program"), "{why}");

        let newer = dir.path().join("newer");
        open(&newer).unwrap().pragma_update(None, "user_version", 2).unwrap();
        let why = open(&newer).unwrap_err().to_string();
        assert!(why.contains("format 2"), "{why}");
    }

    #[test]
    fn boot_starts_times_to_live_anew() {
        let dir = tempfile::tempdir().unwrap();
        let mut connection = open(&dir.path().join("db")).unwrap();
        let add = "INSERT INTO entry VALUES (?1, x'00', 1, 1, ?2, ?3)";
        connection.execute(add, ("lease", 60_000, 1)).unwrap();
        connection.execute(add, ("long", i64::MAX, 1)).unwrap();
        connection.execute(add, ("for ever", None::<i64>, None::<i64>)).unwrap();
        adopt(&mut connection, "another boot").unwrap();
        let due = |key: &str| -> Option<i64> {
            let sql = "SELECT due FROM entry WHERE key = ?1";
            connection.query_row(sql, [key], |row| row.get(0)).unwrap()
        };
        let now = Moment::now().0;
        assert!(due("lease").is_some_and(|due| due > now && due <= now + 60_000));
        assert!(due("long").is_some_and(|due| due > now));
        assert_eq!(due("for ever"), None);
    }
}
