// SPDX-License-Identifier: Apache-2.0
//! Custom resources of the group `crd.projectcalico.org/v1`.

use ipnet::IpNet;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::calico::fields::{Fields, Resource, metadata, nested, resource};
use crate::calico::objects::ConfigNames;
use crate::calico::{
    BlockAffinity, Handle, IpamConfig, Key, Malformed, Object, Reservation, block, hostname_label,
};
use crate::pool::PoolConf;

/// Group and version of all custom resources.
pub const API_VERSION: &str = "crd.projectcalico.org/v1";

const CONFIG_NAMES: ConfigNames =
    ConfigNames { strict: "strictAffinity", auto: "autoAllocateBlocks" };

/// Name of the one IPAMConfig that applies.
const CONFIG_NAME: &str = "default";

/// Longest name of a Kubernetes object is 253 characters.
const NAME_LIMIT: usize = 253;

/// Annotation with the metadata that Calico's API has beside that of Kubernetes
/// (ConvertCalicoResourceToK8sResource in lib/backend/k8s/resources/resources.go).
const METADATA: &str = "projectcalico.org/metadata";

/// Content of this annotation if there is no such metadata. New versions of Calico write the second form.
const NO_METADATA: [&str; 2] = [r#"{"creationTimestamp":null}"#, "{}"];

/// Fields of `metadata` that are kept: what other programs set. The API server keeps the others itself.
const KEPT_METADATA: [&str; 4] = ["labels", "annotations", "ownerReferences", "finalizers"];

/// Labels by which Calico lists the affinities of a node.
const AFFINITY_LABELS: [&str; 3] = [
    "projectcalico.org/hostname-hash",
    "projectcalico.org/affinity-type",
    "projectcalico.org/ip-version",
];

/// The kinds of custom resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Block,
    Affinity,
    Handle,
    Config,
    Pool,
    Reservation,
}

impl Kind {
    pub const ALL: [Self; 6] =
        [Self::Block, Self::Affinity, Self::Handle, Self::Config, Self::Pool, Self::Reservation];

    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "IPAMBlock",
            Self::Affinity => "BlockAffinity",
            Self::Handle => "IPAMHandle",
            Self::Config => "IPAMConfig",
            Self::Pool => "IPPool",
            Self::Reservation => "IPReservation",
        }
    }

    /// Returns the name of the resource in paths of the API server.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Block => "ipamblocks",
            Self::Affinity => "blockaffinities",
            Self::Handle => "ipamhandles",
            Self::Config => "ipamconfigs",
            Self::Pool => "ippools",
            Self::Reservation => "ipreservations",
        }
    }

    /// Returns the kind of an object. Returns `None` for nodes, which consist of annotations in Kubernetes.
    pub fn of(key: &Key) -> Option<Self> {
        match key {
            Key::Block(_) => Some(Self::Block),
            Key::Affinity { .. } => Some(Self::Affinity),
            Key::Handle(_) => Some(Self::Handle),
            Key::Config => Some(Self::Config),
            Key::Pool(_) => Some(Self::Pool),
            Key::Reservation(_) => Some(Self::Reservation),
            Key::Node(_) => None,
        }
    }
}

/// Returns the name of the Kubernetes object.
pub fn name(key: &Key) -> String {
    match key {
        Key::Block(cidr) => cidr_name(cidr),
        Key::Affinity { node, block } => affinity_name(node, &cidr_name(block)),
        Key::Handle(id) => id.to_lowercase(),
        Key::Config => CONFIG_NAME.to_owned(),
        Key::Pool(name) | Key::Reservation(name) | Key::Node(name) => name.clone(),
    }
}

/// Returns an object as custom resource, without a resource version. Returns `None` for nodes.
pub fn value(key: &Key, object: &Object) -> Option<Value> {
    let (kind, preserved, spec) = match object {
        Object::Block(block) => (Kind::Block, &block.preserved, block::to_crd_spec(block)),
        Object::Affinity(affinity) => {
            (Kind::Affinity, &affinity.preserved, affinity_spec(key, affinity))
        }
        Object::Handle(handle) => {
            let mut spec = handle.preserved.spec.clone();
            handle.write(&mut spec);
            if let Key::Handle(id) = key {
                spec.insert("handleID".to_owned(), id.as_str().into());
            }
            (Kind::Handle, &handle.preserved, spec)
        }
        Object::Config(config) => {
            let mut spec = config.preserved.spec.clone();
            config.write(&mut spec, &CONFIG_NAMES, false);
            (Kind::Config, &config.preserved, spec)
        }
        Object::Pool(pool) => (Kind::Pool, &pool.preserved, pool.spec()),
        Object::Reservation(reservation) => {
            (Kind::Reservation, &reservation.preserved, reservation.spec())
        }
        Object::Node(_) => return None,
    };
    let mut map = resource(API_VERSION, kind.name(), &name(key), &preserved.envelope, spec);
    let annotations = nested(metadata(&mut map), "annotations");
    annotations.entry(METADATA).or_insert_with(|| NO_METADATA[0].into());
    if let Key::Affinity { node, block } = key {
        add_labels(&mut map, node, block);
    }
    Some(Value::Object(map))
}

