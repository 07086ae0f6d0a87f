// SPDX-License-Identifier: Apache-2.0
//! A store in etcd, through its v3 API.
//!
//! All requests share one connection to one of the endpoints. If it breaks, or its server has no leader, the next
//! endpoint is used. Reads are repeated. A write that may have been carried out is repeated only if that does no harm
//! and its outcome can be determined afterwards. A list is read in pages of one revision, so that every answer is
//! bounded.
//!
//! An entry with a time to live has its own etcd lease. A lease that is no longer used expires. Keys that are not UTF-8
//! are ignored.

mod client;
mod conf;
mod endpoints;
mod failure;
mod proto;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use self::client::{Client, Effect, LARGEST, is_compacted, was_too_large};
pub use self::conf::{Credentials, EtcdConf, Identity, Tls};
use self::proto::{
    Compare, CompareResult, CompareTarget, CompareWith, DeleteRange, KeyValue, LeaseGrant,
    LeaseRevoke, Put, Range, Request, Response, Txn, TxnAnswer,
};
use self::watch::Watcher;
use crate::limit::{self, BoundedList};
use crate::{BoxFuture, Entry, Result, Revision, Snapshot, Store, Watch, WriteResult, key};

/// Entries per page of a list.
const PAGE: i64 = 1000;

/// How often a list starts again because etcd has compacted its revision.
const LIST_ATTEMPTS: usize = 3;

/// Longest time to live that etcd grants, in seconds.
const LONGEST_TTL: i64 = 9_000_000_000;

/// A client of an etcd cluster. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Etcd(Arc<Client>);

impl Etcd {
    /// Checks the configuration. It connects when the first request is made.
    pub fn new(conf: &EtcdConf) -> Result<Self> {
        Client::new(conf).map(|client| Self(Arc::new(client)))
    }

    /// Returns the entry of a key and the ID of its etcd lease.
    async fn find(&self, key: &str) -> Result<Option<(Entry, i64)>> {
        key::check(key)?;
        let mut range = Range::of_key(key);
        let answer = match self.0.call(range.clone(), Effect::None).await {
            Err(error) if was_too_large(&error) => {
                range.keys_only = true;
                self.0.call(range.clone(), Effect::None).await?
            }
            answer => answer?,
        };
        let found = answer.kvs.into_iter().next();
        Ok(found.and_then(|kv| {
            let lease = kv.lease;
            Some((entry(kv, range.keys_only)?, lease))
        }))
    }

    /// Lists page by page, as of the revision of the first page. Returns `None` if etcd has compacted that revision.
    async fn list_pages(&self, prefix: &str) -> Result<Option<Snapshot>> {
        let mut listed = BoundedList::default();
        let mut range = Range { limit: PAGE, ..Range::of_prefix(prefix) };
        loop {
            let answer = match self.0.call(range.clone(), Effect::None).await {
                // Use smaller pages, and at last only the key of a value that fits in no answer.
                Err(error) if was_too_large(&error) && !range.keys_only => {
                    range.keys_only = range.limit == 1;
                    range.limit = (range.limit / 8).max(1);
                    continue;
                }
                Err(error) if is_compacted(&error) && range.revision > 0 => return Ok(None),
                answer => answer?,
            };
            if range.revision == 0 {
                range.revision = answer.header.unwrap_or_default().revision;
            }
            let next = answer.kvs.last().map(|last| [&last.key[..], &[0]].concat());
            let mut entries = answer.kvs.into_iter().filter_map(|kv| entry(kv, range.keys_only));
            entries
                .try_for_each(|entry| listed.push(entry))
                .map_err(|limit| self.0.refused(format!("list {prefix:?}: {limit}").into()))?;
            let Some(next) = next.filter(|_| answer.more) else {
                let revision = revision(range.revision);
                return Ok(Some(Snapshot { entries: listed.entries, revision }));
            };
            range.key = next;
            range.keys_only = false;
            range.limit = (range.limit * 2).min(PAGE);
        }
    }

