// SPDX-License-Identifier: Apache-2.0
//! The database file: how it is opened, and its tables.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use super::clock::{self, Moment};
use crate::error::Cause;

/// "podw" in the header of the file, which distinguishes it from databases of other programs.
const APPLICATION: i32 = 0x706f_6477;
const VERSION: i32 = 1;

/// How long to wait for a writer in another process, which holds the lock until its data is on disk.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// `head` has one row. `entry` has the present entries. `event` has one row for each revision after `compacted`; a
/// deletion has no value. `ttl` and `due` are milliseconds, `due` since boot.
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

/// One row with the identity of the database, which its copies share.
const ORIGIN: &str = "
CREATE TABLE IF NOT EXISTS origin (only INTEGER PRIMARY KEY CHECK (only = 1), id TEXT NOT NULL);
INSERT OR IGNORE INTO origin VALUES (1, lower(hex(randomblob(16))));
";

/// SQLite never creates the file, because the file would have the wrong mode.
pub(super) const FLAGS: OpenFlags =
    OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

/// Why the file cannot be used.
#[derive(Debug)]
pub(super) enum OpenError {
    /// The file is damaged; a backup can replace it.
    Damaged(Cause),
    Other(Cause),
}

impl<E: Into<Cause>> From<E> for OpenError {
    fn from(error: E) -> Self {
        let cause = error.into();
        match cause.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error_code) {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => OpenError::Damaged(cause),
            _ => OpenError::Other(cause),
        }
    }
}

/// Opens the file. Creates it and its tables if they are missing. The caller holds the lock against concurrent creation.
/// `has_backup` means that an empty file is damaged, not new.
pub(super) fn open(path: &Path, has_backup: bool) -> Result<Connection, OpenError> {
    create_file(path)?;
    let mut connection = Connection::open_with_flags(path, FLAGS)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    let is_new = !is_initialized(&connection)?;
    if is_new && has_backup {
        return Err(OpenError::Damaged("the file is empty".into()));
    }
    // With a mapped file, a program that truncates it would kill this process.
    connection.pragma_update(None, "mmap_size", 0)?;
    leave_wal(&connection)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Otherwise the last process to close the file blocks the next one for a moment, without a queue.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let boot = clock::boot_id()?;
    if is_new {
        create(&mut connection, &boot)?;
    } else if let Err(cause) = verify(&connection) {
        return Err(OpenError::Damaged(cause));
    }
    add_id(&mut connection)?;
    restart_ttls(&mut connection, &boot)?;
    Ok(connection)
}

/// Returns whether the database has podwire's tables; `false` if it is empty. Fails if it belongs to another program.
pub(super) fn is_initialized(connection: &Connection) -> Result<bool, Cause> {
    let application: i32 = pragma(connection, "application_id")?;
    let version: i32 = pragma(connection, "user_version")?;
    if application == 0 && version == 0 && is_empty(connection)? {
        return Ok(false);
    }
    if application != APPLICATION {
        return Err("the file is a database of another program".into());
    }
    if version != VERSION {
        return Err(
            format!("the file has format {version}, but this program supports {VERSION}").into()
        );
    }
    Ok(true)
}

/// Checks the whole database, except the content of its indexes.
pub(super) fn verify(connection: &Connection) -> Result<(), Cause> {
    let check = "PRAGMA quick_check(1)";
    match connection.query_row(check, (), |row| row.get::<_, String>(0))?.as_str() {
        "ok" => Ok(()),
        problem => Err(problem.lines().collect::<Vec<_>>().join(" ").into()),
    }
}

