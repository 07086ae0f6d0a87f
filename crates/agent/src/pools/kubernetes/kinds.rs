// SPDX-License-Identifier: Apache-2.0
//! The kinds of objects in Kubernetes, decoded: Calico's custom resources, and nodes with Calico's annotations.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use cluster::{Json, Metadata, Object, Resource};
use ipam::calico::crd::{self, Kind};
use ipam::calico::{self, Key, NodeResource};
use ipam::node::{Content, Revision, Stored};
use serde::Deserialize;
use serde_json::Value;

/// Path of the collections of custom resources.
const GROUP: &str = "/apis/crd.projectcalico.org/v1/";

/// Annotation with labels that Calico has beside those of Kubernetes.
const CALICO_LABELS: &str = "projectcalico.org/labels";

/// Prefix of Calico's annotations of a node.
const ANNOTATION_PREFIX: &str = "projectcalico.org/";

/// A kind whose objects have an identity in the store.
pub(super) trait StoredKind: Resource {
    /// Returns `None` for an object without identity, which is ignored and logged.
    fn stored(object: Object<Self>) -> Option<Stored>;
}

/// A kind of custom resource.
pub(super) trait Custom: Clone + fmt::Debug + PartialEq + Send + Sync + 'static {
    const KIND: Kind;
    const PATH: &'static str;
}

macro_rules! customs {
    ($($name:ident: $kind:ident, $plural:literal;)*) => {
        $(
            #[derive(Debug, Clone, PartialEq)]
            pub(super) struct $name;

            impl Custom for $name {
                const KIND: Kind = Kind::$kind;
                const PATH: &'static str = concat!("/apis/crd.projectcalico.org/v1/", $plural);
            }
        )*
    };
}

customs! {
    Pools: Pool, "ippools";
    Reservations: Reservation, "ipreservations";
    Configs: Config, "ipamconfigs";
    Blocks: Block, "ipamblocks";
    Affinities: Affinity, "blockaffinities";
}

/// Returns the path of the objects of a kind.
pub(super) fn collection(kind: Kind) -> String {
    format!("{GROUP}{}", kind.plural())
}

/// A custom resource: the object, or why it cannot be read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Parsed<C> {
    /// `None` if the object does not say what it stands for.
    key: Option<Key>,
    content: Result<calico::Object, String>,
    size: usize,
    kind: PhantomData<C>,
}

impl<C: Custom> Resource for Parsed<C> {
    type Wire = Json;
    type Keep = ();

    const PATH: &'static str = C::PATH;

    /// etcd stores no larger objects. A block of 4096 addresses has about 1 MB.
    const MAX_SIZE: usize = 2 << 20;

    /// 10,000 blocks of 64 addresses that are all assigned.
    const MAX_TOTAL: usize = 256 << 20;

    fn metadata(wire: &Json) -> &Metadata {
        wire.metadata()
    }

    fn trim(wire: Json, _keep: &()) -> Self {
        let (name, value) = (wire.metadata().name(), wire.into_value());
        let size = texts(&value);
        let (key, content) = parse(C::KIND, &name, value);
        Self { key, content, size, kind: PhantomData }
    }

    fn size(&self) -> usize {
        self.size
    }
}

impl<C: Custom> StoredKind for Parsed<C> {
    fn stored(object: Object<Self>) -> Option<Stored> {
        let Object { name, revision, content, .. } = object;
        let (key, content) = match content {
            Ok(Parsed { key, content, .. }) => (key, content),
            Err(too_large) => (named(C::KIND, &name), Err(too_large.to_string())),
        };
        stored(C::KIND, &name, revision, key, content)
    }
}

/// Returns an object that was read by its name. Names are in lower case, handles are not, so it may be another one.
pub(super) fn read(kind: Kind, key: &Key, object: Json) -> Stored {
    let (name, revision) = (object.metadata().name(), object.metadata().revision());
    let content = match parse(kind, &name, object.into_value()) {
        (Some(found), Ok(_)) if found != *key => {
            Content::Malformed(format!("its name belongs to {found}"))
        }
        (_, content) => content.map_or_else(Content::Malformed, Content::Object),
    };
    Stored { key: key.clone(), revision: Revision(revision.0), content }
}

fn stored(
    kind: Kind,
    name: &str,
    revision: cluster::Revision,
    key: Option<Key>,
    content: Result<calico::Object, String>,
) -> Option<Stored> {
    let Some(key) = key else {
        let reason = content.err().unwrap_or_default();
        tracing::warn!(kind = kind.name(), name, reason, "object ignored");
        return None;
    };
    let content = content.map_or_else(Content::Malformed, Content::Object);
    Some(Stored { key, revision: Revision(revision.0), content })
}

