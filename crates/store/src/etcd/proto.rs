// SPDX-License-Identifier: Apache-2.0
//! The messages and fields of etcd's v3 API that this client uses. Protobuf skips all others.
//! Field numbers are those of `rpc.proto`, `kv.proto` and `auth.proto`.

use std::fmt;

use prost::{Enumeration, Message, Oneof};

/// A call with one answer.
pub(super) trait Call: Message + Clone + Send + Sync + 'static {
    const PATH: &'static str;
    type Answer: Message + Default + Send + Sync + 'static;
}

macro_rules! calls {
    ($($request:ty => $answer:ty, $path:literal;)+) => {
        $(impl Call for $request {
            const PATH: &'static str = concat!("/etcdserverpb.", $path);
            type Answer = $answer;
        })+
    };
}

calls! {
    Range => RangeAnswer, "KV/Range";
    Txn => TxnAnswer, "KV/Txn";
    LeaseGrant => LeaseGrantAnswer, "Lease/LeaseGrant";
    LeaseRevoke => LeaseRevokeAnswer, "Lease/LeaseRevoke";
    Authenticate => AuthenticateAnswer, "Auth/Authenticate";
}

/// Streams in both directions.
pub(super) const WATCH: &str = "/etcdserverpb.Watch/Watch";
pub(super) const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Range {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Empty for a single key.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// 0 means no limit.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// 0 means the newest revision.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
    #[prost(bool, tag = "9")]
    pub count_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeAnswer {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// Whether there are entries beyond the limit.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    /// 0 means no lease.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRange {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Enumeration)]
#[repr(i32)]
pub enum CompareResult {
    Equal = 0,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Enumeration)]
#[repr(i32)]
pub enum CompareTarget {
    Version = 0,
    ModRevision = 2,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum CompareWith {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub result: i32,
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(oneof = "CompareWith", tags = "4, 6")]
    pub with: Option<CompareWith>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Request {
    #[prost(message, tag = "1")]
    Range(Range),
    #[prost(message, tag = "2")]
    Put(Put),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRange),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3")]
    pub request: Option<Request>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Response {
    #[prost(message, tag = "1")]
    Range(RangeAnswer),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseOp {
    #[prost(oneof = "Response", tags = "1")]
    pub response: Option<Response>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Txn {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnAnswer {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrant {
    /// In seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrantAnswer {
    #[prost(int64, tag = "2")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseRevoke {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseRevokeAnswer {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseKeepAlive {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseKeepAliveAnswer {
    /// 0 if the lease does not exist.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(super) struct Authenticate {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub password: String,
}

impl fmt::Debug for Authenticate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticate").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(super) struct AuthenticateAnswer {
    #[prost(string, tag = "2")]
    pub token: String,
}

impl fmt::Debug for AuthenticateAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateAnswer").finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    #[prost(bool, tag = "4")]
    pub progress_notify: bool,
    /// Requests answers of limited size.
    #[prost(bool, tag = "8")]
    pub fragment: bool,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum WatchUnion {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchRequest {
    #[prost(oneof = "WatchUnion", tags = "1")]
    pub request: Option<WatchUnion>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Enumeration)]
#[repr(i32)]
pub enum EventType {
    Put = 0,
    Delete = 1,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    #[prost(enumeration = "EventType", tag = "1")]
    pub kind: i32,
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchAnswer {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(bool, tag = "3")]
    pub created: bool,
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    /// Events of the same revision follow in the next answer.
    #[prost(bool, tag = "7")]
    pub fragment: bool,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}

impl Range {
    pub(super) fn of_key(key: &str) -> Self {
        Self { key: key.into(), ..Self::default() }
    }

    pub(super) fn of_prefix(prefix: &str) -> Self {
        let (key, range_end) = bounds(prefix);
        Self { key, range_end, ..Self::default() }
    }
}

impl Txn {
    /// Returns a transaction: the request if the condition holds, else a read of the key.
    pub(super) fn new(key: &str, condition: Option<Compare>, then: Request) -> Self {
        let op = |request| vec![RequestOp { request: Some(request) }];
        let look = Request::Range(Range::of_key(key));
        Self { compare: condition.into_iter().collect(), success: op(then), failure: op(look) }
    }
}

/// Returns a range of keys in etcd's form, in which a zero byte means the first key or no end.
pub(super) fn bounds(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let start = if prefix.is_empty() { vec![0] } else { prefix.into() };
    (start, crate::key::end_of(prefix).map_or_else(|| vec![0], String::into_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_everything_and_of_a_prefix() {
        assert_eq!(bounds(""), (vec![0], vec![0]));
        assert_eq!(bounds("/a/"), (b"/a/".to_vec(), b"/a0".to_vec()));
        assert_eq!(bounds("\u{10ffff}"), ("\u{10ffff}".into(), vec![0]));
    }

    /// `compare { target: MOD key: "k" mod_revision: 7 }`: field and type, length, content.
    #[test]
    fn transaction_has_the_bytes_of_the_api() {
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::ModRevision.into(),
            key: b"k".to_vec(),
            with: Some(CompareWith::ModRevision(7)),
        };
        let bytes = Txn { compare: vec![compare], ..Txn::default() }.encode_to_vec();
        assert_eq!(bytes, [0x0a, 7, 0x10, 2, 0x1a, 1, b'k', 0x30, 7]);
    }
}
