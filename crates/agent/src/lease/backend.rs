// SPDX-License-Identifier: Apache-2.0
//! The interface to the leases in a store or in Kubernetes, and its types.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use gojson::DecodeError;
use overlay::lease::annotations::Overwrites;
use overlay::lease::{Attributes, Lease};
use overlay::netconf::{Pool, RawNetConf};
use overlay::{Addresses, PerFamily, Prefixes, allocate};
use serde::{Deserialize, Serialize};
use store::Revision;

use super::PeerSource;

/// The future of an asynchronous trait method, boxed so that a backend can be chosen at run time.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The leases of all nodes in one place, and this node's own lease.
///
/// A backend mirrors what it lists and watches. Methods that are not asynchronous read the mirror, so they work while
/// the store cannot be reached.
pub trait LeaseBackend: fmt::Debug + Send + Sync {
    /// Identifies the data in the cache file. Revisions of another place have no meaning for this one.
    fn id(&self) -> String;

    /// Makes later requests use new connections, because the addresses of this node may have changed.
    fn reconnect(&self);

    fn config_location(&self) -> ConfigLocation;

    /// Returns the network configuration, or `None` if there is none. `items` are the items of a list or a change.
    fn config<'a>(&'a self, items: &'a [StoreItem]) -> BoxFuture<'a, io::Result<Option<String>>>;

    /// Stores the configuration if there is none. Returns `false` if there is one, or if it is not stored here.
    fn create_config_if_absent<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<bool, Error>>;

    /// Stores the configuration and replaces the present one.
    fn replace_config<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<(), Error>>;

    /// Lists everything and updates the mirror.
    fn list(&self) -> BoxFuture<'_, Result<Snapshot, Error>>;

    /// Reports changes after a revision.
    fn watch(&self, after: Revision) -> Box<dyn PeerSource>;

    /// Lists everything as soon as the store answers, then reports changes.
    fn watch_after_list(&self) -> Box<dyn PeerSource>;

    /// Returns the content of the mirror, or `None` before the first list.
    fn last_known(&self) -> Option<Snapshot>;

    /// Returns whether the content of the mirror has changed since the last call.
    fn take_changed(&self) -> bool;

    /// Returns the content of the mirror for the cache file.
    fn export_cache(&self) -> Option<Cached>;

    /// Fills the mirror from the cache file.
    fn import_cache(&self, cached: Cached);

    /// Returns the name that identifies this node. `None` if its address does.
    fn node_name(&self) -> Option<&str> {
        None
    }

    /// Sets the name of this node if it is not known yet.
    fn set_node_name(&self, _name: &str) {}

    /// Looks up the name of this node. Returns `None` if it is known or not needed.
    fn look_up_node_name(&self) -> BoxFuture<'_, Result<Option<String>, AcquireError>> {
        Box::pin(async { Ok(None) })
    }

    /// Returns the settings of the cluster and its administrator for this node.
    fn own_node(&self) -> Result<OwnNode, AcquireError> {
        Ok(OwnNode::default())
    }

    /// Tells the cluster that the network of this node works.
    fn set_network_available(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    /// Returns the ranges from which nodes choose their subnets; empty if subnets are assigned to them.
    fn pools(&self, conf: &RawNetConf) -> Result<PerFamily<Pool>, DecodeError>;

    /// Returns whether a node may keep these subnets with these pools.
    fn may_keep(&self, pools: &PerFamily<Pool>, subnets: &Prefixes) -> bool;

    /// Checks that a node with these public addresses has a subnet or can get one.
    fn check_capacity(
        &self,
        pools: &PerFamily<Pool>,
        public: Addresses,
    ) -> Result<(), AcquireError>;

    /// Returns the lease that [`saved_text`] describes, if it is unchanged.
    fn saved_lease(&self, saved: &str) -> Option<HeldLease>;

    /// Returns the lease that [`acquire`](Self::acquire) would take. Writes nothing. `saved` is the lease of the last
    /// run.
    fn preview(
        &self,
        saved: Option<Lease>,
        request: &LeaseRequest<'_>,
    ) -> Result<LeasePreview, AcquireError>;

    /// Takes a lease: the present one of this node, its previous one, or a free one.
    fn acquire<'a>(
        &'a self,
        request: &'a LeaseRequest<'a>,
    ) -> BoxFuture<'a, Result<HeldLease, AcquireError>>;

    /// Renews a held lease with new attributes, because the node has moved and keeps its pods. Returns `None` if the
    /// lease has changed since, or no longer fits the network; then the node has to acquire a lease.
    fn renew_with<'a>(
        &'a self,
        held: &'a HeldLease,
        request: &'a LeaseRequest<'a>,
    ) -> BoxFuture<'a, Result<Option<HeldLease>, AcquireError>>;

    /// Renews a held lease, and repairs it if another program has changed it.
    fn renew<'a>(&'a self, held: &'a mut HeldLease) -> BoxFuture<'a, Result<Renewal, Error>>;

    /// Deletes the lease that [`saved_text`] describes. Returns `false` if it is not there as described. With
    /// `dry_run` nothing is deleted.
    fn release_saved<'a>(
        &'a self,
        saved: &'a str,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<bool, Error>>;
}

