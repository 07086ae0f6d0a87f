// SPDX-License-Identifier: Apache-2.0
//! The operations of the store as transactions. [`WriteTransaction`] numbers their changes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, ToSql, Transaction, TransactionBehavior};

use super::clock::Moment;
use super::copy;
use super::notify::{self, Lock, Notifier};
use super::schema::{self, OpenError};
use super::transaction::WriteTransaction;
use super::watch::ReadEvents;
use crate::error::Cause;
use crate::limit::{self, BoundedList};
use crate::{Entry, Error, Event, Result, Revision, Snapshot, Watched, WriteResult, key};

/// Maximum number of events that one read returns.
const BATCH: usize = 1000;

/// A range of keys. Without an end the range ends at a blob, which SQLite orders after all texts.
const IN_RANGE: &str = "key >= ?1 AND key < coalesce(?2, x'')";

/// The length of a value, and the value if it is within the limit. SQLite does not read a longer value.
macro_rules! value {
    () => {
        concat!(
            "octet_length(value), iif(octet_length(value) <= iif(substr(key, 1, 8) = '/calico/', 2097152, 16384), ",
            "CAST(value AS BLOB), x'')"
        )
    };
}

const ENTRY: &str =
    concat!("SELECT key, revision, created, due IS NOT NULL, ", value!(), " FROM entry");

const EVENT: &str = concat!("SELECT key, revision, created, expires, ", value!(), " FROM event");

/// The condition is that of the index. Without it SQLite would read every entry.
const NEXT_DUE: &str = "SELECT min(due) FROM entry WHERE due IS NOT NULL";

const IS_DUE: &str = "SELECT EXISTS (SELECT 1 FROM entry WHERE due <= ?1)";

#[derive(Debug)]
pub(super) struct Database {
    connection: Connection,
    notifier: Notifier,
    path: PathBuf,
    /// Device and inode of the file.
    identity: (u64, u64),
    /// Identity of the content, which copies share.
    id: String,
    /// The newest revision that this process has seen.
    newest: Revision,
    /// The revision of the backup.
    backed_up: Option<Revision>,
    /// Whether the file has to be opened again, because the last error may be one of the connection or of the file.
    must_reopen: bool,
}

impl Database {
    pub(super) fn open(path: &Path) -> Result<Self> {
        Self::open_with(path).map_err(|cause| {
            let store = path.display().to_string();
            match cause.downcast_ref::<rusqlite::Error>() {
                Some(error) if is_transient(error) => Error::Unavailable { store, cause },
                _ => Error::Refused { store, cause },
            }
        })
    }

    fn open_with(path: &Path) -> std::result::Result<Self, Cause> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        let lock = Lock::take(path)?;
        let backup = copy::backup_path(path);
        if !path.exists() && backup.exists() {
            // The store was removed, perhaps by mistake, so its backup is kept under another name.
            let old = notify::beside(&backup, ".old");
            fs::rename(&backup, &old)?;
            tracing::warn!(store = %path.display(), backup = %old.display(), "store missing, creating a new one and keeping the old backup");
        }
        let connection = match schema::open(path, backup.exists()) {
            Ok(connection) => connection,
            Err(OpenError::Other(cause)) => return Err(cause),
            Err(OpenError::Damaged(cause)) => {
                copy::restore(path, &cause)?;
                match schema::open(path, false) {
                    Ok(connection) => connection,
                    Err(OpenError::Other(cause) | OpenError::Damaged(cause)) => return Err(cause),
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
            newest: Revision(0),
            backed_up: None,
            must_reopen: false,
        })
    }

    /// Returns whether the backup may be older than the database.
    pub(super) fn needs_backup(&self) -> bool {
        self.backed_up != Some(self.newest)
    }

    /// Writes the backup, unless another process has written it or is writing it.
    pub(super) fn back_up(&mut self) {
        if let Err(cause) = self.try_back_up() {
            tracing::warn!(store = %self.path.display(), %cause, "backup of the store failed");
        }
    }

    fn try_back_up(&mut self) -> std::result::Result<(), Cause> {
        // The next operation reports the problem of the file.
        if identity(&self.path).ok() != Some(self.identity) || self.must_reopen {
            return Ok(());
        }
        let Some(_lock) = Lock::try_take(&self.path)? else { return Ok(()) };
        schema::leave_wal(&self.connection)?;
        let backup = copy::backup_path(&self.path);
        let saved = copy::check(&backup).ok();
        let revision: i64 =
            self.connection.query_row("SELECT revision FROM head", (), |row| row.get(0))?;
        if saved != Some((self.id.clone(), revision)) {
            // A copy of a damaged database must not replace a valid one.
            schema::verify(&self.connection)?;
            copy::write(&self.connection, &backup)?;
        }
        self.newest = unsigned(revision);
        self.backed_up = Some(self.newest);
        Ok(())
    }

