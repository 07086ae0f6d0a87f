// SPDX-License-Identifier: Apache-2.0
//! Where in a store leases are: under flannel's keys, or in the annotations of Kubernetes' nodes.

use store::{Entry, Event};

use super::keys::Keys;
use super::nodes::Nodes;
use super::{NodeSeen, NodeState, Seen};

/// One of the two.
#[derive(Debug, Clone)]
pub(super) enum Layout {
    Keys(Keys),
    Nodes(Nodes),
}

impl Layout {
    /// What all keys begin with.
    pub(super) fn all(&self) -> String {
        match self {
            Self::Keys(keys) => keys.all(),
            Self::Nodes(nodes) => nodes.all(),
        }
    }

    /// The key of a node's lease, by the node's name here.
    pub(super) fn lease(&self, name: &str) -> String {
        match self {
            Self::Keys(keys) => keys.lease(name),
            Self::Nodes(nodes) => nodes.lease(name),
        }
    }

    /// What an entry says; nothing where it is none of ours.
    pub(super) fn seen(&self, entry: &Entry) -> Option<Seen> {
        match self {
            Self::Keys(keys) => keys.seen(entry),
            Self::Nodes(nodes) => nodes.seen(entry),
        }
    }

    /// What an event says.
    pub(super) fn changed(&self, event: &Event) -> Option<Seen> {
        let (key, revision) = match event {
            Event::Put(entry) => return self.seen(entry),
            Event::Deleted { key, revision } => (key, *revision),
        };
        let name = match self {
            Self::Keys(keys) if *key == keys.config() => return Some(Seen::Config(None)),
            Self::Keys(keys) => keys.name(key)?,
            Self::Nodes(nodes) => nodes.name(key)?,
        };
        let state = NodeState::Gone;
        Some(Seen::Node(NodeSeen { name: name.to_owned(), revision, state }))
    }
}
