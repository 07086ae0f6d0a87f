// SPDX-License-Identifier: Apache-2.0
//! Configurations, built from the few words that differ.

use serde_json::{Value, json};

use crate::world::DATA;

/// `base` with the keys of `more` in place of its own.
pub fn with(mut base: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().expect("keys come in an object") {
        base[key] = value.clone();
    }
    base
}

/// `base` without these keys.
pub fn without(mut base: Value, keys: &[&str]) -> Value {
    let object = base.as_object_mut().expect("a configuration is an object");
    object.retain(|key, _| !keys.contains(&key.as_str()));
    base
}

/// host-local with one IPv4 range.
pub fn v4() -> Value {
    ranges(&json!([[{"subnet": "10.1.0.0/24"}]]))
}

/// host-local with one IPv6 range.
pub fn v6() -> Value {
    ranges(&json!([[{"subnet": "fd00:1::/64"}]]))
}

/// host-local with a range of each family.
pub fn dual() -> Value {
    ranges(&json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]))
}

/// host-local with these ranges.
pub fn ranges(ranges: &Value) -> Value {
    json!({"type": "host-local", "dataDir": DATA, "ranges": ranges})
}

/// A network of this type.
pub fn network(kind: &str, more: &Value) -> Value {
    with(json!({"cniVersion": "1.1.0", "name": "net", "type": kind}), more)
}

/// A bridge with one IPv4 range and these keys.
pub fn bridge(more: &Value) -> Value {
    with(network("bridge", &json!({"bridge": "br0", "ipam": v4()})), more)
}

/// ptp with one IPv4 range and these keys.
pub fn ptp(more: &Value) -> Value {
    with(network("ptp", &json!({"ipam": v4()})), more)
}

/// macvlan on `m0` with one IPv4 range and these keys.
pub fn macvlan(more: &Value) -> Value {
    with(network("macvlan", &json!({"master": "m0", "ipam": v4()})), more)
}

/// ipvlan on `m0` with one IPv4 range and these keys.
pub fn ipvlan(more: &Value) -> Value {
    with(network("ipvlan", &json!({"master": "m0", "ipam": v4()})), more)
}

/// VLAN 5 on `m0` with one IPv4 range and these keys.
pub fn vlan(more: &Value) -> Value {
    with(network("vlan", &json!({"master": "m0", "vlanId": 5, "ipam": v4()})), more)
}

/// dummy with one IPv4 range and these keys.
pub fn dummy(more: &Value) -> Value {
    with(network("dummy", &json!({"ipam": v4()})), more)
}

/// host-local by itself.
pub fn host_local(ipam: &Value) -> Value {
    network("host-local", &json!({"ipam": with(v4(), ipam)}))
}

/// static by itself.
pub fn static_addresses(ipam: &Value) -> Value {
    network("static", &json!({"ipam": with(json!({"type": "static"}), ipam)}))
}

/// host-device with `ens1` and these keys; see [`ENS1`].
pub fn host_device(more: &Value) -> Value {
    with(network("host-device", &json!({"device": "ens1"})), more)
}

/// What makes `ens1` on the host, to be given to pods.
pub const ENS1: &str = "link add ens1 address 02:00:00:00:00:11 type veth peer name far1";

/// tap with these keys.
pub fn tap(more: &Value) -> Value {
    network("tap", more)
}
