// SPDX-License-Identifier: Apache-2.0
//! A key-value store that nodes share: small values that many write and all watch.
//!
//! [`Store`] offers what an agent needs: a list with its revision, a watch that starts there, and writes that fail if
//! another node was faster. `embedded` is one file for the processes of one machine, `etcd` is a cluster of servers. The
//! caller decides what keys and values mean.

mod backoff;
mod error;
mod key;
pub mod limit;
mod store;

#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;

pub use self::error::{Cause, Error, Result};
pub use self::store::{
    BoxFuture, Entry, Event, Revision, Snapshot, Store, Watch, Watched, WriteResult,
};
