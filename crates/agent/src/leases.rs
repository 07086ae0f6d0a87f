// SPDX-License-Identifier: Apache-2.0
//! The leases of all nodes and the network's configuration, as flannel keeps them, to the letter:
//! under keys of a plain store, or in the annotations of Kubernetes' nodes and a file.

mod acquire;
mod follow;
mod keys;
mod last;
mod layout;
mod nodes;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::Arc;

use overlay::lease::Lease;
use store::{Entry, Error, Revision, Snapshot, Store};

pub use self::acquire::{AcquireError, Foreseen, Held, How, Renewal, TIME_TO_LIVE, Want};
pub use self::follow::{Follow, News};
use self::keys::Keys;
use self::last::Last;
use self::layout::Layout;
pub use self::nodes::{Nodes, OwnNode};
use crate::file;

/// Something of the store, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The network's configuration; none where it was deleted.
    Config(Option<String>),
    /// The network's configuration was not read, for this reason.
    ConfigRefused(String),
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
    layout: Layout,
    last: Last,
}

impl Leases {
    /// Everything is under `prefix`.
    pub fn new(store: Arc<dyn Store>, prefix: &str) -> Self {
        Self { store, layout: Layout::Keys(Keys::new(prefix)), last: Last::default() }
    }

    /// In the annotations of nodes.
    pub fn of_nodes(store: Arc<dyn Store>, nodes: Nodes) -> Self {
        Self { store, layout: Layout::Nodes(nodes), last: Last::default() }
    }

    /// Whether nodes choose their subnets themselves.
    pub fn are_chosen(&self) -> bool {
        matches!(self.layout, Layout::Keys(_))
    }

    /// Where the network's configuration is.
    pub fn config_place(&self) -> String {
        match &self.layout {
            Layout::Keys(keys) => format!("the key {}", keys.config()),
            Layout::Nodes(nodes) => format!("the file {}", nodes.config.display()),
        }
    }

    /// The file that the network's configuration is, where it is one.
    pub fn config_file(&self) -> Option<&Path> {
        match &self.layout {
            Layout::Keys(_) => None,
            Layout::Nodes(nodes) => Some(&nodes.config),
        }
    }

    /// The network's configuration; none where there is none yet.
    pub fn configuration(&self, seen: &[Seen]) -> io::Result<Option<String>> {
        match &self.layout {
            Layout::Keys(_) => seen
                .iter()
                .find_map(|one| match one {
                    Seen::Config(text) => text.clone().map(Ok),
                    Seen::ConfigRefused(why) => Some(Err(io::Error::other(why.clone()))),
                    Seen::Node(_) => None,
                })
                .transpose(),
            Layout::Nodes(nodes) => file::read(&nodes.config),
        }
    }

    /// What Kubernetes says of this node; nothing elsewhere.
    pub fn own(&self, snapshot: &Snapshot) -> Result<OwnNode, AcquireError> {
        match &self.layout {
            Layout::Keys(_) => Ok(OwnNode::default()),
            Layout::Nodes(nodes) => nodes.own(snapshot),
        }
    }

    /// This node is called so.
    pub fn set_own(&mut self, name: &str) {
        if let Layout::Nodes(nodes) = &mut self.layout {
            name.clone_into(&mut nodes.own);
        }
    }

    /// What makes this node another than all others; none where that is its address.
    pub fn identity(&self) -> Option<&str> {
        match &self.layout {
            Layout::Keys(_) => None,
            Layout::Nodes(nodes) => Some(&nodes.own),
        }
    }

    /// This node may have another address.
    pub fn reconnect(&self) {
        self.store.reconnect();
    }

    /// All of it.
    pub async fn list(&self) -> Result<Snapshot, Error> {
        let listed = self.store.list(&self.layout.all()).await?;
        self.last.listed(&listed);
        Ok(listed)
    }

    /// Explains which limit all that was last seen exceeds, if it does.
    fn exceeded(&self) -> Option<String> {
        self.last.exceeded()
    }

    /// All of it as it was last seen, by lists and by changes since; none before the first list.
    pub fn last(&self) -> Option<Snapshot> {
        self.last.snapshot()
    }

    /// It was seen like this by another process.
    pub fn recall(&self, snapshot: &Snapshot) {
        self.last.listed(snapshot);
    }

    /// Whether that says something else than when this was last asked.
    pub fn last_has_changed(&self) -> bool {
        self.last.has_changed()
    }

    /// What all keys begin with.
    pub fn prefix(&self) -> String {
        self.layout.all()
    }

    /// Puts the configuration where there is none; false where somebody was quicker.
    pub async fn offer_config(&self, text: &str) -> Result<bool, Error> {
        let Layout::Keys(keys) = &self.layout else { return Ok(false) };
        let written = self.store.create(&keys.config(), text.as_bytes(), None).await?;
        Ok(written.is_done())
    }

    /// Puts the configuration in the place of whatever is there.
    pub async fn replace_config(&self, text: &str) -> Result<(), Error> {
        let Layout::Keys(keys) = &self.layout else { return Ok(()) };
        let (key, value) = (keys.config(), text.as_bytes());
        loop {
            let written = match self.store.get(&key).await? {
                Some(entry) => self.store.swap(&key, value, entry.revision, None).await?,
                None => self.store.create(&key, value, None).await?,
            };
            if written.is_done() {
                return Ok(());
            }
        }
    }

    /// What a list says.
    pub fn understand(&self, snapshot: &Snapshot) -> Vec<Seen> {
        snapshot.entries.iter().filter_map(|entry| self.layout.seen(entry)).collect()
    }

    /// The configuration alone: of thousands of leases none has to be understood for it.
    pub fn config_in(&self, snapshot: &Snapshot) -> Option<Seen> {
        let Layout::Keys(keys) = &self.layout else { return None };
        let key = keys.config();
        let entry = snapshot.entries.iter().find(|entry| entry.key == key)?;
        self.layout.seen(entry)
    }

    /// What may be the lease of this name, with the entry that it is in: but one where leases are called by
    /// their subnets, and any where they are called by nodes.
    pub fn leases_in<'a>(
        &'a self,
        name: &str,
        snapshot: &'a Snapshot,
    ) -> impl Iterator<Item = (&'a Entry, Seen)> {
        let key = self.are_chosen().then(|| self.layout.lease(name));
        let entries = snapshot.entries.iter();
        entries
            .filter(move |entry| key.as_ref().is_none_or(|key| entry.key == *key))
            .filter_map(|entry| Some((entry, self.layout.seen(entry)?)))
    }

    /// Changes after a moment.
    pub fn follow(&self, after: Revision) -> Follow {
        Follow::new(self.clone(), after)
    }

    /// All of it as soon as the store answers, and then changes.
    pub fn follow_when_back(&self, after: Revision) -> Follow {
        Follow::with_list(self.clone(), after)
    }
}
