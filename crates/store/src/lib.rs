// SPDX-License-Identifier: Apache-2.0
//! Where nodes find each other: small texts under keys, which many write and all watch.
//!
//! [`Store`] is what a node needs of such a place, and no more: a list with the revision it was true
//! at, a watch from there, and writes that fail when somebody was quicker. `embedded` is one file for
//! the processes of one machine; `etcd` is a cluster of servers; `kubernetes` has the nodes of a
//! Kubernetes cluster. What keys and values mean is the caller's business, but for `kubernetes`, whose
//! entries are there whether somebody writes them or not.

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