/// Parses an object. The content determines the key, and the name must agree with it.
fn parse(kind: Kind, name: &str, value: Value) -> (Option<Key>, Result<calico::Object, String>) {
    if kind == Kind::Config && name != crd::name(&Key::Config) {
        return (None, Err("its name is not \"default\"".to_owned()));
    }
    match crd::parse(kind, value) {
        Ok((key, _)) if crd::name(&key) != name => {
            let reason = format!("the object for {key} must be named {:?}", crd::name(&key));
            (named(kind, name), Err(reason))
        }
        Ok((key, object)) => (Some(key), Ok(object)),
        Err(malformed) => (named(kind, name), Err(malformed.reason)),
    }
}

/// Returns what an object stands for that cannot be read, if its name says it.
fn named(kind: Kind, name: &str) -> Option<Key> {
    match kind {
        Kind::Config => Some(Key::Config),
        Kind::Pool => Some(Key::Pool(name.to_owned())),
        Kind::Reservation => Some(Key::Reservation(name.to_owned())),
        Kind::Block => {
            let parts: Vec<&str> = name.split('-').collect();
            let [a, b, c, d, length] = parts[..] else { return None };
            Some(Key::Block(format!("{a}.{b}.{c}.{d}/{length}").parse().ok()?))
        }
        Kind::Affinity | Kind::Handle => None,
    }
}

/// Returns the number of bytes of all texts, and some for each number.
fn texts(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(texts).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + texts(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => size_of::<u32>(),
    }
}

/// The identity of a handle. There is one for each pod of the cluster.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HandleId(pub String);

/// The decoded part of a handle.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct WireHandle {
    metadata: Metadata,
    #[serde(default)]
    spec: WireHandleSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct WireHandleSpec {
    #[serde(rename = "handleID")]
    id: String,
}

impl Resource for HandleId {
    type Wire = WireHandle;
    type Keep = ();

    const PATH: &'static str = "/apis/crd.projectcalico.org/v1/ipamhandles";

    const MAX_COUNT: usize = 1 << 20;

    const MAX_TOTAL: usize = 256 << 20;

    fn metadata(wire: &WireHandle) -> &Metadata {
        &wire.metadata
    }

    fn trim(wire: WireHandle, _keep: &()) -> Self {
        Self(wire.spec.id)
    }

    fn size(&self) -> usize {
        self.0.len()
    }
}

/// A node of Kubernetes as Calico's node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CalicoNode {
    resource: Result<NodeResource, String>,
    /// Addresses of type `InternalIP`.
    pub internal: Vec<IpAddr>,
}

/// The decoded part of a node.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct WireNode {
    metadata: Metadata,
    #[serde(default)]
    status: WireStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct WireStatus {
    addresses: Vec<WireAddress>,
}

#[derive(Debug, Clone, Deserialize)]
struct WireAddress {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

impl Resource for CalicoNode {
    type Wire = WireNode;
    /// Name of the node whose labels are kept.
    type Keep = String;

    const PATH: &'static str = "/api/v1/nodes";

    fn metadata(wire: &WireNode) -> &Metadata {
        &wire.metadata
    }

    fn trim(wire: WireNode, own: &String) -> Self {
        let WireNode { metadata, status } = wire;
        let name = metadata.name();
        let Metadata { labels, mut annotations, .. } = metadata;
        annotations.retain(|name, _| name.starts_with(ANNOTATION_PREFIX));
        let labels =
            if name == *own { with_calicos(labels, &annotations) } else { BTreeMap::new() };
        let resource = NodeResource::from_annotations(&name, labels, &annotations);
        let internal = status.addresses.iter().filter(|address| address.kind == "InternalIP");
        Self {
            resource: resource.map_err(|malformed| malformed.reason),
            internal: internal.filter_map(|address| address.address.parse().ok()).collect(),
        }
    }

