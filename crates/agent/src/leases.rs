// SPDX-License-Identifier: Apache-2.0
//! The leases of all nodes and the network's configuration, as flannel keeps them: under keys of a
//! plain store, to the letter.

mod acquire;
mod follow;
mod keys;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use overlay::lease::Lease;
use store::{Error, Revision, Snapshot, Store};

pub use self::acquire::{AcquireError, Held, Renewal, TIME_TO_LIVE, Want};
pub use self::follow::{Follow, News};
pub use self::keys::Keys;

/// Something of the store, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The network's configuration; none where it was deleted.
    Config(Option<String>),
    Node(NodeSeen),
}

/// What the store says of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSeen {
    /// What the node is called here.
    pub name: String,
    pub revision: Revision,
    pub state: NodeState,
}

/// How a node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeState {
    /// It takes part, since a moment that all nodes see alike.
    In { since: u64, lease: Box<Lease> },
    /// It cannot be understood.
    Bad(String),
    /// It has left.
    Gone,
}

/// The network in a store.
#[derive(Debug, Clone)]
pub struct Leases {
    store: Arc<dyn Store>,
    keys: Keys,
}

impl Leases {
    /// Everything is under `prefix`.
    pub fn new(store: Arc<dyn Store>, prefix: &str) -> Self {
        Self { store, keys: Keys::new(prefix) }
    }

    /// Where the network's configuration is.
    pub fn config_key(&self) -> String {
        self.keys.config()
    }

    /// All of it.
    pub async fn list(&self) -> Result<Snapshot, Error> {
        self.store.list(&self.keys.all()).await
    }

    /// Puts the configuration where there is none.
    pub async fn offer_config(&self, text: &str) -> Result<(), Error> {
        self.store.create(&self.keys.config(), text.as_bytes(), None).await.map(drop)
    }

    /// What a list says.
    pub fn understand(&self, snapshot: &Snapshot) -> Vec<Seen> {
        snapshot.entries.iter().filter_map(|entry| self.keys.seen(entry)).collect()
    }

    /// Changes after a moment.
    pub fn follow(&self, after: Revision) -> Follow {
        Follow::new(self.clone(), after)
    }
}