    /// Writes an entry under a condition. A time to live needs an etcd lease first, which is revoked if the condition
    /// does not hold.
    async fn put(
        &self,
        key: &str,
        condition: Compare,
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<WriteResult> {
        key::check(key)?;
        limit::check_value(key, value)?;
        let lease = match ttl {
            Some(ttl) => self.0.call(LeaseGrant { ttl: seconds(ttl) }, Effect::None).await?.id,
            None => 0,
        };
        let put = Put { key: key.into(), value: value.to_owned(), lease };
        // An entry without a time to live that is created late would stay forever.
        let effect = match lease == 0 && condition.target == i32::from(CompareTarget::Version) {
            true => Effect::Any { key },
            false => Effect::Once { key },
        };
        let txn = Txn::new(key, Some(condition), Request::Put(put));
        let (answer, is_doubtful) = self.0.call_with_doubt(txn, effect).await?;
        let written = match outcome(answer, value, lease, is_doubtful) {
            Some(written) => written,
            None => {
                let cause = "the value is present, written by this node or by another one";
                return Err(self.0.uncertain(key, cause.into()));
            }
        };
        if lease != 0 && !written.is_done() {
            // If this fails, the lease expires.
            let _ = self.0.call(LeaseRevoke { id: lease }, Effect::None).await;
        }
        Ok(written)
    }

    async fn remove(&self, key: &str, expected: Option<Revision>) -> Result<WriteResult> {
        key::check(key)?;
        let condition = expected.map(|expected| is_unchanged(key, expected));
        let effect = match expected {
            Some(_) => Effect::Once { key },
            None => Effect::Any { key },
        };
        let delete = Request::DeleteRange(DeleteRange { key: key.into() });
        let answer = self.0.call(Txn::new(key, condition, delete), effect).await?;
        let now = revision(answer.header.clone().unwrap_or_default().revision);
        match written(answer).0 {
            WriteResult::Conflict(None) => Ok(WriteResult::Done(now)),
            written => Ok(written),
        }
    }

    async fn keep_alive(&self, key: &str, expected: Revision) -> Result<WriteResult> {
        let Some((found, lease)) = self.find(key).await? else {
            return Ok(WriteResult::Conflict(None));
        };
        if found.revision != expected {
            return Ok(WriteResult::Conflict(Some(found)));
        }
        if lease == 0 || self.0.keep_alive(lease).await? {
            return Ok(WriteResult::Done(expected));
        }
        // The entry expired between the two requests.
        Ok(WriteResult::Conflict(self.find(key).await?.map(|(entry, _)| entry)))
    }
}

impl Store for Etcd {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Option<Entry>> {
        Box::pin(async move { Ok(self.find(key).await?.map(|(entry, _)| entry)) })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Snapshot> {
        Box::pin(async move {
            for _ in 0..LIST_ATTEMPTS {
                if let Some(snapshot) = self.list_pages(prefix).await? {
                    return Ok(snapshot);
                }
            }
            let cause = "etcd compacts its history faster than all entries can be listed";
            Err(self.0.unavailable(cause.into()))
        })
    }

    fn watch(&self, prefix: &str, after: Revision) -> Box<dyn Watch> {
        Box::new(Watcher::new(Arc::clone(&self.0), prefix.to_owned(), after))
    }

    fn create<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        ttl: Option<Duration>,
    ) -> BoxFuture<'a, WriteResult> {
        Box::pin(self.put(key, is_absent(key), value, ttl))
    }

    fn compare_and_swap<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        expected: Revision,
        ttl: Option<Duration>,
    ) -> BoxFuture<'a, WriteResult> {
        Box::pin(self.put(key, is_unchanged(key, expected), value, ttl))
    }

    fn refresh_ttl<'a>(&'a self, key: &'a str, expected: Revision) -> BoxFuture<'a, WriteResult> {
        Box::pin(self.keep_alive(key, expected))
    }

    fn delete<'a>(
        &'a self,
        key: &'a str,
        expected: Option<Revision>,
    ) -> BoxFuture<'a, WriteResult> {
        Box::pin(self.remove(key, expected))
    }

    fn reconnect(&self) {
        self.0.reconnect();
    }
}

fn is_absent(key: &str) -> Compare {
    compare(key, CompareTarget::Version, CompareWith::Version(0))
}

fn is_unchanged(key: &str, since: Revision) -> Compare {
    // etcd reports revision 0 for a key that does not exist.
    let since = i64::try_from(since.0).ok().filter(|since| *since > 0).unwrap_or(-1);
    compare(key, CompareTarget::ModRevision, CompareWith::ModRevision(since))
}

fn compare(key: &str, target: CompareTarget, with: CompareWith) -> Compare {
    let result = CompareResult::Equal.into();
    Compare { result, target: target.into(), key: key.into(), with: Some(with) }
}

