// SPDX-License-Identifier: Apache-2.0
//! What is kept of a node object, and what of one is read and written. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Entry, Error, Result, Revision};

/// All keys are below it, as the paths of nodes are in the API.
pub const FOLDER: &str = "nodes/";

/// The value of an entry, as compact JSON. What is not there is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    /// Empty until Kubernetes has given the node one. Cannot be swapped.
    #[serde(rename = "podCIDR", skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<String>,
    /// At most one of each family, the first the same as `pod_cidr`. Cannot be swapped.
    #[serde(rename = "podCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub pod_cidrs: Vec<String>,
    /// Those under the prefixes that were asked for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Addresses of the type `InternalIP`. Cannot be swapped.
    #[serde(rename = "internalIPs", skip_serializing_if = "Vec::is_empty")]
    pub internal_ips: Vec<String>,
}

impl Node {
    /// Understands the value of an entry.
    pub fn read(value: &[u8]) -> Result<Self> {
        let wrong =
            |cause| Error::Invalid(format!("a node's value is not as it should be: {cause}"));
        serde_json::from_slice(value).map_err(wrong)
    }

    /// What an entry has as its value.
    pub fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and lists of texts can be written as JSON")
    }
}

/// A node object, of which only this is decoded.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Object {
    pub metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    name: String,
    resource_version: String,
    creation_timestamp: Option<Time>,
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    addresses: Vec<Address>,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Deserialize)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

/// What a node says about itself.
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
    /// For people.
    pub message: String,
}

impl Object {
    pub fn revision(&self) -> Revision {
        revision(&self.metadata.resource_version)
    }

    pub fn key(&self) -> String {
        format!("{FOLDER}{}", self.metadata.name)
    }

    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// With the annotations under these prefixes.
    pub fn entry(self, prefixes: &[String]) -> Entry {
        let created =
            self.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        let entry = Entry {
            key: self.key(),
            revision: self.revision(),
            created: Revision(u64::try_from(created).unwrap_or_default()),
            expires: false,
            value: self.node(prefixes).write(),
            oversized: None,
        };
        entry.bounded()
    }

    pub fn node(self, prefixes: &[String]) -> Node {
        let mut annotations = self.metadata.annotations;
        annotations.retain(|name, _| has_prefix(name, prefixes));
        let addresses = self.status.addresses.into_iter();
        let internal = addresses.filter(|address| address.kind == "InternalIP");
        Node {
            pod_cidr: self.spec.pod_cidr.filter(|cidr| !cidr.is_empty()),
            pod_cidrs: self.spec.pod_cidrs,
            annotations,
            internal_ips: internal.map(|address| address.address).collect(),
        }
    }
}

/// They are numbers, though Kubernetes only promises that they are texts: the trait needs an order,
/// and every store behind the API has one.
pub fn revision(resource_version: &str) -> Revision {
    Revision(resource_version.parse().unwrap_or_default())
}

/// The node that a key stands for.
pub fn name(key: &str) -> Result<&str> {
    let name = key.strip_prefix(FOLDER).filter(|name| is_name(name));
    let wrong = || {
        Error::Invalid(format!(
            "key {key:?}: expected {FOLDER} and a node's name, of small letters, digits, '-' and '.'"
        ))
    };
    name.ok_or_else(wrong)
}

/// As RFC 1123 has it, and so never a path or a query.
pub fn is_name(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_label = |label: &str| {
        let ends = [label.bytes().next(), label.bytes().last()];
        ends.iter().all(|end| end.is_some_and(is_plain))
            && label.bytes().all(|b| is_plain(b) || b == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// A whole node, to be created.
pub fn creation(name: &str, node: &Node) -> Value {
    let address = |address: &String| json!({"type": "InternalIP", "address": address});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": node.annotations},
        "spec": {"podCIDR": node.pod_cidr, "podCIDRs": node.pod_cidrs},
        "status": {"addresses": node.internal_ips.iter().map(address).collect::<Vec<_>>()},
    })
}

/// The annotations that have to be set (or removed, where there is no text) to come from one value
/// to another.
pub fn difference<'a>(
    found: &'a Node,
    wanted: &'a Node,
) -> BTreeMap<&'a String, Option<&'a String>> {
    let gone = found.annotations.keys().filter(|name| !wanted.annotations.contains_key(*name));
    let set = wanted.annotations.iter();
    let changed = set.filter(|(name, text)| found.annotations.get(*name) != Some(text));
    gone.map(|name| (name, None)).chain(changed.map(|(name, text)| (name, Some(text)))).collect()
}

/// A patch of annotations, that is refused when the node has changed since.
pub fn annotation_patch(changes: &BTreeMap<&String, Option<&String>>, since: Revision) -> Value {
    json!({"metadata": {"resourceVersion": since.to_string(), "annotations": changes}})
}

/// Refuses what a swap could not bring about.
pub fn check_swap(key: &str, found: &Node, wanted: &Node, prefixes: &[String]) -> Result<()> {
    let refuse = |what: &str, why: &str| {
        Err(Error::Invalid(format!("{key}: {what} cannot be changed here: {why}")))
    };
    if (&found.pod_cidr, &found.pod_cidrs) != (&wanted.pod_cidr, &wanted.pod_cidrs) {
        return refuse("podCIDRs", "Kubernetes gives them");
    }
    if found.internal_ips != wanted.internal_ips {
        return refuse("internalIPs", "kubelet writes them");
    }
    check_annotations(key, wanted, prefixes)
}

/// What we would not read again we do not write.
pub fn check_annotations(key: &str, wanted: &Node, prefixes: &[String]) -> Result<()> {
    match wanted.annotations.keys().find(|name| !has_prefix(name, prefixes)) {
        None => Ok(()),
        Some(name) => {
            let prefixes = prefixes.join(", ");
            Err(Error::Invalid(format!(
                "{key}: annotation {name:?}: expected one below {prefixes}"
            )))
        }
    }
}

fn has_prefix(name: &str, prefixes: &[String]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests;
