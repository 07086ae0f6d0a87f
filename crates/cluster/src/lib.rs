// SPDX-License-Identifier: Apache-2.0
//! Kubernetes as a source of state.
//!
//! A [`Cluster`] is a client of one API server. A [`Reflector`] keeps a [`Mirror`] of all objects of one kind: it
//! lists them, watches for changes, and survives restarts of the server. A [`Follower`] does the same for a caller that
//! keeps the objects itself. Objects are trimmed while they are decoded,
//! so that 5,000 nodes take a few megabytes. To mirror another kind, implement [`Resource`] for a trimmed type, as
//! [`Node`] does.
//!
//! Writes to nodes are typed: annotations and conditions. They use the requests that flannel makes, so the rights to
//! get, list and watch `nodes` and to patch `nodes/status` are enough. Custom resources are written as JSON, on
//! condition that they have not changed.

mod access;
mod backoff;
mod client;
mod error;
mod failure;
mod follower;
mod mirror;
mod node;
mod object;
mod reflector;
mod watch;
mod write;

pub use self::access::{Access, SERVICE_ACCOUNT};
pub use self::client::Cluster;
pub use self::error::{Cause, Error, Result};
pub use self::follower::{Followed, Follower};
pub use self::mirror::Mirror;
pub use self::node::{
    AnnotationChanges, AnnotationPrefixes, Condition, Node, Write, annotation_changes,
};
pub use self::object::{Metadata, Object, Resource, Revision, Snapshot, TooLarge, is_name};
pub use self::reflector::{Reflector, Update};
pub use self::watch::{Event, WatchUpdate, Watcher};
pub use self::write::Json;