    fn size(&self) -> usize {
        let labels = self.resource.iter().flat_map(|node| &node.labels);
        labels.map(|(name, text)| name.len() + text.len()).sum::<usize>() + size_of::<Self>()
    }
}

impl StoredKind for CalicoNode {
    fn stored(object: Object<Self>) -> Option<Stored> {
        let Object { name, revision, content, .. } = object;
        let content = match content.map_err(|too_large| too_large.to_string()) {
            Ok(CalicoNode { resource: Ok(node), .. }) => {
                Content::Object(calico::Object::Node(node))
            }
            Ok(CalicoNode { resource: Err(reason), .. }) | Err(reason) => {
                Content::Malformed(reason)
            }
        };
        Some(Stored { key: Key::Node(name), revision: Revision(revision.0), content })
    }
}

/// Adds Calico's own labels. Labels of Kubernetes have precedence.
fn with_calicos(
    labels: BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let calicos = annotations.get(CALICO_LABELS);
    let mut all: BTreeMap<String, String> =
        calicos.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    all.extend(labels);
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn block(name: &str, cidr: &str) -> Value {
        json!({"metadata": {"name": name, "resourceVersion": "5"}, "spec": {
            "cidr": cidr, "affinity": "host:n1", "allocations": [null, null], "attributes": [],
            "unallocated": [0, 1], "strictAffinity": false,
        }})
    }

    fn found<C: Custom>(value: Value) -> Option<Stored> {
        let wire: Json = serde_json::from_value(value).unwrap();
        let (name, revision) = (wire.metadata().name(), wire.metadata().revision());
        let content = Ok(Parsed::<C>::trim(wire, &()));
        StoredKind::stored(Object { name, revision, created: 0, content })
    }

    fn key(cidr: &str) -> Key {
        Key::Block(cidr.parse().unwrap())
    }

    #[test]
    fn object_with_another_name_than_calicos_is_ignored() {
        let stored = found::<Blocks>(block("10-6-0-0-31", "10.6.0.0/31")).unwrap();
        assert_eq!((stored.key, stored.revision), (key("10.6.0.0/31"), Revision(5)));
        assert!(matches!(stored.content, Content::Object(_)));
        assert_eq!(found::<Blocks>(block("my-block", "10.6.0.0/31")), None);
        let config = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
        assert_eq!(found::<Configs>(config("default")).unwrap().key, Key::Config);
        assert_eq!(found::<Configs>(config("other")), None);
    }

    #[test]
    fn malformed_object_has_its_identity_if_the_name_says_it() {
        let is_malformed = |stored: Stored, text: &str| matches!(stored.content, Content::Malformed(reason) if reason.contains(text));
        let stored = found::<Blocks>(block("10-6-0-0-31", "here")).unwrap();
        assert_eq!(stored.key, key("10.6.0.0/31"));
        assert!(is_malformed(stored, "\"here\""));
        let stored = found::<Blocks>(block("10-6-0-0-31", "10.7.0.0/31")).unwrap();
        assert!(is_malformed(stored, "must be named \"10-7-0-0-31\""));
        assert_eq!(found::<Blocks>(block("fd00--31", "here")), None);
        let pool = json!({"metadata": {"name": "p"}, "spec": {"cidr": 1}});
        assert_eq!(found::<Pools>(pool).unwrap().key, Key::Pool("p".to_owned()));
    }

    #[test]
    fn handle_of_another_attachment_with_the_same_name_is_not_taken() {
        let wire = |id: &str| {
            let value =
                json!({"metadata": {"name": "net.a"}, "spec": {"handleID": id, "block": {}}});
            serde_json::from_value::<Json>(value).unwrap()
        };
        let key = Key::Handle("net.a".to_owned());
        assert!(matches!(read(Kind::Handle, &key, wire("net.a")).content, Content::Object(_)));
        let other = read(Kind::Handle, &key, wire("net.A"));
        assert_eq!(other.key, key);
        assert!(matches!(other.content, Content::Malformed(_)));
    }

    #[test]
    fn node_has_calicos_annotations_and_only_the_own_node_labels() {
        let wire: WireNode = serde_json::from_value(json!({
            "metadata": {
                "name": "n1", "labels": {"zone": "a"},
                "annotations": {
                    "projectcalico.org/IPv4Address": "192.0.2.1/24",
                    "projectcalico.org/labels": "{\"zone\":\"b\",\"rack\":\"7\"}",
                },
            },
            "status": {"addresses": [
                {"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "192.0.2.1"},
            ]},
        }))
        .unwrap();
        let own = CalicoNode::trim(wire.clone(), &"n1".to_owned());
        let resource = own.resource.unwrap();
        assert_eq!(resource.ipv4.unwrap().to_string(), "192.0.2.1/24");
        let labels = [("rack", "7"), ("zone", "a")];
        assert_eq!(resource.labels, labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert_eq!(own.internal, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        let other = CalicoNode::trim(wire, &"n2".to_owned());
        assert!(other.resource.unwrap().labels.is_empty());
    }
}
