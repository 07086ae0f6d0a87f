// SPDX-License-Identifier: Apache-2.0
//! The pods controller: labels and annotations of this node's pods and of all namespaces, which choose pools.
//!
//! Mirrors keep ADD fast and answer while the API server is unreachable. A pod that the mirror does not have, or
//! that is another one of the same name, is read from the server: the watch may be a moment behind.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use agent_client::ipam::{PodInfo, Texts};
use cluster::{Cluster, Metadata, Mirror, Object, Reflector, Resource};
use serde::Deserialize;
use text::ErrorChain;
use tokio::time::timeout;

use super::choice;
use crate::supervisor::{Failure, Heartbeat};

/// Longest wait for the API server while a plugin waits.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// The directory, once the store is open.
pub(crate) type KnownPods = Arc<OnceLock<PodDirectory>>;

/// Labels and annotations of pods and namespaces. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct PodDirectory {
    cluster: Cluster,
    pods: Mirror<Workload>,
    namespaces: Mirror<Namespace>,
}

/// The pod of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PodName<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    /// Empty if the runtime does not tell it.
    pub uid: &'a str,
}

/// A pod of this node.
pub(crate) type Workload = Labelled<OfPod>;
pub(crate) type Namespace = Labelled<OfNamespace>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OfPod;
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OfNamespace;

/// The kept part of an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Labelled<K> {
    uid: String,
    is_terminating: bool,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    kind: PhantomData<K>,
}

/// The decoded part of an object.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Wire {
    metadata: Metadata,
}

impl<K> Labelled<K> {
    fn new(Wire { metadata }: Wire) -> Self {
        let is_terminating = metadata.is_terminating();
        let Metadata { uid, labels, mut annotations, .. } = metadata;
        annotations.retain(|name, _| choice::is_relevant(name));
        Self { uid, is_terminating, labels, annotations, kind: PhantomData }
    }

    fn size(&self) -> usize {
        let texts = self.labels.iter().chain(&self.annotations);
        self.uid.len() + texts.map(|(name, text)| name.len() + text.len()).sum::<usize>()
    }

    /// Returns whether this is the pod that a runtime is starting, and not an earlier one of the same name.
    fn is(&self, pod: PodName<'_>) -> bool {
        match pod.uid {
            "" => !self.is_terminating,
            uid => self.uid == uid,
        }
    }
}

impl Resource for Workload {
    type Wire = Wire;
    /// Name of the node.
    type Keep = String;

    const PATH: &'static str = "/api/v1/pods";

    fn field_selector(node: &String) -> Option<String> {
        Some(format!("spec.nodeName={node}"))
    }

    fn metadata(wire: &Wire) -> &Metadata {
        &wire.metadata
    }

    fn trim(wire: Wire, _keep: &String) -> Self {
        Self::new(wire)
    }

    fn size(&self) -> usize {
        self.size()
    }
}

impl Resource for Namespace {
    type Wire = Wire;
    type Keep = ();

    const PATH: &'static str = "/api/v1/namespaces";

    fn metadata(wire: &Wire) -> &Metadata {
        &wire.metadata
    }

    fn trim(wire: Wire, _keep: &()) -> Self {
        Self::new(wire)
    }

    fn size(&self) -> usize {
        self.size()
    }
}

impl PodDirectory {
    pub(crate) fn new(cluster: Cluster) -> Self {
        Self { cluster, pods: Mirror::default(), namespaces: Mirror::default() }
    }

    /// Keeps the mirrors up to date.
    pub(crate) async fn run(&self, node: &str, heartbeat: &Heartbeat) -> Result<(), Failure> {
        let (cluster, pods) = (self.cluster.clone(), self.pods.clone());
        let mut pods = Reflector::new(cluster, node.to_owned(), pods);
        let (cluster, namespaces) = (self.cluster.clone(), self.namespaces.clone());
        let mut namespaces = Reflector::new(cluster, (), namespaces);
        loop {
            heartbeat.beat();
            // The pools controller reports an unreachable server. A missing right fails here alone.
            let updated = tokio::select! {
                updated = pods.next() => updated.map(drop),
                updated = namespaces.next() => updated.map(drop),
                () = heartbeat.tick() => continue,
            };
            match updated {
                Err(error) if !error.can_retry() => return Err(ErrorChain(&error).to_string()),
                _ => {}
            }
        }
    }

    /// Returns what is known of a pod, or `None` if the cluster has no such pod. Fails if nothing is known because
    /// the server does not answer.
    pub(crate) async fn find(&self, pod: PodName<'_>) -> Result<Option<PodInfo>, String> {
        let Some(found) = self.find_pod(pod).await? else { return Ok(None) };
        let namespace = self.find_namespace(pod.namespace).await?;
        let namespace = namespace.map(content).transpose()?;
        let Labelled { labels, annotations, .. } = content(found)?;
        let (namespace_labels, namespace_annotations) =
            namespace.map(|one| (one.labels, one.annotations)).unwrap_or_default();
        Ok(Some(PodInfo {
            labels: texts(labels),
            annotations: texts(annotations),
            namespace_labels: texts(namespace_labels),
            namespace_annotations: texts(namespace_annotations),
        }))
    }

    async fn find_pod(&self, pod: PodName<'_>) -> Result<Option<Object<Workload>>, String> {
        let known = self.pods.get(&format!("{}/{}", pod.namespace, pod.name));
        let known = known.filter(|one| one.content.as_ref().map_or(true, |one| one.is(pod)));
        if known.is_some() {
            return Ok(known);
        }
        // One pod is read whatever its node is.
        let any = String::new();
        let read = self.cluster.get_in::<Workload>(pod.namespace, pod.name, &any);
        let found = answered(&format!("pod {}/{}", pod.namespace, pod.name), read).await?;
        Ok(found.filter(|one| one.content.as_ref().map_or(true, |one| one.is(pod))))
    }

    async fn find_namespace(&self, name: &str) -> Result<Option<Object<Namespace>>, String> {
        match self.namespaces.get(name) {
            Some(known) => Ok(Some(known)),
            None => answered(&format!("namespace {name}"), self.cluster.get(name, &())).await,
        }
    }
}

async fn answered<T>(
    what: &str,
    read: impl Future<Output = cluster::Result<T>>,
) -> Result<T, String> {
    match timeout(READ_TIMEOUT, read).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(format!("read {what}: {}", ErrorChain(&error))),
        Err(_) => Err(format!("read {what}: no answer within {} s", READ_TIMEOUT.as_secs())),
    }
}

fn content<R>(object: Object<R>) -> Result<R, String> {
    let Object { name, content, .. } = object;
    content.map_err(|too_large| format!("labels and annotations of {name}: {too_large}"))
}

fn texts(texts: BTreeMap<String, String>) -> Texts {
    texts.into_iter().map(|(name, text)| (name, text.into())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_of_the_same_name_is_recognized_by_its_uid() {
        let workload = |metadata: serde_json::Value| {
            let wire = json!({ "metadata": metadata });
            Workload::trim(serde_json::from_value(wire).unwrap(), &String::new())
        };
        let name = |uid| PodName { namespace: "a", name: "b", uid };
        let found = workload(json!({"uid": "1", "annotations":
            {"cni.projectcalico.org/ipv4pools": "[\"p\"]", "other": "x"}}));
        assert_eq!(found.annotations.len(), 1);
        assert!(found.is(name("1")) && found.is(name("")) && !found.is(name("2")));
        let leaving = workload(json!({"uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert!(leaving.is(name("1")) && !leaving.is(name("")));
    }
}
