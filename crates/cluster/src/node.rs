// SPDX-License-Identifier: Apache-2.0
//! Node objects: the part that is kept, and the writes to it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::failure::{Failure, FailureKind};
use crate::object::{Metadata, Resource};
use crate::{Cluster, Error, Result, Revision};

/// The part of a node object that podwire needs. Its JSON form is part of the agent's cache file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    /// `None` until the controller manager has assigned one.
    #[serde(rename = "podCIDR", skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<String>,
    /// At most one per address family. The first one equals `pod_cidr`.
    #[serde(rename = "podCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub pod_cidrs: Vec<String>,
    /// Annotations with one of the selected prefixes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Addresses of type `InternalIP`.
    #[serde(rename = "internalIPs", skip_serializing_if = "Vec::is_empty")]
    pub internal_ips: Vec<String>,
}

/// Prefixes of the annotations that are kept, such as `flannel.alpha.coreos.com/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnotationPrefixes(pub Vec<String>);

impl AnnotationPrefixes {
    fn match_name(&self, name: &str) -> bool {
        self.0.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// The decoded part of a node object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WireNode {
    metadata: Metadata,
    spec: WireSpec,
    status: WireStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WireSpec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WireStatus {
    addresses: Vec<WireAddress>,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Deserialize)]
struct WireAddress {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

/// A condition of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// Such as `NetworkUnavailable`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word for programs.
    pub reason: String,
    /// A sentence for humans.
    pub message: String,
}

impl Resource for Node {
    type Wire = WireNode;
    type Keep = AnnotationPrefixes;

    const PATH: &'static str = "/api/v1/nodes";

    fn metadata(wire: &WireNode) -> &Metadata {
        &wire.metadata
    }

    fn trim(wire: WireNode, prefixes: &AnnotationPrefixes) -> Self {
        let mut annotations = wire.metadata.annotations;
        annotations.retain(|name, _| prefixes.match_name(name));
        let addresses = wire.status.addresses.into_iter();
        let internal = addresses.filter(|address| address.kind == "InternalIP");
        Node {
            pod_cidr: wire.spec.pod_cidr.filter(|cidr| !cidr.is_empty()),
            pod_cidrs: wire.spec.pod_cidrs,
            annotations,
            internal_ips: internal.map(|address| address.address).collect(),
        }
    }

    fn size(&self) -> usize {
        let lists = self.pod_cidr.iter().chain(&self.pod_cidrs).chain(&self.internal_ips);
        let annotations = self.annotations.iter().flat_map(|(name, value)| [name, value]);
        lists.chain(annotations).map(String::len).sum()
    }
}

impl WireNode {
    fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }
}

/// Annotations to set, or to remove if the value is `None`.
pub type AnnotationChanges = BTreeMap<String, Option<String>>;

/// Returns the changes that turn the annotations of `before` into those of `after`.
pub fn annotation_changes(before: &Node, after: &Node) -> AnnotationChanges {
    let removed = before.annotations.keys().filter(|name| !after.annotations.contains_key(*name));
    let set = after.annotations.iter();
    let set = set.filter(|(name, value)| before.annotations.get(*name) != Some(value));
    let set = set.map(|(name, value)| (name.clone(), Some(value.clone())));
    removed.map(|name| (name.clone(), None)).chain(set).collect()
}

/// Outcome of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The node has this revision now.
    Done(Revision),
    /// Nothing was written: the node does not exist or has changed since the expected revision.
    Conflict,
}

impl Cluster {
    /// Changes annotations of a node if the node has not changed since `expected`. Other annotations stay as they are.
    /// Writes nothing if there are no changes.
    pub async fn annotate_node(
        &self,
        name: &str,
        changes: &AnnotationChanges,
        expected: Revision,
    ) -> Result<Write> {
        if changes.is_empty() {
            return Ok(Write::Done(expected));
        }
        check_size(name, changes)?;
        match self.patch_status::<Node>(name, &annotation_patch(changes, expected)).await {
            Ok(node) => Ok(Write::Done(node.metadata.revision())),
            Err(Failure { kind: FailureKind::Conflict | FailureKind::NotFound, .. }) => {
                Ok(Write::Conflict)
            }
            Err(failure) => Err(self.write_error(failure, format!("node {name}"))),
        }
    }

    /// Sets a condition of a node, for example `NetworkUnavailable` to `False`, so that the scheduler may use the node.
    /// Writes nothing if the node has the condition already.
    pub async fn set_condition(&self, name: &str, condition: &Condition) -> Result<()> {
        let Some(node) = self.get_wire::<Node>(name).await? else {
            return Err(Error::Invalid(format!("there is no node {name:?}")));
        };
        let present = node.condition(&condition.kind);
        if present == Some(condition) {
            return Ok(());
        }
        let now = Time(Timestamp::now());
        let mut desired = json!(condition);
        desired["lastHeartbeatTime"] = json!(now);
        if present.is_none_or(|present| present.status != condition.status) {
            desired["lastTransitionTime"] = json!(now);
        }
        let patch = json!({"status": {"conditions": [desired]}});
        let patched = self.patch_status::<Node>(name, &patch).await;
        patched.map(drop).map_err(|failure| self.write_error(failure, format!("node {name}")))
    }
}

/// Rejects annotations that every reader would drop because of their size.
fn check_size(name: &str, changes: &AnnotationChanges) -> Result<()> {
    let sizes =
        changes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, String::len));
    let (size, limit): (usize, usize) = (sizes.sum(), Node::MAX_SIZE);
    if size <= limit {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "the annotations for node {name} have {size} bytes; the limit is {limit}"
    )))
}

/// Returns a patch that the server refuses if the node has changed since `expected`.
fn annotation_patch(changes: &AnnotationChanges, expected: Revision) -> Value {
    json!({"metadata": {"resourceVersion": expected.to_string(), "annotations": changes}})
}

#[cfg(test)]
mod tests;
