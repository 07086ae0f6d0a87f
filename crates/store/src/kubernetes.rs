// SPDX-License-Identifier: Apache-2.0
//! The nodes of a Kubernetes cluster as a store.
//!
//! Every node object is an entry, whoever made it: its key is `nodes/` and the node's name, as its path
//! in the API has it, and its value a [`Node`], the little of the object that a network over the nodes
//! needs. Nothing else of it is kept. Revisions are Kubernetes' resource versions.
//!
//! A swap changes annotations only, by the request that flannel makes: a strategic merge patch of the
//! subresource `status`, here with the revision as its condition. So the right to get, list and watch
//! `nodes` and to patch `nodes/status` is enough. A node lives until somebody deletes it: times to live
//! are ignored. Creating and deleting are for tests; in a cluster kubelet and its administrator do that.
//!
//! An API server that was restarted has no history from before: its watches end as
//! [`Compacted`](crate::Watched::Compacted) more often than those of other stores.

mod client;
mod conf;
mod node;
mod verdict;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use self::client::{Client, Failure};
pub use self::conf::{Access, KubernetesConf, SERVICE_ACCOUNT};
pub use self::node::{Condition, Node};
use self::verdict::Verdict;
use self::watch::Watcher;
use crate::{Answer, Entry, Error, Result, Revision, Snapshot, Store, Watch, Written, limit};

/// A cluster. Clones share connections.
#[derive(Clone, Debug)]
pub struct Kubernetes(Arc<Client>);

impl Kubernetes {
    /// Checks what it can without a server, and connects to none before there is something to ask.
    /// It works on the runtime that this is called on, and on no other.
    pub async fn open(conf: &KubernetesConf) -> Result<Self> {
        Client::new(conf).await.map(|client| Self(Arc::new(client)))
    }

    /// The key of a node's entry.
    pub fn key(node: &str) -> String {
        format!("{}{node}", node::FOLDER)
    }

    /// Lets a node say this about itself, such as that its network is there:
    /// `NetworkUnavailable` is `False`, and the scheduler may use it. Writes nothing where the node
    /// says so already.
    pub async fn set_condition(&self, node: &str, wanted: &Condition) -> Result<()> {
        let key = Self::key(node);
        let Some(object) = self.0.get(node::name(&key)?).await? else {
            return Err(Error::Invalid(format!("there is no node {node:?}")));
        };
        let found = object.condition(&wanted.kind);
        if found == Some(wanted) {
            return Ok(());
        }
        let now = Time(Timestamp::now());
        let mut condition = json!(wanted);
        condition["lastHeartbeatTime"] = json!(now);
        if found.is_none_or(|found| found.status != wanted.status) {
            condition["lastTransitionTime"] = json!(now);
        }
        let patch = json!({"status": {"conditions": [condition]}});
        let patched = self.0.patch_status(node, &patch).await;
        patched.map(drop).map_err(|failure| self.0.unwritten(failure, &key))
    }

    /// The node that a pod runs on; none where there is no such pod, or it was given no node yet.
    pub async fn node_of_pod(&self, namespace: &str, pod: &str) -> Result<Option<String>> {
        match [namespace, pod].into_iter().find(|name| !node::is_name(name)) {
            Some(name) => Err(Error::Invalid(format!(
                "{name:?} names no pod or namespace: expected small letters, digits, '-' and '.'"
            ))),
            None => self.0.node_of_pod(namespace, pod).await,
        }
    }

    async fn find(&self, name: &str) -> Result<Option<Entry>> {
        Ok(self.0.get(name).await?.map(|object| object.entry(&self.0.prefixes)))
    }

    async fn add(&self, key: &str, value: &[u8]) -> Result<Written> {
        limit::check_value(key, value)?;
        let (name, wanted) = (node::name(key)?, Node::read(value)?);
        node::check_annotations(key, &wanted, &self.0.prefixes)?;
        loop {
            match self.0.create(&node::creation(name, &wanted)).await {
                Ok(object) => return Ok(Written::Done(object.revision())),
                Err(Failure { verdict: Verdict::Conflict, .. }) => {}
                Err(failure) => return Err(self.0.unwritten(failure, key)),
            }
            // Or it is gone again, and free.
            if let Some(present) = self.find(name).await? {
                return Ok(Written::Conflict(Some(present)));
            }
        }
    }

    async fn replace(&self, key: &str, value: &[u8], expected: Revision) -> Result<Written> {
        limit::check_value(key, value)?;
        let (name, wanted) = (node::name(key)?, Node::read(value)?);
        let present = match self.0.get(name).await? {
            Some(object) if object.revision() == expected => object.node(&self.0.prefixes),
            other => return Ok(self.conflict(other)),
        };
        node::check_swap(key, &present, &wanted, &self.0.prefixes)?;
        let changes = node::difference(&present, &wanted);
        if changes.is_empty() {
            return Ok(Written::Done(expected));
        }
        let patch = node::annotation_patch(&changes, expected);
        match self.0.patch_status(name, &patch).await {
            Ok(object) => Ok(Written::Done(object.revision())),
            Err(Failure { verdict: Verdict::Conflict | Verdict::Absent, .. }) => {
                Ok(Written::Conflict(self.find(name).await?))
            }
            Err(failure) => Err(self.0.unwritten(failure, key)),
        }
    }

    async fn check(&self, key: &str, expected: Revision) -> Result<Written> {
        match self.0.get(node::name(key)?).await? {
            Some(object) if object.revision() == expected => Ok(Written::Done(expected)),
            other => Ok(self.conflict(other)),
        }
    }

    /// The answer to a deletion does not say when it was: it was at or before the revision that is
    /// given here.
    async fn remove(&self, key: &str, expected: Option<Revision>) -> Result<Written> {
        let name = node::name(key)?;
        match self.0.delete(name, expected).await {
            Ok(()) | Err(Failure { verdict: Verdict::Absent, .. }) => {}
            Err(Failure { verdict: Verdict::Conflict, .. }) => match self.find(name).await? {
                None => {}
                present => return Ok(Written::Conflict(present)),
            },
            Err(failure) => return Err(self.0.unwritten(failure, key)),
        }
        let newest = self.0.newest().await;
        newest.map(Written::Done).map_err(|failure| self.0.unread(failure))
    }

    fn conflict(&self, present: Option<node::Object>) -> Written {
        Written::Conflict(present.map(|object| object.entry(&self.0.prefixes)))
    }
}

impl Store for Kubernetes {
    fn get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<Entry>> {
        Box::pin(async move { self.find(node::name(key)?).await })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Snapshot> {
        Box::pin(self.0.list(prefix))
    }

    fn watch(&self, prefix: &str, after: Revision) -> Box<dyn Watch> {
        Box::new(Watcher::new(Arc::clone(&self.0), prefix.to_owned(), after))
    }

    fn create<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        _ttl: Option<Duration>,
    ) -> Answer<'a, Written> {
        Box::pin(self.add(key, value))
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        expected: Revision,
        _ttl: Option<Duration>,
    ) -> Answer<'a, Written> {
        Box::pin(self.replace(key, value, expected))
    }

    fn keep<'a>(&'a self, key: &'a str, expected: Revision) -> Answer<'a, Written> {
        Box::pin(self.check(key, expected))
    }

    fn delete<'a>(&'a self, key: &'a str, expected: Option<Revision>) -> Answer<'a, Written> {
        Box::pin(self.remove(key, expected))
    }

    fn reconnect(&self) {
        self.0.reconnect();
    }
}