/// Parses a custom resource and returns its identity too. The identity does not always follow from the name.
pub fn parse(kind: Kind, value: Value) -> Result<(Key, Object), Malformed> {
    let name = value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("without name");
    let name = name.to_owned();
    let fields = Fields::of(&format!("{} {name}", kind.name()), value)?;
    let mut resource = Resource::split(fields)?;
    if kind != Kind::Pool {
        // There are many objects of the other kinds.
        shrink(&mut resource.envelope);
    }
    match kind {
        Kind::Block => {
            let block = block::from_crd(resource)?;
            Ok((Key::Block(block.cidr()), Object::Block(block)))
        }
        Kind::Affinity => parse_affinity(resource),
        Kind::Handle => {
            let id: String = resource.spec.required("handleID")?;
            let handle = Handle::read(&mut resource.spec)?;
            let handle = Handle { preserved: resource.preserved(), ..handle };
            Ok((Key::Handle(id), Object::Handle(handle)))
        }
        Kind::Config => {
            let config = IpamConfig::read(&mut resource.spec, &CONFIG_NAMES)?;
            let config = IpamConfig { preserved: resource.preserved(), ..config };
            Ok((Key::Config, Object::Config(config)))
        }
        Kind::Pool => {
            let pool = PoolConf::from_resource(&name, resource)?;
            Ok((Key::Pool(name), Object::Pool(pool)))
        }
        Kind::Reservation => {
            let reservation = Reservation::from_resource(resource)?;
            Ok((Key::Reservation(name), Object::Reservation(reservation)))
        }
    }
}

fn parse_affinity(mut resource: Resource) -> Result<(Key, Object), Malformed> {
    let spec = &mut resource.spec;
    let cidr: String = spec.required("cidr")?;
    let block = cidr.parse().map_err(|e| spec.error("cidr", format!("{cidr:?}: {e}")))?;
    let node = spec.required("node")?;
    if let Some(kind) = spec.peek("type").and_then(Value::as_str)
        && !matches!(kind, "" | "host")
    {
        return Err(spec.error("type", format!("{kind:?}; only host is supported")));
    }
    let state = BlockAffinity::state_from(spec)?;
    // The field is a string for historical reasons.
    let deleted = match spec.optional::<String>("deleted")?.as_deref() {
        Some("true") => true,
        None | Some("" | "false") => false,
        Some(other) => {
            return Err(spec.error("deleted", format!("{other:?}; expected true or false")));
        }
    };
    let affinity = BlockAffinity { state, deleted, preserved: resource.preserved() };
    Ok((Key::Affinity { node, block }, Object::Affinity(affinity)))
}

fn affinity_spec(key: &Key, affinity: &BlockAffinity) -> Map<String, Value> {
    let mut spec = affinity.preserved.spec.clone();
    if let Key::Affinity { node, block } = key {
        spec.insert("node".to_owned(), node.as_str().into());
        spec.insert("cidr".to_owned(), block.to_string().into());
    }
    spec.insert("state".to_owned(), affinity.state.as_str().into());
    spec.insert("type".to_owned(), "host".into());
    spec.insert("deleted".to_owned(), affinity.deleted.to_string().into());
    spec
}

/// Adds the labels by which Calico lists the affinities of a node.
fn add_labels(object: &mut Map<String, Value>, node: &str, block: &IpNet) {
    let labels = nested(metadata(object), "labels");
    let version = if matches!(block, IpNet::V4(_)) { "4" } else { "6" };
    let values = [hostname_label(node), "host".to_owned(), version.to_owned()];
    labels.extend(AFFINITY_LABELS.map(str::to_owned).into_iter().zip(values.map(Value::from)));
}

/// Removes what [`value`] and the API server add to each object.
fn shrink(envelope: &mut Map<String, Value>) {
    envelope.retain(|field, _| !matches!(field.as_str(), "apiVersion" | "kind"));
    let Some(Value::Object(metadata)) = envelope.get_mut("metadata") else { return };
    metadata.retain(|field, _| KEPT_METADATA.contains(&field.as_str()));
    for field in ["labels", "annotations"] {
        let Some(Value::Object(texts)) = metadata.get_mut(field) else { continue };
        texts.retain(|name, text| {
            let is_empty = name == METADATA && NO_METADATA.iter().any(|empty| *text == **empty);
            !is_empty && !AFFINITY_LABELS.contains(&name.as_str())
        });
        if texts.is_empty() {
            metadata.remove(field);
        }
    }
    if metadata.is_empty() {
        envelope.remove("metadata");
    }
}

fn cidr_name(cidr: &IpNet) -> String {
    cidr.to_string().replace(['.', ':', '/'], "-")
}

/// Returns `<node>-<block>`. As in Calico, a name that is too long loses its middle and ends with a hash.
fn affinity_name(node: &str, block: &str) -> String {
    let name = format!("{node}-{block}");
    if name.len() < NAME_LIMIT {
        return name;
    }
    let hash = Sha256::digest(format!("{node}+{block}"));
    let hash: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let kept = NAME_LIMIT - 1 - block.len() - 13;
    format!("{}-{block}-{}", node.get(..kept).unwrap_or(node), &hash[..11])
}
