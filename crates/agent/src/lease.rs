// SPDX-License-Identifier: Apache-2.0
//! The leases of all nodes, the network configuration, and how this node gets its own lease.
//!
//! [`LeaseBackend`] is the point of variation: `keyvalue` keeps flannel's keys in a store, `kubernetes` keeps
//! flannel's annotations on node objects.

mod backend;
mod keyvalue;
mod kubernetes;
mod open;
mod peer_watch;

pub use self::backend::{
    AcquireError, BoxFuture, Cached, CachedEntry, ConfigLocation, Error, HeldLease, LeaseBackend,
    LeaseOrigin, LeasePreview, LeaseRequest, NodeRecord, NodeRecordState, OwnNode, Renewal,
    Snapshot, StoreItem, saved_text,
};
pub use self::keyvalue::{KeyValueLeases, TIME_TO_LIVE};
pub use self::kubernetes::{KubernetesConf, KubernetesLeases};
pub(crate) use self::open::{open, open_objects};
pub use self::peer_watch::{PeerEvents, PeerSource, PeerWatch};