/// Switches to a rollback journal. Files of earlier versions are in write-ahead mode, whose index is a mapped file: a
/// program that truncates it kills all processes that have it open. While a process of such a version has the file
/// open, the mode stays, which also works.
pub(super) fn leave_wal(connection: &Connection) -> rusqlite::Result<()> {
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    let is_wal = mode == "wal";
    if is_wal {
        connection.busy_timeout(Duration::ZERO)?;
    }
    let switched = connection
        .pragma_update_and_check(None, "journal_mode", "TRUNCATE", |row| row.get::<_, String>(0));
    connection.busy_timeout(BUSY_TIMEOUT)?;
    match switched {
        Err(error) if is_wal && error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
            tracing::debug!("keeping write-ahead mode, another process has the store open");
            Ok(())
        }
        switched => switched.map(drop),
    }
}

/// Returns the identity of the database, which its copies share.
pub(super) fn id(connection: &Connection) -> rusqlite::Result<String> {
    connection.query_row("SELECT id FROM origin", (), |row| row.get(0))
}

/// Adds an identity to a file of an earlier version.
fn add_id(connection: &mut Connection) -> rusqlite::Result<()> {
    if id(connection).is_ok() {
        return Ok(());
    }
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute_batch(ORIGIN)?;
    tx.commit()
}

/// Increases all revisions and drops all events, so that no watch and no condition from before can match.
pub(super) fn rebase(connection: &mut Connection, by: i64) -> rusqlite::Result<()> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute("UPDATE entry SET revision = revision + ?1, created = created + ?1", [by])?;
    tx.execute("DELETE FROM event", ())?;
    let sql = "UPDATE head SET revision = revision + ?1, compacted = revision + ?1";
    tx.execute(sql, [by])?;
    tx.commit()
}

/// Creates the file if it is missing. An existing file is not opened, because closing it would release the POSIX locks
/// of this process.
fn create_file(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    match options.read(true).write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Opens or creates a file that only the owner can access.
pub(super) fn open_private(path: &Path) -> io::Result<File> {
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
    tx.execute_batch(ORIGIN)?;
    tx.execute("UPDATE head SET boot = ?1", [boot])?;
    tx.pragma_update(None, "application_id", APPLICATION)?;
    tx.pragma_update(None, "user_version", VERSION)?;
    tx.commit()
}

/// Restarts all times to live after a boot, because the moments in the file are of another clock and nothing says for
/// how long the machine was off.
fn restart_ttls(connection: &mut Connection, boot: &str) -> rusqlite::Result<()> {
    let stored: String = connection.query_row("SELECT boot FROM head", (), |row| row.get(0))?;
    if stored == boot {
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

    fn open_error(path: &Path) -> String {
        match open(path, false).unwrap_err() {
            OpenError::Other(cause) => cause.to_string(),
            damaged @ OpenError::Damaged(_) => panic!("{damaged:?}"),
        }
    }

    #[test]
    fn foreign_files_are_rejected_and_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("text");
        fs::write(
            &text,
            "Not a database, but long enough to be taken for the header of one. ".repeat(20),
        )
        .unwrap();
        let before = fs::read(&text).unwrap();
        assert!(open(&text, false).is_err());
        assert_eq!(fs::read(&text).unwrap(), before);

        let other = dir.path().join("other");
        let connection = Connection::open(&other).unwrap();
        connection.execute_batch("CREATE TABLE theirs (x)").unwrap();
        drop(connection);
        let error = open_error(&other);
        assert!(error.contains("another program"), "{error}");

        let newer = dir.path().join("newer");
        open(&newer, false).unwrap().pragma_update(None, "user_version", 2).unwrap();
        let error = open_error(&newer);
        assert!(error.contains("format 2"), "{error}");
    }

    #[test]
    fn boot_restarts_times_to_live() {
        let dir = tempfile::tempdir().unwrap();
        let mut connection = open(&dir.path().join("db"), false).unwrap();
        let add = "INSERT INTO entry VALUES (?1, x'00', 1, 1, ?2, ?3)";
        connection.execute(add, ("lease", 60_000, 1)).unwrap();
        connection.execute(add, ("long", i64::MAX, 1)).unwrap();
        connection.execute(add, ("for ever", None::<i64>, None::<i64>)).unwrap();
        restart_ttls(&mut connection, "another boot").unwrap();
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