    pub(super) fn get(&mut self, key: &str) -> Result<Option<Entry>> {
        key::check(key)?;
        self.check_file()?;
        self.remove_expired()?;
        let found = entry(&self.connection, key);
        self.explain(found)
    }

    pub(super) fn list(&mut self, prefix: &str) -> Result<Snapshot> {
        self.check_file()?;
        self.remove_expired()?;
        let snapshot = snapshot(&mut self.connection, prefix);
        let listed = self.explain(snapshot)?.map_err(|limit| self.refused(limit.into()))?;
        self.newest = self.newest.max(listed.revision);
        Ok(listed)
    }

    /// Returns the events after `after` for a watch.
    pub(super) fn events(&mut self, prefix: &str, after: Revision) -> Result<ReadEvents> {
        self.check_file()?;
        self.remove_expired()?;
        let read = read_events(&mut self.connection, prefix, after);
        let read = self.explain(read)?;
        if let Watched::Changes { revision, .. } = read.watched {
            self.newest = self.newest.max(revision);
        }
        Ok(read)
    }

    pub(super) fn create(
        &mut self,
        key: &str,
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<WriteResult> {
        key::check(key)?;
        limit::check_value(key, value)?;
        self.write(|write| match entry(write.tx(), key)? {
            Some(present) => Ok(WriteResult::Conflict(Some(present))),
            None => write.put(None, key, value, ttl),
        })
    }

    pub(super) fn compare_and_swap(
        &mut self,
        key: &str,
        value: &[u8],
        expected: Revision,
        ttl: Option<Duration>,
    ) -> Result<WriteResult> {
        key::check(key)?;
        limit::check_value(key, value)?;
        self.write(|write| match entry(write.tx(), key)? {
            Some(present) if present.revision == expected => {
                write.put(Some(&present), key, value, ttl)
            }
            other => Ok(WriteResult::Conflict(other)),
        })
    }

    pub(super) fn refresh_ttl(&mut self, key: &str, expected: Revision) -> Result<WriteResult> {
        key::check(key)?;
        self.write(|write| match entry(write.tx(), key)? {
            Some(present) if present.revision == expected => write.refresh_ttl(&present),
            other => Ok(WriteResult::Conflict(other)),
        })
    }

    pub(super) fn delete(&mut self, key: &str, expected: Option<Revision>) -> Result<WriteResult> {
        key::check(key)?;
        self.write(|write| match entry(write.tx(), key)? {
            None => Ok(WriteResult::Done(write.revision())),
            Some(present) if expected.is_none_or(|expected| expected == present.revision) => {
                write.remove(key)
            }
            other => Ok(WriteResult::Conflict(other)),
        })
    }

    /// Drops all events.
    pub(super) fn compact(&mut self) -> Result<Revision> {
        self.write(|write| {
            let revision = write.revision();
            write.drop_events(revision)?;
            Ok(revision)
        })
    }

    /// Removes expired entries. Takes the lock only if there are any.
    fn remove_expired(&mut self) -> Result<()> {
        let is_due = self.connection.query_row(IS_DUE, [Moment::now().0], |row| row.get(0));
        if self.explain(is_due)? { self.write(|_| Ok(())) } else { Ok(()) }
    }

    /// Runs a write transaction, and wakes watches if it has changed anything.
    fn write<T>(
        &mut self,
        body: impl FnOnce(&mut WriteTransaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        self.check_file()?;
        let work = || -> rusqlite::Result<(T, Option<Revision>)> {
            let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut write = WriteTransaction::begin(&tx, Moment::now())?;
            let value = body(&mut write)?;
            let revision = write.revision();
            let has_events = write.finish()?;
            tx.commit()?;
            Ok((value, has_events.then_some(revision)))
        };
        let done = work();
        let (value, revision) = self.explain(done)?;
        if let Some(revision) = revision {
            self.newest = self.newest.max(revision);
            self.notifier.notify();
        }
        Ok(value)
    }

    /// Opens the file again if it was replaced, and restores it if it was deleted. A process that continued with a deleted
    /// file would share the store with no other process, and the next agent would start a second network.
    fn check_file(&mut self) -> Result<()> {
        match identity(&self.path) {
            Ok(identity) if identity == self.identity && !self.must_reopen => Ok(()),
            Ok(_) => self.reopen(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.restore_deleted()?;
                self.reopen()
            }
            Err(error) => Err(self.unavailable(error.into())),
        }
    }

    /// Writes the deleted file again. Its content is still accessible, because the file is open.
    fn restore_deleted(&self) -> Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        if !dir.is_dir() {
            let cause = format!(
                "the directory {} was removed: create it, then the agent restores the store",
                dir.display()
            );
            return Err(self.unavailable(cause.into()));
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

    /// Opens the file again. If the file is not a copy of the previous one, or an older copy, its revisions have another
    /// meaning than those that this process knows. They are increased beyond all known ones.
    fn reopen(&mut self) -> Result<()> {
        let mut fresh = Self::open(&self.path)?;
        let known = i64::try_from(self.newest.0).unwrap_or(i64::MAX / 2);
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
        fresh.newest = if is_successor { self.newest } else { Revision(0) };
        tracing::info!(store = %self.path.display(), is_successor, "store re-opened");
        *self = fresh;
        Ok(())
    }

    fn explain<T>(&mut self, result: rusqlite::Result<T>) -> Result<T> {
        result.map_err(|cause| {
            if is_transient(&cause) {
                return self.unavailable(cause.into());
            }
            self.must_reopen = true;
            self.unavailable(format!("{cause}; the file will be re-opened and checked").into())
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

/// Returns whether the same operation may succeed later.
fn is_transient(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{
        DatabaseBusy, DatabaseLocked, DiskFull, OutOfMemory, SystemIoFailure,
    };
    let transient = [DatabaseBusy, DatabaseLocked, DiskFull, OutOfMemory, SystemIoFailure];
    error.sqlite_error_code().is_some_and(|code| transient.contains(&code))
}

fn entry(connection: &Connection, key: &str) -> rusqlite::Result<Option<Entry>> {
    connection.query_row(&format!("{ENTRY} WHERE key = ?1"), [key], read_entry).optional()
}

/// The inner error names the limit that the list exceeds.
fn snapshot(
    connection: &mut Connection,
    prefix: &str,
) -> rusqlite::Result<std::result::Result<Snapshot, String>> {
    let tx = connection.transaction()?;
    let (revision, _) = head(&tx)?;
    let sql = format!("{ENTRY} WHERE {IN_RANGE} ORDER BY key");
    let mut listed = BoundedList::default();
    let mut rows = tx.prepare(&sql)?;
    for entry in rows.query_map((prefix, key::end_of(prefix)), read_entry)? {
        if let Err(limit) = listed.push(entry?) {
            return Ok(Err(format!("list {prefix:?}: {limit}")));
        }
    }
    Ok(Ok(Snapshot { entries: listed.entries, revision }))
}

fn read_events(
    connection: &mut Connection,
    prefix: &str,
    after: Revision,
) -> rusqlite::Result<ReadEvents> {
    let tx = connection.transaction()?;
    let (head, compacted) = head(&tx)?;
    let next: Option<i64> = tx.query_row(NEXT_DUE, (), |row| row.get(0))?;
    let due = next.map(|due| Moment::now().until(due));
    // A revision in the future is one of another database.
    if after < compacted || after > head {
        return Ok(ReadEvents { watched: Watched::Compacted, due });
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
    Ok(ReadEvents { watched: Watched::Changes { events, revision }, due })
}

/// Returns the newest revision, and the newest revision whose events were dropped.
pub(super) fn head(tx: &Transaction<'_>) -> rusqlite::Result<(Revision, Revision)> {
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
    let key: String = row.get(0)?;
    let limit = limit::max_value(&key) as u64;
    let entry = Entry {
        key,
        revision: unsigned(row.get(1)?),
        created: unsigned(row.get(2)?),
        expires: row.get(3)?,
        value: row.get(5)?,
        oversized: (length > limit).then_some(length),
    };
    Ok(entry.bounded())
}

fn read_event(row: &Row<'_>) -> rusqlite::Result<Event> {
    let is_deleted = matches!(row.get_ref(4)?, rusqlite::types::ValueRef::Null);
    if is_deleted {
        let (key, revision) = (limit::shorten_key(row.get(0)?), unsigned(row.get(1)?));
        return Ok(Event::Deleted { key, revision });
    }
    read_entry(row).map(Event::Put)
}

fn unsigned(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or_default())
}

pub(super) fn signed(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_use_the_limit_of_values() {
        use limit::{CALICO, MAX_CALICO_VALUE, MAX_VALUE};
        let length = CALICO.len();
        let expected =
            format!("iif(substr(key, 1, {length}) = '{CALICO}', {MAX_CALICO_VALUE}, {MAX_VALUE})");
        assert!(value!().contains(&expected));
    }

    /// The cost of a read must not grow with the number of entries.
    #[test]
    fn expiry_queries_use_the_index() {
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
