// SPDX-License-Identifier: Apache-2.0
//! A write transaction: every change gets the next revision and is recorded as an event.

use std::time::Duration;

use rusqlite::Transaction;

use super::clock::{self, Moment};
use super::database::{head, signed};
use crate::{Entry, Revision, WriteResult};

/// Number of events that are kept. A watch that is further behind has to list again, which is cheap.
const KEPT_EVENTS: u64 = 10_000;

#[derive(Debug)]
pub(super) struct WriteTransaction<'a> {
    tx: &'a Transaction<'a>,
    now: Moment,
    /// Revision before the transaction.
    before: Revision,
    /// Revision after the changes so far.
    revision: Revision,
}

impl<'a> WriteTransaction<'a> {
    /// Begins with removing expired entries, so that no condition depends on them.
    pub(super) fn begin(tx: &'a Transaction<'a>, now: Moment) -> rusqlite::Result<Self> {
        let (revision, _) = head(tx)?;
        let mut write = Self { tx, now, before: revision, revision };
        for key in write.expired()? {
            write.remove(&key)?;
        }
        Ok(write)
    }

    pub(super) fn tx(&self) -> &'a Transaction<'a> {
        self.tx
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// Writes an entry in place of `present`, the present entry of the key.
    pub(super) fn put(
        &mut self,
        present: Option<&Entry>,
        key: &str,
        value: &[u8],
        ttl: Option<Duration>,
    ) -> rusqlite::Result<WriteResult> {
        let ttl = ttl.map(clock::millis);
        let due = ttl.map(|ttl| self.now.after(ttl));
        let revision = self.next_revision();
        let created = present.map_or(revision, |entry| entry.created);
        let (number, created) = (signed(revision), signed(created));
        let sql = "INSERT INTO event (revision, key, value, created, expires)
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        self.tx.execute(sql, (number, key, value, created, due.is_some()))?;
        let sql = "REPLACE INTO entry (key, value, revision, created, ttl, due)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        self.tx.execute(sql, (key, value, number, created, ttl, due))?;
        Ok(WriteResult::Done(revision))
    }

    pub(super) fn remove(&mut self, key: &str) -> rusqlite::Result<WriteResult> {
        let revision = self.next_revision();
        let sql = "INSERT INTO event (revision, key, expires) VALUES (?1, ?2, FALSE)";
        self.tx.execute(sql, (signed(revision), key))?;
        self.tx.execute("DELETE FROM entry WHERE key = ?1", [key])?;
        Ok(WriteResult::Done(revision))
    }

    /// Restarts the time to live. This is not an event.
    pub(super) fn refresh_ttl(&mut self, entry: &Entry) -> rusqlite::Result<WriteResult> {
        let ttl = "SELECT ttl FROM entry WHERE key = ?1";
        let ttl: Option<i64> = self.tx.query_row(ttl, [&entry.key], |row| row.get(0))?;
        if let Some(ttl) = ttl {
            let sql = "UPDATE entry SET due = ?2 WHERE key = ?1";
            self.tx.execute(sql, (&entry.key, self.now.after(ttl)))?;
        }
        Ok(WriteResult::Done(entry.revision))
    }

    /// Drops the events up to `until`.
    pub(super) fn drop_events(&mut self, until: Revision) -> rusqlite::Result<()> {
        let until = signed(until);
        self.tx.execute("DELETE FROM event WHERE revision <= ?1", [until])?;
        self.tx.execute("UPDATE head SET compacted = max(compacted, ?1)", [until])?;
        Ok(())
    }

    /// Returns whether watches have to be woken.
    pub(super) fn finish(mut self) -> rusqlite::Result<bool> {
        if self.revision == self.before {
            return Ok(false);
        }
        self.tx.execute("UPDATE head SET revision = ?1", [signed(self.revision)])?;
        if let Some(old) = self.revision.0.checked_sub(KEPT_EVENTS) {
            self.drop_events(Revision(old))?;
        }
        Ok(true)
    }

    fn next_revision(&mut self) -> Revision {
        self.revision.0 += 1;
        self.revision
    }

    fn expired(&self) -> rusqlite::Result<Vec<String>> {
        let sql = "SELECT key FROM entry WHERE due <= ?1 ORDER BY due, key";
        self.tx.prepare(sql)?.query_map([self.now.0], |row| row.get(0))?.collect()
    }
}
