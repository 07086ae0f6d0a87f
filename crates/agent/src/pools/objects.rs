// SPDX-License-Identifier: Apache-2.0
//! Calico's objects in the store: pools, blocks, affinities, handles and nodes.

use std::fmt;
use std::pin::Pin;

use ipam::block::Block;
use ipam::collect::HandleList;
use ipam::node::{Outcome, Revision, Stored, Verb};

use ipam::calico::Key;

use crate::lease::OwnNode;

/// The future of an asynchronous trait method.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A store with the objects of a network.
pub(crate) trait ObjectStore: fmt::Debug + Send + Sync {
    /// Lists all objects except handles, and the revision from which a watch misses nothing.
    fn list(&self) -> BoxFuture<'_, Result<Listed, String>>;

    /// Reports changes after a list.
    fn watch(&self, after: &Listed) -> Box<dyn ObjectWatch>;

    /// Performs an operation on one object.
    fn perform<'a>(&'a self, key: &'a Key, verb: &'a Verb) -> BoxFuture<'a, Outcome>;

    /// Lists all handles, and after them all blocks. Returns `None` if this is not supported.
    fn list_handles(&self) -> BoxFuture<'_, Result<Option<HandleListing>, String>> {
        Box::pin(async { Ok(None) })
    }

    /// Makes later requests use new connections, because the addresses of this node may have changed.
    fn reconnect(&self);

    /// Returns the name of this node if the store knows it. `None` if the settings name it.
    fn node_name(&self) -> BoxFuture<'_, Result<Option<String>, String>> {
        Box::pin(async { Ok(None) })
    }

    /// Returns the settings of the cluster for this node.
    fn own_node(&self) -> BoxFuture<'_, Result<OwnNode, String>> {
        Box::pin(async { Ok(OwnNode::default()) })
    }

    /// Tells the cluster that the network of this node works.
    fn set_network_available(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

/// All objects except handles.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listed {
    pub objects: Vec<Stored>,
    /// Revision of the list, of each of its parts if they were listed one after the other.
    pub revisions: Vec<u64>,
}

impl Listed {
    /// Returns the revision up to which the list is complete.
    pub(crate) fn revision(&self) -> Revision {
        Revision(self.revisions.iter().copied().min().unwrap_or_default())
    }
}

/// All handles with their revisions, and the blocks as they were after that.
#[derive(Debug, Clone, Default)]
pub(crate) struct HandleListing {
    pub handles: Vec<(String, Revision)>,
    pub blocks: Vec<Block>,
}

impl HandleListing {
    pub(crate) fn as_list(&self) -> HandleList<'_> {
        HandleList { handles: &self.handles, blocks: &self.blocks }
    }
}

/// Changes of objects.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ObjectEvents {
    Changed(Vec<Stored>),
    /// The store no longer has all changes: list again.
    Lost,
}

/// A watch of all objects except handles.
pub(crate) trait ObjectWatch: fmt::Debug + Send {
    /// Waits for changes. The wait can be cancelled without losing changes. After an error the next call
    /// continues, after a delay of the watch's own.
    fn next(&mut self) -> BoxFuture<'_, Result<ObjectEvents, String>>;
}