/// Returns the result of a put. If an earlier attempt may have been carried out, the present entry may be our own; its
/// lease shows that. Returns `None` if that cannot be determined.
fn outcome(answer: TxnAnswer, value: &[u8], lease: i64, is_doubtful: bool) -> Option<WriteResult> {
    let (written, found) = written(answer);
    let Some(Entry { revision, value: present, .. }) = written.present().filter(|_| is_doubtful)
    else {
        return Some(written);
    };
    match lease {
        0 if present == value => None,
        0 => Some(written),
        _ if found == lease => Some(WriteResult::Done(*revision)),
        _ => Some(written),
    }
}

/// Returns the result, and the lease of the present entry after a conflict.
fn written(answer: TxnAnswer) -> (WriteResult, i64) {
    if answer.succeeded {
        return (WriteResult::Done(revision(answer.header.unwrap_or_default().revision)), 0);
    }
    let found = answer.responses.into_iter().find_map(|op| op.response);
    let kvs = found.map(|Response::Range(range)| range.kvs).unwrap_or_default();
    let lease = kvs.first().map_or(0, |kv| kv.lease);
    (WriteResult::Conflict(kvs.into_iter().find_map(|kv| entry(kv, false))), lease)
}

/// `is_huge` means that the value was not requested because it fits in no answer.
fn entry(kv: KeyValue, is_huge: bool) -> Option<Entry> {
    let entry = Entry {
        key: text(kv.key)?,
        value: kv.value,
        revision: revision(kv.mod_revision),
        created: revision(kv.create_revision),
        expires: kv.lease != 0,
        oversized: is_huge.then_some(LARGEST as u64),
    };
    Some(entry.bounded())
}

fn text(key: Vec<u8>) -> Option<String> {
    let text = String::from_utf8(key);
    if let Err(error) = &text {
        tracing::debug!(key = ?error.as_bytes(), "ignoring key that is not UTF-8");
    }
    text.ok()
}

fn revision(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or_default())
}

/// Rounds up to whole seconds.
fn seconds(ttl: Duration) -> i64 {
    let whole = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
    i64::try_from(whole).unwrap_or(LONGEST_TTL).clamp(1, LONGEST_TTL)
}

#[cfg(test)]
mod tests {
    use super::proto::RangeAnswer;
    use super::*;

    #[test]
    fn ttl_is_rounded_up_and_limited() {
        assert_eq!(seconds(Duration::ZERO), 1);
        assert_eq!(seconds(Duration::from_secs(86_400)), 86_400);
        assert_eq!(seconds(Duration::from_millis(1001)), 2);
        assert_eq!(seconds(Duration::MAX), LONGEST_TTL);
    }

    #[test]
    fn revision_zero_never_matches() {
        let with = |revision| is_unchanged("k", Revision(revision)).with;
        assert_eq!(with(0), Some(CompareWith::ModRevision(-1)));
        assert_eq!(with(u64::MAX), Some(CompareWith::ModRevision(-1)));
        assert_eq!(with(7), Some(CompareWith::ModRevision(7)));
    }

    #[test]
    fn own_write_is_recognized_by_its_lease() {
        fn check(
            present: Option<(&str, i64)>,
            own: i64,
            is_doubtful: bool,
            expected: Option<bool>,
        ) {
            let kvs = present.map(|(value, lease)| KeyValue {
                key: b"k".to_vec(),
                value: value.into(),
                lease,
                mod_revision: 7,
                create_revision: 7,
            });
            let range = RangeAnswer { kvs: kvs.into_iter().collect(), ..RangeAnswer::default() };
            let responses = vec![proto::ResponseOp { response: Some(Response::Range(range)) }];
            let answer = TxnAnswer { responses, ..TxnAnswer::default() };
            let outcome = outcome(answer, b"own", own, is_doubtful);
            assert_eq!(outcome.map(|written| written.is_done()), expected, "{present:?} {own}");
        }
        check(Some(("own", 5)), 5, true, Some(true));
        check(Some(("own", 6)), 5, true, Some(false));
        check(Some(("own", 5)), 5, false, Some(false));
        check(Some(("own", 0)), 0, true, None);
        check(Some(("own", 0)), 0, false, Some(false));
        check(Some(("other", 0)), 0, true, Some(false));
        check(None, 5, true, Some(false));
    }

    #[test]
    fn keys_that_are_not_utf8_are_ignored() {
        let kv = |key: &[u8], lease| KeyValue { key: key.into(), lease, ..KeyValue::default() };
        assert_eq!(entry(kv(&[0xff], 0), false), None);
        assert!(!entry(kv(b"reserved", 0), false).unwrap().expires);
        assert!(entry(kv(b"leased", 1), false).unwrap().expires);
    }
}
