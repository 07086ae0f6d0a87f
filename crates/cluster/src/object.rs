// SPDX-License-Identifier: Apache-2.0
//! Objects of the API, reduced to the fields that podwire needs.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A resource version: a point in the history of the cluster. Later changes have greater ones.
///
/// Kubernetes only promises that resource versions are strings, but every storage behind the API uses numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    pub(crate) fn parse(resource_version: &str) -> Self {
        Self(resource_version.parse().unwrap_or_default())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A kind of object and the trimmed type that is kept of it.
pub trait Resource: Clone + fmt::Debug + PartialEq + Send + Sync + 'static {
    /// The fields that are decoded. The JSON parser skips all others without storing them.
    type Wire: DeserializeOwned + Clone + Send + 'static;

    /// Selects what [`trim`](Resource::trim) keeps; `()` if there is nothing to select.
    type Keep: Clone + fmt::Debug + Send + Sync + 'static;

    /// Path of the collection in the API, such as `/api/v1/nodes`. For a kind with namespaces it is the path of the
    /// objects in all namespaces.
    const PATH: &'static str;

    /// Maximum size of one object. A larger object is reported as [`TooLarge`] and its content is dropped, so that
    /// anyone who can annotate an object cannot make every node hold any amount of memory.
    const MAX_SIZE: usize = 16 << 10;

    /// Maximum number of objects in a list.
    const MAX_COUNT: usize = 65_536;

    /// Maximum size of all objects of a list.
    const MAX_TOTAL: usize = 32 << 20;

    /// Restricts lists and watches to some objects, such as `spec.nodeName=node-1`.
    fn field_selector(_keep: &Self::Keep) -> Option<String> {
        None
    }

    fn metadata(wire: &Self::Wire) -> &Metadata;

    fn trim(wire: Self::Wire, keep: &Self::Keep) -> Self;

    /// Returns the number of bytes of all texts that are kept.
    fn size(&self) -> usize;
}

/// The decoded part of an object's metadata.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    name: String,
    namespace: Option<String>,
    resource_version: String,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

impl Metadata {
    pub fn revision(&self) -> Revision {
        Revision::parse(&self.resource_version)
    }

    /// Returns the name, preceded by the namespace and a slash if there is one.
    pub fn name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }

    /// Returns whether the object is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Returns the creation time in seconds since 1970.
    fn created(&self) -> u64 {
        let seconds = self.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        u64::try_from(seconds).unwrap_or_default()
    }
}

/// A trimmed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object<R> {
    /// `name` or `namespace/name`.
    pub name: String,
    pub revision: Revision,
    /// Creation time in seconds since 1970.
    pub created: u64,
    pub content: Result<R, TooLarge>,
}

/// The object exceeds the limit, and its content was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its value has at least {size} bytes; the limit is {limit}")]
pub struct TooLarge {
    pub size: usize,
    pub limit: usize,
}

impl<R: Resource> Object<R> {
    pub(crate) fn new(wire: R::Wire, keep: &R::Keep) -> Self {
        let metadata = R::metadata(&wire);
        let (name, revision, created) = (metadata.name(), metadata.revision(), metadata.created());
        let content = R::trim(wire, keep);
        let (size, limit) = (content.size(), R::MAX_SIZE);
        let content = if size <= limit { Ok(content) } else { Err(TooLarge { size, limit }) };
        Self { name, revision, created, content }
    }

    pub(crate) fn size(&self) -> usize {
        self.name.len() + self.content.as_ref().map_or(0, R::size)
    }
}

/// All objects of a kind at one revision, ordered by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot<R> {
    pub objects: Vec<Object<R>>,
    /// A watch that starts here misses nothing.
    pub revision: Revision,
}

/// Counts objects against the limits of their kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Budget {
    count: usize,
    bytes: usize,
}

impl Budget {
    pub(crate) fn add<R: Resource>(&mut self, object: &Object<R>) {
        self.count += 1;
        self.bytes += object.size();
    }

    pub(crate) fn remove<R: Resource>(&mut self, object: &Object<R>) {
        self.count -= 1;
        self.bytes -= object.size();
    }

    /// Returns which limit is exceeded, if one is.
    pub(crate) fn exceeded<R: Resource>(&self) -> Option<String> {
        if self.count > R::MAX_COUNT {
            return Some(format!("{} has more than {} objects", R::PATH, R::MAX_COUNT));
        }
        let limit = R::MAX_TOTAL >> 20;
        (self.bytes > R::MAX_TOTAL)
            .then(|| format!("the objects of {} have more than {limit} MiB in all", R::PATH))
    }
}

/// Returns whether `name` is a DNS name as RFC 1123 defines it. Such a name cannot change the path or the query of a
/// request.
pub fn is_name(name: &str) -> bool {
    let is_alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_label = |label: &str| {
        let ends = [label.bytes().next(), label.bytes().last()];
        ends.iter().all(|end| end.is_some_and(is_alphanumeric))
            && label.bytes().all(|b| is_alphanumeric(b) || b == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_names() {
        for good in ["a", "worker-1.example", "0"] {
            assert!(is_name(good), "{good:?}");
        }
        let long = "a".repeat(254);
        for bad in ["", "A", "a/status", "..", "a?x", "-a", "a.", "a\0b", "/a", &long] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn namespaced_objects_are_named_with_their_namespace() {
        let metadata: Metadata = serde_json::from_str(r#"{"name":"a","namespace":"b"}"#).unwrap();
        assert_eq!(metadata.name(), "b/a");
    }
}
