// SPDX-License-Identifier: Apache-2.0
//! Builders for plugin configurations.

use serde_json::{Value, json};

use crate::world::DATA;

/// Returns `base` with the keys of `more` added or replaced.
pub fn with(mut base: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().expect("`more` is an object") {
        base[key] = value.clone();
    }
    base
}

/// Returns `base` without these keys.
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

/// A network configuration of this plugin type.
pub fn network(kind: &str, more: &Value) -> Value {
    with(json!({"cniVersion": "1.1.0", "name": "net", "type": kind}), more)
}

/// bridge with one IPv4 range and these keys.
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

/// host-local called directly, with these IPAM keys.
pub fn host_local(ipam: &Value) -> Value {
    network("host-local", &json!({"ipam": with(v4(), ipam)}))
}

/// static called directly, with these IPAM keys.
pub fn static_addresses(ipam: &Value) -> Value {
    network("static", &json!({"ipam": with(json!({"type": "static"}), ipam)}))
}

/// host-device with `ens1` and these keys; see [`ENS1`].
pub fn host_device(more: &Value) -> Value {
    with(network("host-device", &json!({"device": "ens1"})), more)
}

/// `ip` command that creates the host device `ens1`.
pub const ENS1: &str = "link add ens1 address 02:00:00:00:00:11 type veth peer name far1";

/// tap with these keys.
pub fn tap(more: &Value) -> Value {
    network("tap", more)
}
/// A chained plugin with these keys, after a plugin that created `eth0` as in [`ETH0_SETUP`].
pub fn chained(kind: &str, more: &Value) -> Value {
    with(network(kind, &json!({"prevResult": eth0_result("1.1.0")})), more)
}

/// Result of the plugin that created `eth0`, in the format of this version.
pub fn eth0_result(version: &str) -> Value {
    if ["0.1.0", "0.2.0"].contains(&version) {
        return json!({"cniVersion": version,
            "ip4": {"ip": "10.1.0.5/24", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0"}]},
            "ip6": {"ip": "fd00:1::5/64", "gateway": "fd00:1::1"}});
    }
    let mut ips = json!([
        {"address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 0},
        {"address": "fd00:1::5/64", "gateway": "fd00:1::1", "interface": 0}]);
    if version.starts_with("0.") {
        (ips[0]["version"], ips[1]["version"]) = (json!("4"), json!("6"));
    }
    json!({"cniVersion": version, "ips": ips, "routes": [{"dst": "0.0.0.0/0"}],
        "interfaces": [
            {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/pod1"}]})
}

/// `ip` commands that create `eth0` in a pod, with addresses and routes of both families.
pub const ETH0_SETUP: &[&str] = &[
    "link add eth0 address 02:00:00:00:00:01 type veth peer name peer0",
    "addr add 10.1.0.5/24 dev eth0",
    "addr add fd00:1::5/64 dev eth0 nodad",
    "link set peer0 up",
    "link set eth0 up",
    "route add default via 10.1.0.1",
    "route add 192.0.2.0/24 via 10.1.0.9",
    "route add 198.51.100.0/24 dev eth0",
    "-6 route add default via fd00:1::1",
];
