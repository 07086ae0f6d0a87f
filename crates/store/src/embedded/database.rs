// SPDX-License-Identifier: Apache-2.0
//! The store's verbs as transactions. What they change goes through [`Change`], which numbers it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, ToSql, Transaction, TransactionBehavior};

use super::clock::Moment;
use super::copy;
use super::notify::{self, Lock, Notifier};
use super::schema::{self, Unfit};
use super::transaction::Change;
use super::watch::Look;
use crate::error::Cause;
use crate::limit::{self, Listed, MAX_VALUE};
use crate::{Entry, Error, Event, Result, Revision, Snapshot, Watched, WriteResult, key};

/// Of events, in one answer to a watch.
const BATCH: usize = 1000;

/// From a key up to another, or without end: a blob is greater than any text.
const IN_RANGE: &str = "key >= ?1 AND key < coalesce(?2, x'')";

/// The length of a value, and the value if it is within the limit: SQLite does not read a longer one.
macro_rules! value {
    () => {
        "octet_length(value), iif(octet_length(value) <= 16384, CAST(value AS BLOB), x'')"
    };
}

const ENTRY: &str =
    concat!("SELECT key, revision, created, due IS NOT NULL, ", value!(), " FROM entry");

const EVENT: &str = concat!("SELECT key, revision, created, expires, ", value!(), " FROM event");

/// The condition is the index's own: without it every entry would be read.
const NEXT_DUE: &str = "SELECT min(due) FROM entry WHERE due IS NOT NULL";

const IS_DUE: &str = "SELECT EXISTS (SELECT 1 FROM entry WHERE due <= ?1)";

#[derive(Debug)]
pub struct Database {
    connection: Connection,
    notifier: Notifier,
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
    /// Of the content: a copy has the same.
    id: String,
    /// The newest revision that this process has seen, and the one that the backup has.
    seen: Revision,
    saved: Option<Revision>,
    /// The file has to be opened again: the last error may be one of this connection, or of the file.
    is_doubtful: bool,
}

