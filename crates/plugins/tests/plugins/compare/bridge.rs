// SPDX-License-Identifier: Apache-2.0
//! Configurations of bridge.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{Add, Check, Del, File, Host};
use crate::conf::{bridge, dual, ranges, v4, v6, with, without};

pub fn cases() -> Vec<Case> {
    [gateways(), links(), layer_two(), macs(), results()].concat()
}

/// All verbs for a dual-stack container in every version.
pub fn versions() -> Vec<Case> {
    let config = bridge(&json!({"isDefaultGateway": true, "ipam": dual()}));
    ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
        .iter()
        .map(|version| {
            Case::new(format!("dual stack in {version}"), config.clone()).version(version)
        })
        .collect()
}

fn case(name: &str, more: &Value) -> Case {
    Case::new(name, bridge(more))
}

fn gateways() -> Vec<Case> {
    let own = ranges(&json!([[{"subnet": "10.1.0.0/24", "gateway": "10.1.0.254"}]]));
    let two = ranges(&json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]));
    let default = with(v4(), &json!({"routes": [{"dst": "0.0.0.0/0"}]}));
    let default_by = with(v4(), &json!({"routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.9"}]}));
    vec![
        case("plain", &json!({})),
        Case::new("default name", without(bridge(&json!({})), &["bridge"])),
        case("isGateway", &json!({"isGateway": true})),
        case("isGateway with a configured gateway", &json!({"isGateway": true, "ipam": own})),
        case("isGateway IPv6", &json!({"isGateway": true, "ipam": v6()})),
        case("isDefaultGateway", &json!({"isDefaultGateway": true})),
        case("isDefaultGateway dual", &json!({"isDefaultGateway": true, "ipam": dual()})),
        case("default route by IPAM", &json!({"isGateway": true, "ipam": default.clone()})),
        case(
            "default gateway and a default route",
            &json!({"isDefaultGateway": true, "ipam": default}),
        ),
        case(
            "default gateway and a route via another gateway",
            &json!({"isDefaultGateway": true, "ipam": default_by}),
        ),
        case("two addresses of one family without gateway", &json!({"ipam": two.clone()})),
        case("forceAddress", &json!({"isGateway": true, "forceAddress": true}))
            .before(&[Host("link add br0 type bridge"), Host("addr add 10.9.0.1/24 dev br0")]),
        case("another IPv6 network on the bridge", &json!({"isGateway": true, "ipam": v6()}))
            .before(&[
                Host("link add br0 type bridge"),
                Host("addr add fd00:9::1/64 dev br0 nodad"),
            ]),
        case("two containers", &json!({"isGateway": true})).steps(&[
            Add(1),
            Add(2),
            Check(1),
            Del(1),
            Check(2),
            Del(2),
            Del(2),
        ]),
    ]
}

fn links() -> Vec<Case> {
    vec![
        case("mtu", &json!({"mtu": 1400})),
        case("hairpinMode", &json!({"hairpinMode": true})),
        case("promiscMode", &json!({"promiscMode": true})),
        case("portIsolation", &json!({"portIsolation": true})),
        case("enabledad", &json!({"enabledad": true, "ipam": v6()})),
        case("another interface name", &json!({})).ifname("net1"),
        case("existing bridge is used", &json!({}))
            .before(&[Host("link add br0 address 02:00:00:00:00:aa mtu 1300 type bridge")]),
        case("existing bridge without a port", &json!({}))
            .before(&[Host("link add br0 type bridge")]),
        case("existing bridge without a port is the gateway", &json!({"isGateway": true}))
            .before(&[Host("link add br0 type bridge")]),
        case(
            "keys in different letter case",
            &json!({"ISGATEWAY": true, "Mtu": 1300, "HairpinMode": true}),
        ),
        case("null is absent", &json!({"isGateway": null, "mtu": null, "dns": null, "args": null})),
        case("unknown keys are ignored", &json!({"capabilities": {"mac": true}, "x": [1]})),
    ]
}

fn layer_two() -> Vec<Case> {
    vec![
        case("no IPAM", &json!({"ipam": {}})),
        Case::new("no ipam key", without(bridge(&json!({})), &["ipam"])),
        case("disableContainerInterface", &json!({"ipam": {}, "disableContainerInterface": true})),
    ]
}

/// host-local does not know the argument MAC, so the runtime must set IgnoreUnknown.
fn macs() -> Vec<Case> {
    let known = "IgnoreUnknown=1;K8S_POD_NAME=a;MAC=02:00:00:00:00:03";
    let args = json!({"args": {"cni": {"mac": "02:00:00:00:00:01"}}});
    let runtime = json!({"runtimeConfig": {"mac": "02:00:00:00:00:02"}});
    vec![
        case("MAC in CNI_ARGS", &json!({"ipam": {}})).args("MAC=02:00:00:00:00:03"),
        case("MAC in CNI_ARGS among others", &json!({})).args(known),
        case("MAC in args", &args).args(known),
        case("MAC in runtimeConfig", &with(args, &runtime)).args(known),
    ]
}

fn results() -> Vec<Case> {
    let routes = json!({"routes": [
        {"dst": "192.0.2.0/24", "gw": "10.1.0.7"},
        {"dst": "198.51.100.0/24", "priority": 77},
        {"dst": "203.0.113.0/24", "table": 100},
        {"dst": "203.0.114.0/24", "mtu": 1280, "advmss": 1200},
    ]});
    let resolv = with(v4(), &json!({"resolvConf": "/run/resolv.conf"}));
    let file = File("/run/resolv.conf", "nameserver 10.0.0.1\nsearch a b\noptions ndots:5\n");
    let fixed = json!({"type": "static", "addresses": [
        {"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd00:1::5/64"}]});
    let straight = json!({"type": "static", "addresses": [{"address": "10.1.0.5/24"}],
        "routes": [{"dst": "203.0.115.0/24", "scope": 253}]});
    let scoped = json!({"routes": [{"dst": "203.0.115.0/24", "scope": 253}]});
    vec![
        case("route with a scope", &json!({"ipam": straight})),
        case("route with a scope beside a gateway", &json!({"ipam": with(v4(), &scoped)})),
        case("routes with every attribute", &json!({"ipam": with(v4(), &routes)})),
        case(
            "dns",
            &json!({"dns": {"nameservers": ["10.0.0.2"], "domain": "example.org",
            "search": ["c"], "options": ["rotate"]}}),
        ),
        case("dns of IPAM", &json!({"ipam": resolv.clone()})).before(&[file]),
        case("empty dns", &json!({"ipam": resolv.clone(), "dns": {"nameservers": []}}))
            .before(&[file]),
        case("empty options of dns", &json!({"ipam": resolv.clone(), "dns": {"options": []}}))
            .before(&[file]),
        case(
            "dns of the network overrides IPAM",
            &json!({"ipam": resolv, "dns": {"domain": "example.org"}}),
        )
        .before(&[file]),
        case("static", &json!({"ipam": fixed.clone()})),
        case("static with gateway", &json!({"isDefaultGateway": true, "ipam": fixed})),
    ]
}