/// The place of the network configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigLocation {
    /// A key of the store, which agents may write.
    Key(String),
    /// A file that an administrator provides.
    File(PathBuf),
}

impl ConfigLocation {
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Key(_) => None,
            Self::File(path) => Some(path),
        }
    }
}

impl fmt::Display for ConfigLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "the key {key}"),
            Self::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

/// Everything in the store at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub items: Vec<StoreItem>,
    pub revision: Revision,
}

/// A parsed entry of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreItem {
    /// The network configuration; `None` if it was deleted.
    Config(Option<String>),
    /// The network configuration cannot be read, for this reason.
    ConfigRejected(String),
    Node(NodeRecord),
}

/// The entry of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// The key of the lease, or the name of the node object.
    pub name: String,
    pub revision: Revision,
    pub state: NodeRecordState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeRecordState {
    /// The node has a lease. `since` orders nodes the same way for all of them.
    Active { since: u64, lease: Box<Lease> },
    /// The entry cannot be parsed, for this reason.
    Invalid(String),
    /// The node has no lease.
    Removed,
}

/// A node's request for a lease.
#[derive(Debug, Clone, Copy)]
pub struct LeaseRequest<'a> {
    pub pools: &'a PerFamily<Pool>,
    pub attributes: &'a Attributes,
    /// The subnets of the last run.
    pub previous: Option<Prefixes>,
    /// Selects one of the free subnets.
    pub random: u64,
}

/// A lease of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLease {
    pub name: String,
    pub lease: Lease,
    pub revision: Revision,
    /// The lease does not expire.
    pub is_reservation: bool,
}

/// A lease that this node would take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasePreview {
    pub lease: Lease,
    pub origin: LeaseOrigin,
    /// Names of leases of this node that would be deleted.
    pub obsolete: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOrigin {
    /// The node has the lease already.
    Kept,
    /// The node had these subnets before, or the cluster has assigned them.
    Known,
    /// Any free subnet would do; this one is an example.
    Free,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    Done,
    /// The lease was deleted, or another node has it.
    Lost,
}

/// Settings of the cluster and its administrator for this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnNode {
    /// Internal addresses of the node object.
    pub internal: Vec<IpAddr>,
    /// Public addresses that an administrator has set.
    pub overwrites: Overwrites,
}

/// The content of a mirror, as in the cache file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    pub revision: Revision,
    pub entries: Vec<CachedEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CachedEntry {
    pub key: String,
    pub value: String,
    pub revision: u64,
    pub created: u64,
    pub expires: bool,
}

/// A request to the store or the cluster failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
}

impl Error {
    /// Returns whether the same call may succeed later without any action.
    pub fn can_retry(&self) -> bool {
        match self {
            Self::Store(error) => error.can_retry(),
            Self::Cluster(error) => error.can_retry(),
        }
    }
}

/// Why a node has no lease.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    #[error(transparent)]
    Store(#[from] Error),
    #[error(transparent)]
    Choice(#[from] allocate::Error),
    /// Something is missing that another program provides.
    #[error("{0}")]
    NotYet(String),
    #[error("other nodes took every subnet that this node chose, {0} times in a row")]
    Races(usize),
}

impl From<store::Error> for AcquireError {
    fn from(error: store::Error) -> Self {
        Self::Store(error.into())
    }
}

impl From<cluster::Error> for AcquireError {
    fn from(error: cluster::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Returns the line that the agent saves about its lease: key and value, as in flannel's store.
pub fn saved_text(lease: &Lease) -> String {
    format!("{} {}\n", lease.key(), lease.attributes.print())
}