impl Database {
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path).map_err(|cause| {
            let store = path.display().to_string();
            match cause.downcast_ref::<rusqlite::Error>() {
                Some(error) if may_pass(error) => Error::Unavailable { store, cause },
                _ => Error::Refused { store, cause },
            }
        })
    }

    fn open_with(path: &Path) -> std::result::Result<Self, Cause> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        let lock = Lock::take(path)?;
        let backup = copy::backup(path);
        if !path.exists() && backup.exists() {
            // Whoever has removed the store wants a new one, and may find out that it was a mistake.
            let old = notify::beside(&backup, ".old");
            fs::rename(&backup, &old)?;
            tracing::warn!(store = %path.display(), backup = %old.display(), "the store is gone: a new one is made, the backup of the old one is kept");
        }
        let connection = match schema::open(path, backup.exists()) {
            Ok(connection) => connection,
            Err(Unfit::Other(cause)) => return Err(cause),
            Err(Unfit::Damaged(cause)) => {
                copy::restore(path, &cause)?;
                match schema::open(path, false) {
                    Ok(connection) => connection,
                    Err(Unfit::Other(cause) | Unfit::Damaged(cause)) => return Err(cause),
                }
            }
        };
        let identity = identity(path)?;
        drop(lock);
        let id = schema::id(&connection)?;
        let notifier = Notifier::open(path)?;
        Ok(Self {
            connection,
            notifier,
            path: path.to_path_buf(),
            identity,
            id,
            seen: Revision(0),
            saved: None,
            is_doubtful: false,
        })
    }

    /// Whether the backup is not known to have all of the database.
    pub fn needs_backup(&self) -> bool {
        self.saved != Some(self.seen)
    }

    /// Writes the backup, unless another process has, or does.
    pub fn back_up(&mut self) {
        if let Err(cause) = self.try_back_up() {
            tracing::warn!(store = %self.path.display(), %cause, "no backup of the store was written");
        }
    }

    fn try_back_up(&mut self) -> std::result::Result<(), Cause> {
        // What is wrong with the file is told to whoever asks next.
        if identity(&self.path).ok() != Some(self.identity) || self.is_doubtful {
            return Ok(());
        }
        let Some(_lock) = Lock::try_take(&self.path)? else { return Ok(()) };
        schema::leave_wal(&self.connection)?;
        let backup = copy::backup(&self.path);
        let saved = copy::check(&backup).ok();
        let revision: i64 =
            self.connection.query_row("SELECT revision FROM head", (), |row| row.get(0))?;
        if saved != Some((self.id.clone(), revision)) {
            // A copy of a damaged database must not replace a valid one.
            schema::verify(&self.connection)?;
            copy::write(&self.connection, &backup)?;
        }
        self.seen = unsigned(revision);
        self.saved = Some(self.seen);
        Ok(())
    }

    pub fn get(&mut self, key: &str) -> Result<Option<Entry>> {
        key::check(key)?;
        self.check_place()?;
        self.expire()?;
        let found = entry(&self.connection, key);
        self.explain(found)
    }

    pub fn list(&mut self, prefix: &str) -> Result<Snapshot> {
        self.check_place()?;
        self.expire()?;
        let snapshot = snapshot(&mut self.connection, prefix);
        let listed = self.explain(snapshot)?.map_err(|why| self.refused(why.into()))?;
        self.seen = self.seen.max(listed.revision);
        Ok(listed)
    }

    /// What a watch sees that has seen everything up to `after`.
    pub fn look(&mut self, prefix: &str, after: Revision) -> Result<Look> {
        self.check_place()?;
        self.expire()?;
        let look = look(&mut self.connection, prefix, after);
        let look = self.explain(look)?;
        if let Watched::Changes { revision, .. } = look.watched {
            self.seen = self.seen.max(revision);
        }
        Ok(look)
    }

    pub fn create(
        &mut self,
        key: &str,
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<WriteResult> {
        key::check(key)?;
        limit::check_value(key, value)?;
        self.write(|change| match entry(change.tx(), key)? {
            Some(present) => Ok(WriteResult::Conflict(Some(present))),
            None => change.put(None, key, value, ttl),
        })
    }

    pub fn compare_and_swap(
        &mut self,
        key: &str,
        value: &[u8],
        expected: Revision,
        ttl: Option<Duration>,
    ) -> Result<WriteResult> {
        key::check(key)?;
        limit::check_value(key, value)?;
        self.write(|change| match entry(change.tx(), key)? {
            Some(present) if present.revision == expected => {
                change.put(Some(&present), key, value, ttl)
            }
            other => Ok(WriteResult::Conflict(other)),
        })
    }

    pub fn refresh_ttl(&mut self, key: &str, expected: Revision) -> Result<WriteResult> {
        key::check(key)?;
        self.write(|change| match entry(change.tx(), key)? {
            Some(present) if present.revision == expected => change.refresh_ttl(&present),
            other => Ok(WriteResult::Conflict(other)),
        })
    }

    pub fn delete(&mut self, key: &str, expected: Option<Revision>) -> Result<WriteResult> {
        key::check(key)?;
        self.write(|change| match entry(change.tx(), key)? {
            None => Ok(WriteResult::Done(change.revision())),
            Some(present) if expected.is_none_or(|expected| expected == present.revision) => {
                change.remove(key)
            }
            other => Ok(WriteResult::Conflict(other)),
        })
    }

    /// Forgets all events.
    pub fn compact(&mut self) -> Result<Revision> {
        self.write(|change| {
            let revision = change.revision();
            change.forget(revision)?;
            Ok(revision)
        })
    }

    /// Removes what is due. Looks before it takes the lock: mostly nothing is.
    fn expire(&mut self) -> Result<()> {
        let is_due = self.connection.query_row(IS_DUE, [Moment::now().0], |row| row.get(0));
        if self.explain(is_due)? { self.write(|_| Ok(())) } else { Ok(()) }
    }

    /// A transaction. What is due is removed first, so that no condition is met, or not met, because
    /// of what should be gone.
    fn write<T>(&mut self, body: impl FnOnce(&mut Change<'_>) -> rusqlite::Result<T>) -> Result<T> {
        self.check_place()?;
        let work = || -> rusqlite::Result<(T, Option<Revision>)> {
            let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut change = Change::begin(&tx, Moment::now())?;
            let value = body(&mut change)?;
            let revision = change.revision();
            let has_events = change.finish()?;
            tx.commit()?;
            Ok((value, has_events.then_some(revision)))
        };
        let done = work();
        let (value, revision) = self.explain(done)?;
        if let Some(revision) = revision {
            self.seen = self.seen.max(revision);
            self.notifier.notify();
        }
        Ok(value)
    }

    /// Goes over to the file that is there if it is another one, and restores one that was deleted: a process that
    /// goes on with a deleted file shares the store with no other, and the next agent would start a second network.
    fn check_place(&mut self) -> Result<()> {
        match identity(&self.path) {
            Ok(identity) if identity == self.identity && !self.is_doubtful => Ok(()),
            Ok(_) => self.reopen(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.restore_deleted()?;
                self.reopen()
            }
            Err(error) => Err(self.unavailable(error.into())),
        }
    }

    /// Everything is still in the file, which is open.
    fn restore_deleted(&self) -> Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        if !dir.is_dir() {
            let why = format!(
                "the directory {} was removed: create it, and the store is restored",
                dir.display()
            );
            return Err(self.unavailable(why.into()));
        }
        let restore = || -> std::result::Result<(), Cause> {
            let _lock = Lock::take(&self.path)?;
            if self.path.exists() {
                return Ok(());
            }
            match copy::write_deleted(&self.connection, &self.path) {
                Ok(()) => {
                    tracing::warn!(store = %self.path.display(), "store deleted while it was open, restored");
                    Ok(())
                }
                Err(cause) => copy::restore(&self.path, &cause),
            }
        };
        restore().map_err(|cause| self.unavailable(cause))
    }

    /// If the file is no copy of the one before, or an older one, its revisions mean something else than those that
    /// this process knows: they are moved out of their range.
    fn reopen(&mut self) -> Result<()> {
        let mut fresh = Self::open(&self.path)?;
        let known = i64::try_from(self.seen.0).unwrap_or(i64::MAX / 2);
        let mut join = || -> rusqlite::Result<bool> {
            let sql = "SELECT revision FROM head";
            let head: i64 = fresh.connection.query_row(sql, (), |row| row.get(0))?;
            let is_successor = fresh.id == self.id && head >= known;
            if !is_successor {
                schema::rebase(&mut fresh.connection, known.saturating_add(1))?;
            }
            Ok(is_successor)
        };
        let joined = join();
        let is_successor = self.explain(joined)?;
        fresh.notifier.notify();
        fresh.seen = if is_successor { self.seen } else { Revision(0) };
        tracing::info!(store = %self.path.display(), is_successor, "store opened again");
        *self = fresh;
        Ok(())
    }

    fn explain<T>(&mut self, result: rusqlite::Result<T>) -> Result<T> {
        result.map_err(|cause| {
            if may_pass(&cause) {
                return self.unavailable(cause.into());
            }
            self.is_doubtful = true;
            self.unavailable(format!("{cause}; it is opened and checked again").into())
        })
    }

    fn unavailable(&self, cause: Cause) -> Error {
        Error::Unavailable { store: self.path.display().to_string(), cause }
    }

    fn refused(&self, cause: Cause) -> Error {
        Error::Refused { store: self.path.display().to_string(), cause }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Whether the same may succeed later.
fn may_pass(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{
        DatabaseBusy, DatabaseLocked, DiskFull, OutOfMemory, SystemIoFailure,
    };
    let passing = [DatabaseBusy, DatabaseLocked, DiskFull, OutOfMemory, SystemIoFailure];
    error.sqlite_error_code().is_some_and(|code| passing.contains(&code))
}

fn entry(connection: &Connection, key: &str) -> rusqlite::Result<Option<Entry>> {
    connection.query_row(&format!("{ENTRY} WHERE key = ?1"), [key], read_entry).optional()
}

/// The inner error explains which limit the list exceeds.
fn snapshot(
    connection: &mut Connection,
    prefix: &str,
) -> rusqlite::Result<std::result::Result<Snapshot, String>> {
    let tx = connection.transaction()?;
    let (revision, _) = head(&tx)?;
    let sql = format!("{ENTRY} WHERE {IN_RANGE} ORDER BY key");
    let mut listed = Listed::default();
    let mut rows = tx.prepare(&sql)?;
    for entry in rows.query_map((prefix, key::end_of(prefix)), read_entry)? {
        if let Err(why) = listed.push(entry?) {
            return Ok(Err(format!("under {prefix:?} {why}")));
        }
    }
    Ok(Ok(Snapshot { entries: listed.entries, revision }))
}

fn look(connection: &mut Connection, prefix: &str, after: Revision) -> rusqlite::Result<Look> {
    let tx = connection.transaction()?;
    let (head, compacted) = head(&tx)?;
    let next: Option<i64> = tx.query_row(NEXT_DUE, (), |row| row.get(0))?;
    let due = next.map(|due| Moment::now().until(due));
    // A revision that is yet to come is one of another database.
    if after < compacted || after > head {
        return Ok(Look { watched: Watched::Compacted, due });
    }
    let sql = format!(
        "{EVENT}
         WHERE revision > ?3 AND {IN_RANGE} ORDER BY revision LIMIT {BATCH}"
    );
    let events = collect(&tx, &sql, &[&prefix, &key::end_of(prefix), &signed(after)], read_event)?;
    let revision = match events.last() {
        Some(last) if events.len() == BATCH => last.revision(),
        _ => head,
    };
    Ok(Look { watched: Watched::Changes { events, revision }, due })
}

/// The newest revision, and the newest whose events are forgotten.
pub fn head(tx: &Transaction<'_>) -> rusqlite::Result<(Revision, Revision)> {
    let read = |row: &Row<'_>| Ok((unsigned(row.get(0)?), unsigned(row.get(1)?)));
    tx.query_row("SELECT revision, compacted FROM head", (), read)
}

fn collect<T>(
    tx: &Transaction<'_>,
    sql: &str,
    parameters: &[&dyn ToSql],
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    tx.prepare(sql)?.query_map(parameters, read)?.collect()
}

fn read_entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let length = u64::try_from(row.get::<_, i64>(4)?).unwrap_or_default();
    let entry = Entry {
        key: row.get(0)?,
        revision: unsigned(row.get(1)?),
        created: unsigned(row.get(2)?),
        expires: row.get(3)?,
        value: row.get(5)?,
        oversized: (length > MAX_VALUE as u64).then_some(length),
    };
    Ok(entry.bounded())
}

fn read_event(row: &Row<'_>) -> rusqlite::Result<Event> {
    let is_deleted = matches!(row.get_ref(4)?, rusqlite::types::ValueRef::Null);
    if is_deleted {
        let (key, revision) = (limit::key(row.get(0)?), unsigned(row.get(1)?));
        return Ok(Event::Deleted { key, revision });
    }
    read_entry(row).map(Event::Put)
}

/// SQLite's integers have a sign, and it counts from 1.
fn unsigned(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or_default())
}

pub fn signed(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_know_the_limit() {
        assert!(value!().contains(&format!("<= {MAX_VALUE},")));
    }

    /// A look must not cost more where there is more.
    #[test]
    fn what_is_due_next_is_looked_up_and_not_searched() {
        let dir = tempfile::tempdir().unwrap();
        let connection = schema::open(&dir.path().join("db"), false).unwrap();
        for sql in [NEXT_DUE, IS_DUE] {
            let explain = format!("EXPLAIN QUERY PLAN {sql}");
            let mut plan = connection.prepare(&explain).unwrap();
            let parameters = vec![0; plan.parameter_count()];
            let steps: Vec<String> = plan
                .query_map(rusqlite::params_from_iter(parameters), |row| row.get("detail"))
                .unwrap()
                .collect::<rusqlite::Result<_>>()
                .unwrap();
            assert!(steps.iter().any(|step| step.contains("INDEX entry_due")), "{sql}: {steps:?}");
        }
    }
}
