// SPDX-License-Identifier: Apache-2.0
//! Keys and values in etcd, and in the embedded store.

use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::calico::fields::{Fields, Resource, resource};
use crate::calico::objects::ConfigNames;
use crate::calico::{
    BlockAffinity, Handle, IpamConfig, Key, Malformed, NodeResource, Object, Preserved,
    Reservation, block,
};
use crate::pool::PoolConf;

/// Prefix of blocks of both families.
pub const BLOCKS: &str = "/calico/ipam/v2/assignment/";
/// Prefix of the affinities of all nodes.
pub const AFFINITIES: &str = "/calico/ipam/v2/host/";
pub const HANDLES: &str = "/calico/ipam/v2/handle/";
pub const CONFIG: &str = "/calico/ipam/v2/config";
pub const POOLS: &str = "/calico/resources/v3/projectcalico.org/ippools/";
pub const RESERVATIONS: &str = "/calico/resources/v3/projectcalico.org/ipreservations/";
pub const NODES: &str = "/calico/resources/v3/projectcalico.org/nodes/";

const API_VERSION: &str = "projectcalico.org/v3";
const CONFIG_NAMES: ConfigNames =
    ConfigNames { strict: "strict_affinity", auto: "auto_allocate_blocks" };

/// Returns the key of an object.
pub fn key(key: &Key) -> String {
    match key {
        Key::Block(cidr) => format!("{BLOCKS}{}/block/{}", family(cidr), dashed(cidr)),
        Key::Affinity { node, block } => {
            format!("{AFFINITIES}{node}/{}/block/{}", family(block), dashed(block))
        }
        Key::Handle(id) => format!("{HANDLES}{id}"),
        Key::Config => CONFIG.to_owned(),
        Key::Pool(name) => format!("{POOLS}{name}"),
        Key::Reservation(name) => format!("{RESERVATIONS}{name}"),
        Key::Node(name) => format!("{NODES}{name}"),
    }
}

/// Returns the object that a key stands for. Returns `None` for keys of other objects.
pub fn parse_key(text: &str) -> Option<Key> {
    if text == CONFIG {
        return Some(Key::Config);
    }
    if let Some(rest) = text.strip_prefix(BLOCKS) {
        let (family, cidr) = rest.split_once("/block/")?;
        return parse_cidr(family, cidr).map(Key::Block);
    }
    if let Some(rest) = text.strip_prefix(AFFINITIES) {
        let (node, rest) = rest.split_once('/')?;
        let (family, cidr) = rest.split_once("/block/")?;
        let block = parse_cidr(family, cidr)?;
        return Some(Key::Affinity { node: node.to_owned(), block });
    }
    let (prefix, name) = text.split_at(text.rfind('/')? + 1);
    let name = Some(name.to_owned()).filter(|name| !name.is_empty())?;
    match prefix {
        HANDLES => Some(Key::Handle(name)),
        POOLS => Some(Key::Pool(name)),
        RESERVATIONS => Some(Key::Reservation(name)),
        NODES => Some(Key::Node(name)),
        _ => None,
    }
}

/// Returns the value of an object.
///
/// Key and object are of the same kind; otherwise the object decides.
pub fn value(key: &Key, object: &Object) -> Vec<u8> {
    let map = match object {
        Object::Block(block) => block::to_etcd(block),
        Object::Affinity(affinity) => affinity.to_etcd(),
        Object::Handle(handle) => {
            let mut map = handle.preserved.spec.clone();
            handle.write(&mut map);
            map
        }
        Object::Config(config) => {
            let mut map = config.preserved.spec.clone();
            config.write(&mut map, &CONFIG_NAMES, true);
            map
        }
        Object::Pool(pool) => v3("IPPool", key, &pool.preserved, pool.spec()),
        Object::Reservation(reservation) => {
            v3("IPReservation", key, &reservation.preserved, reservation.spec())
        }
        Object::Node(node) => v3("Node", key, &node.preserved, node.spec()),
    };
    Value::Object(map).to_string().into_bytes()
}

/// Parses the value of an object.
pub fn parse(key: &Key, value: &[u8]) -> Result<Object, Malformed> {
    // Old versions of Calico stored affinities without a value.
    let value = if value.is_empty() { b"{}" } else { value };
    let mut fields = Fields::parse(key, value)?;
    match key {
        Key::Block(cidr) => block::from_etcd(*cidr, fields).map(Object::Block),
        Key::Affinity { .. } => BlockAffinity::from_etcd(fields).map(Object::Affinity),
        Key::Handle(_) => {
            let handle = Handle::read(&mut fields)?;
            Ok(Object::Handle(Handle { preserved: flat(fields), ..handle }))
        }
        Key::Config => {
            let config = IpamConfig::read(&mut fields, &CONFIG_NAMES)?;
            Ok(Object::Config(IpamConfig { preserved: flat(fields), ..config }))
        }
        Key::Pool(name) => {
            PoolConf::from_resource(name, Resource::split(fields)?).map(Object::Pool)
        }
        Key::Reservation(_) => {
            Reservation::from_resource(Resource::split(fields)?).map(Object::Reservation)
        }
        Key::Node(name) => {
            NodeResource::from_resource(name, Resource::split(fields)?).map(Object::Node)
        }
    }
}

fn flat(fields: Fields) -> Preserved {
    Preserved { spec: fields.rest(), ..Preserved::default() }
}

fn v3(
    kind: &str,
    key: &Key,
    preserved: &Preserved,
    spec: Map<String, Value>,
) -> Map<String, Value> {
    let name = match key {
        Key::Pool(name) | Key::Reservation(name) | Key::Node(name) => name,
        _ => "",
    };
    resource(API_VERSION, kind, name, &preserved.envelope, spec)
}

fn family(cidr: &IpNet) -> &'static str {
    match cidr {
        IpNet::V4(_) => "ipv4",
        IpNet::V6(_) => "ipv6",
    }
}

fn dashed(cidr: &IpNet) -> String {
    cidr.trunc().to_string().replacen('/', "-", 1)
}

fn parse_cidr(family_word: &str, text: &str) -> Option<IpNet> {
    let cidr: IpNet = text.replacen('-', "/", 1).parse().ok()?;
    (family(&cidr) == family_word && cidr.trunc() == cidr).then_some(cidr)
}
