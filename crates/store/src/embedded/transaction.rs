// SPDX-License-Identifier: Apache-2.0
//! A transaction in the making: every change gets the next revision and leaves an event.

use std::time::Duration;

use rusqlite::Transaction;

use super::clock::{self, Moment};
use super::database::{head, signed};
use crate::{Entry, Revision, WriteResult};

/// So many events are remembered. A node that was away for more has to list again, which is cheap.
const REMEMBERED: u64 = 10_000;

#[derive(Debug)]
pub struct Change<'a> {
    tx: &'a Transaction<'a>,
    now: Moment,
    /// Before all this, and by now.
    before: Revision,
    revision: Revision,
}

impl<'a> Change<'a> {
    /// Starts with removing what is due.
    pub fn begin(tx: &'a Transaction<'a>, now: Moment) -> rusqlite::Result<Self> {
        let (revision, _) = head(tx)?;
        let mut change = Self { tx, now, before: revision, revision };
        for key in change.due()? {
            change.remove(&key)?;
        }
        Ok(change)
    }

    pub fn tx(&self) -> &'a Transaction<'a> {
        self.tx
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// In place of `present`, which is all there is under the key.
    pub fn put(
        &mut self,
        present: Option<&Entry>,
        key: &str,
        value: &[u8],
        ttl: Option<Duration>,
    ) -> rusqlite::Result<WriteResult> {
        let ttl = ttl.map(clock::millis);
        let due = ttl.map(|ttl| self.now.after(ttl));
        let revision = self.next();
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

    pub fn remove(&mut self, key: &str) -> rusqlite::Result<WriteResult> {
        let revision = self.next();
        let sql = "INSERT INTO event (revision, key, expires) VALUES (?1, ?2, FALSE)";
        self.tx.execute(sql, (signed(revision), key))?;
        self.tx.execute("DELETE FROM entry WHERE key = ?1", [key])?;
        Ok(WriteResult::Done(revision))
    }

    /// Starts the time to live anew. That is no event.
    pub fn refresh_ttl(&mut self, entry: &Entry) -> rusqlite::Result<WriteResult> {
        let ttl = "SELECT ttl FROM entry WHERE key = ?1";
        let ttl: Option<i64> = self.tx.query_row(ttl, [&entry.key], |row| row.get(0))?;
        if let Some(ttl) = ttl {
            let sql = "UPDATE entry SET due = ?2 WHERE key = ?1";
            self.tx.execute(sql, (&entry.key, self.now.after(ttl)))?;
        }
        Ok(WriteResult::Done(entry.revision))
    }

    /// Forgets the events up to `until`.
    pub fn forget(&mut self, until: Revision) -> rusqlite::Result<()> {
        let until = signed(until);
        self.tx.execute("DELETE FROM event WHERE revision <= ?1", [until])?;
        self.tx.execute("UPDATE head SET compacted = max(compacted, ?1)", [until])?;
        Ok(())
    }

    /// Whether there is something that watches have to be woken for.
    pub fn finish(mut self) -> rusqlite::Result<bool> {
        if self.revision == self.before {
            return Ok(false);
        }
        self.tx.execute("UPDATE head SET revision = ?1", [signed(self.revision)])?;
        if let Some(old) = self.revision.0.checked_sub(REMEMBERED) {
            self.forget(Revision(old))?;
        }
        Ok(true)
    }

    fn next(&mut self) -> Revision {
        self.revision.0 += 1;
        self.revision
    }

    fn due(&self) -> rusqlite::Result<Vec<String>> {
        let sql = "SELECT key FROM entry WHERE due <= ?1 ORDER BY due, key";
        self.tx.prepare(sql)?.query_map([self.now.0], |row| row.get(0))?.collect()
    }
}
