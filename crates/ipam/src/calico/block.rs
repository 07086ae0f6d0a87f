// SPDX-License-Identifier: Apache-2.0
//! Blocks: `AllocationBlock` in libcalico-go/lib/backend/model/block.go, and the custom resource IPAMBlock in
//! lib/apis/internalapi/ipam_block.go. A test names the fields that differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::block::{Attribute, Block, BlockParts, Ordinal};
use crate::calico::fields::{Fields, Resource};
use crate::calico::{Malformed, Preserved};
use crate::time::Timestamp;

/// Reads an etcd value. The CIDR is also the key, and both must agree.
pub(super) fn from_etcd(cidr: IpNet, mut fields: Fields) -> Result<Block, Malformed> {
    let mut parts = parts(cidr, &mut fields, "affinity_claim_time")?;
    parts.preserved.spec = fields.rest();
    build(cidr, parts)
}

pub(super) fn from_crd(mut resource: Resource) -> Result<Block, Malformed> {
    let spec = &mut resource.spec;
    let cidr: String = spec.required("cidr")?;
    let cidr = cidr.parse().map_err(|e| spec.error("cidr", format!("{cidr:?}: {e}")))?;
    let mut parts = parts(cidr, spec, "affinityClaimTime")?;
    parts.preserved = resource.preserved();
    build(cidr, parts)
}

pub(super) fn to_etcd(block: &Block) -> Map<String, Value> {
    let mut map = write(block, "affinity_claim_time");
    // Calico writes null for a block without affinity.
    map.entry("affinity").or_insert(Value::Null);
    map
}

pub(super) fn to_crd_spec(block: &Block) -> Map<String, Value> {
    let mut map = write(block, "affinityClaimTime");
    // A deprecated field that Calico still writes, always false.
    map.entry("strictAffinity").or_insert(Value::Bool(false));
    map
}

fn build(cidr: IpNet, parts: BlockParts) -> Result<Block, Malformed> {
    Block::from_parts(cidr, parts)
        .map_err(|reason| Malformed { object: format!("IPAMBlock {cidr}"), reason })
}

fn parts(cidr: IpNet, fields: &mut Fields, claim_time: &str) -> Result<BlockParts, Malformed> {
    if let Some(text) = fields.optional::<String>("cidr")?
        && text.parse().ok() != Some(cidr)
    {
        return Err(fields.error("cidr", format!("{text:?}; expected {cidr} as in the key")));
    }
    let attributes: Vec<Value> = fields.optional("attributes")?.unwrap_or_default();
    let attributes = attributes.into_iter().enumerate();
    let attributes = attributes
        .map(|(i, value)| attribute(&format!("IPAMBlock {cidr}: attributes[{i}]"), value));
    let sequences: BTreeMap<String, u64> =
        fields.optional("sequenceNumberForAllocation")?.unwrap_or_default();
    let sequences = sequences.into_iter().map(|(ordinal, sequence)| match ordinal.parse() {
        Ok(ordinal) => Ok((ordinal, sequence)),
        Err(_) => Err(fields.error("sequenceNumberForAllocation", format!("key {ordinal:?}"))),
    });
    let sequences = sequences.collect::<Result<BTreeMap<usize, u64>, _>>()?;
    Ok(BlockParts {
        affinity: fields.optional("affinity")?,
        claimed: fields.optional(claim_time)?,
        attributes: attributes.collect::<Result<_, _>>()?,
        allocations: fields.required("allocations")?,
        unallocated: fields.optional("unallocated")?.unwrap_or_default(),
        sequence: fields.optional("sequenceNumber")?.unwrap_or_default(),
        sequences,
        deleted: fields.optional("deleted")?.unwrap_or_default(),
        preserved: Preserved::default(),
    })
}

fn attribute(name: &str, value: Value) -> Result<Arc<Attribute>, Malformed> {
    let mut fields = Fields::of(&name, value)?;
    Ok(Arc::new(Attribute {
        handle: fields.optional("handle_id")?,
        secondary: fields.optional("secondary")?.unwrap_or_default(),
        released_at: fields.optional::<Timestamp>("releasedAt")?,
        preserved: fields.rest(),
    }))
}

fn write(block: &Block, claim_time: &str) -> Map<String, Value> {
    let mut map = block.preserved.spec.clone();
    let (attributes, allocations) = indexed_attributes(block);
    map.insert("cidr".to_owned(), block.cidr().to_string().into());
    if let Some(affinity) = &block.affinity {
        map.insert("affinity".to_owned(), affinity.as_str().into());
    }
    if let Some(time) = block.claimed {
        map.insert(claim_time.to_owned(), time.to_string().into());
    }
    map.insert("allocations".to_owned(), allocations.into());
    map.insert("unallocated".to_owned(), block.free().collect::<Vec<Ordinal>>().into());
    map.insert("attributes".to_owned(), attributes.into());
    map.insert("sequenceNumber".to_owned(), block.sequence.into());
    let sequences = block.allocations().filter(|(_, allocation)| allocation.sequence > 0);
    let sequences =
        sequences.map(|(ordinal, allocation)| (ordinal.to_string(), allocation.sequence.into()));
    map.insert("sequenceNumberForAllocation".to_owned(), Value::Object(sequences.collect()));
    map.insert("deleted".to_owned(), block.deleted.into());
    map
}

/// Returns the list of different attributes, and for each ordinal the index of its attribute.
fn indexed_attributes(block: &Block) -> (Vec<Value>, Vec<Value>) {
    let mut attributes = Vec::new();
    let mut allocations = vec![Value::Null; block.size()];
    let mut known: BTreeMap<Key<'_>, usize> = BTreeMap::new();
    for (ordinal, allocation) in block.allocations() {
        let attribute = &*allocation.attribute;
        let index = *known.entry(Key::of(attribute)).or_insert_with(|| {
            attributes.push(attribute_value(attribute));
            attributes.len() - 1
        });
        allocations[usize::from(ordinal)] = index.into();
    }
    (attributes, allocations)
}

/// Orders attributes, to find equal ones.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a> {
    handle: Option<&'a str>,
    secondary: &'a BTreeMap<String, String>,
    released_at: Option<Timestamp>,
    preserved: String,
}

impl<'a> Key<'a> {
    fn of(attribute: &'a Attribute) -> Self {
        let preserved = if attribute.preserved.is_empty() {
            String::new()
        } else {
            Value::Object(attribute.preserved.clone()).to_string()
        };
        Self {
            handle: attribute.handle.as_deref(),
            secondary: &attribute.secondary,
            released_at: attribute.released_at,
            preserved,
        }
    }
}

fn attribute_value(attribute: &Attribute) -> Value {
    let mut map = attribute.preserved.clone();
    if let Some(handle) = &attribute.handle {
        map.insert("handle_id".to_owned(), handle.as_str().into());
    }
    if !attribute.secondary.is_empty() {
        let secondary = attribute.secondary.iter();
        let secondary = secondary.map(|(name, value)| (name.clone(), value.as_str().into()));
        map.insert("secondary".to_owned(), Value::Object(secondary.collect()));
    }
    if let Some(time) = attribute.released_at {
        map.insert("releasedAt".to_owned(), time.to_string().into());
    }
    Value::Object(map)
}
