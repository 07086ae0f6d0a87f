// SPDX-License-Identifier: Apache-2.0
//! Configurations of bridge.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{Add, Check, Del, File, Host, Pod};
use crate::conf::{bridge, dual, network, ranges, v4, v6, with, without};

pub fn cases() -> Vec<Case> {
    [gateways(), links(), layer_two(), macs(), results(), refused(), others_in_the_way()].concat()
}

/// The whole life of a dual-stack container in every version.
pub fn versions() -> Vec<Case> {
    let config = bridge(&json!({"isDefaultGateway": true, "ipam": dual()}));
    ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
        .iter()
        .map(|version| {
            Case::new(format!("dual stack in {version}"), config.clone()).version(version)
        })
        .collect()
}

fn case(name: &str, more: Value) -> Case {
    Case::new(name, bridge(&more))
}

fn gateways() -> Vec<Case> {
    let own = ranges(&json!([[{"subnet": "10.1.0.0/24", "gateway": "10.1.0.254"}]]));
    let two = ranges(&json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]));
    let default = with(v4(), &json!({"routes": [{"dst": "0.0.0.0/0"}]}));
    let default_by = with(v4(), &json!({"routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.9"}]}));
    vec![
        case("plain", json!({})),
        Case::new("default name", without(bridge(&json!({})), &["bridge"])),
        case("isGateway", json!({"isGateway": true})),
        case("isGateway with a gateway of its own", json!({"isGateway": true, "ipam": own})),
        case("isGateway IPv6", json!({"isGateway": true, "ipam": v6()})),
        case("isDefaultGateway", json!({"isDefaultGateway": true})),
        case("isDefaultGateway dual", json!({"isDefaultGateway": true, "ipam": dual()})),
        case("default route by IPAM", json!({"isGateway": true, "ipam": default.clone()})),
        case(
            "default gateway and a default route",
            json!({"isDefaultGateway": true, "ipam": default}),
        ),
        case(
            "default gateway and another's",
            json!({"isDefaultGateway": true, "ipam": default_by}),
        ),
        case("two addresses of one family without gateway", json!({"ipam": two.clone()})),
        case("two gateways need forceAddress", json!({"isGateway": true, "ipam": two}))
            .fails(7, "already has an IP address different from 10.2.0.1/24"),
        case("forceAddress", json!({"isGateway": true, "forceAddress": true}))
            .before(&[Host("link add br0 type bridge"), Host("addr add 10.9.0.1/24 dev br0")]),
        case("another address without forceAddress", json!({"isGateway": true}))
            .before(&[Host("link add br0 type bridge"), Host("addr add 10.9.0.1/24 dev br0")])
            .fails(7, "already has an IP address different from 10.1.0.1/24"),
        case("another IPv6 network on the bridge", json!({"isGateway": true, "ipam": v6()}))
            .before(&[Host("link add br0 type bridge"), Host("addr add fd00:9::1/64 dev br0")]),
        case("another address of the IPv6 network", json!({"isGateway": true, "ipam": v6()}))
            .before(&[
                Host("link add br0 type bridge"),
                Host("addr add fd00:1::9/64 dev br0 nodad"),
            ])
            .fails(7, "already has an IP address different from fd00:1::1/64"),
        case("two containers", json!({"isGateway": true})).steps(&[
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
        case("mtu", json!({"mtu": 1400})),
        case("hairpinMode", json!({"hairpinMode": true})),
        case("promiscMode", json!({"promiscMode": true})),
        case("portIsolation", json!({"portIsolation": true})),
        case("enabledad", json!({"enabledad": true, "ipam": v6()})),
        case("another interface name", json!({})).ifname("net1"),
        case("existing bridge is used", json!({}))
            .before(&[Host("link add br0 address 02:00:00:00:00:aa mtu 1300 type bridge")]),
        case("keys in other cases", json!({"ISGATEWAY": true, "Mtu": 1300, "HairpinMode": true})),
        case("null is absent", json!({"isGateway": null, "mtu": null, "dns": null, "args": null})),
        case("unknown keys are passed over", json!({"capabilities": {"mac": true}, "x": [1]})),
    ]
}

fn layer_two() -> Vec<Case> {
    vec![
        case("no IPAM", json!({"ipam": {}})),
        Case::new("no ipam key", without(bridge(&json!({})), &["ipam"])),
        case("disableContainerInterface", json!({"ipam": {}, "disableContainerInterface": true})),
        case("disableContainerInterface with IPAM", json!({"disableContainerInterface": true}))
            .fails(7, "cannot use IPAM when the container interface is disabled"),
    ]
}

fn macs() -> Vec<Case> {
    let (one, two) = ("02:00:00:00:00:01", "02:00:00:00:00:02");
    let args = json!({"args": {"cni": {"mac": one}}});
    let runtime = json!({"runtimeConfig": {"mac": two}});
    vec![
        case("MAC in CNI_ARGS", json!({})).args("MAC=02:00:00:00:00:03"),
        case("MAC in CNI_ARGS among others", json!({}))
            .args("IgnoreUnknown=1;K8S_POD_NAME=a;MAC=02:00:00:00:00:03"),
        case("MAC in args", args.clone()).args("MAC=02:00:00:00:00:03"),
        case("MAC in runtimeConfig", with(args, &runtime)).args("MAC=02:00:00:00:00:03"),
        case("MAC that is none", json!({"runtimeConfig": {"mac": "02:00"}})).fails(7, "02:00"),
        case("unknown argument", json!({})).args("K8S_POD_NAME=a").fails(4, "K8S_POD_NAME=a"),
        case("argument without value", json!({})).args("MAC").fails(4, "\\\"MAC\\\""),
    ]
}

fn results() -> Vec<Case> {
    let routes = json!({"routes": [
        {"dst": "192.0.2.0/24", "gw": "10.1.0.7"},
        {"dst": "198.51.100.0/24", "priority": 77},
        {"dst": "203.0.113.0/24", "table": 100},
        {"dst": "203.0.114.0/24", "mtu": 1280, "advmss": 1200},
        {"dst": "203.0.115.0/24", "scope": 253},
    ]});
    let resolv = with(v4(), &json!({"resolvConf": "/run/resolv.conf"}));
    let file = File("/run/resolv.conf", "nameserver 10.0.0.1\nsearch a b\noptions ndots:5\n");
    let fixed = json!({"type": "static", "addresses": [
        {"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd00:1::5/64"}]});
    vec![
        case("routes with every attribute", json!({"ipam": with(v4(), &routes)})),
        case(
            "dns",
            json!({"dns": {"nameservers": ["10.0.0.2"], "domain": "example.org",
            "search": ["c"], "options": ["rotate"]}}),
        ),
        case("dns of IPAM", json!({"ipam": resolv.clone()})).before(&[file]),
        case("dns over that of IPAM", json!({"ipam": resolv, "dns": {"domain": "example.org"}}))
            .before(&[file]),
        case("static", json!({"ipam": fixed.clone()})),
        case("static with gateway", json!({"isDefaultGateway": true, "ipam": fixed})),
    ]
}

fn refused() -> Vec<Case> {
    let small = ranges(&json!([[{"subnet": "10.1.0.0/30"}]]));
    vec![
        case("hairpin and promiscuous", json!({"hairpinMode": true, "promiscMode": true}))
            .fails(7, "cannot set hairpin mode and promiscuous mode"),
        case("vlan out of range", json!({"vlan": 5000})).fails(7, "\\\"vlan\\\" is 5000"),
        case("mtu is a text", json!({"mtu": "abc"})).fails(7, "mtu"),
        case("isGateway is a number", json!({"isGateway": 1})).fails(7, "isGateway"),
        case("bridge name too long", json!({"bridge": "a-name-of-17-byte"}))
            .fails(7, "a-name-of-17-byte"),
        case("IPAM plugin is missing", json!({"ipam": {"type": "nowhere"}})).fails(7, "nowhere"),
        case(
            "range outside subnet",
            json!({"ipam": ranges(&json!([[
            {"subnet": "10.1.0.0/24", "rangeStart": "10.2.0.5"}]]))}),
        )
        .fails(7, "10.2.0.5"),
        case("range is used up", json!({"ipam": small}))
            .steps(&[Add(1), Add(2), Del(2), Del(1)])
            .failing(&[2]),
        case("no addresses from IPAM", json!({"ipam": {"type": "static"}}))
            .fails(999, "missing IP config"),
        case("unknown version", json!({"cniVersion": "2.0.0"})).fails(1, "incompatible"),
        Case::new("network has no name", without(bridge(&json!({})), &["name"]))
            .fails(7, "missing network name"),
        case("network has a bad name", json!({"name": "a/b"})).fails(7, "name"),
        case("interface name is too long", json!({}))
            .ifname("sixteen-letters-")
            .fails(4, "sixteen"),
        case("namespace is missing", json!({})).netns("/run/netns/nowhere").fails(3, "nowhere"),
        case("namespace is a file", json!({}))
            .before(&[File("/run/plain", "")])
            .netns("/run/plain")
            .fails(999, "/run/plain"),
        case("namespace is the host's", json!({})).netns("/run/netns/host").fails(8, "same"),
    ]
}

fn others_in_the_way() -> Vec<Case> {
    let route = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.99.0.1"}]});
    vec![
        case("bridge is something else", json!({}))
            .before(&[Host("link add br0 type veth peer name br0p")])
            .fails(7, "not a bridge"),
        case("interface is there already", json!({}))
            .before(&[Pod("link add eth0 type veth peer name other")])
            .fails(999, "already exists"),
        case("gateway of a route cannot be reached", json!({"ipam": with(v4(), &route)}))
            .fails(999, "unreachable"),
        case("second ADD", json!({"isGateway": true}))
            .steps(&[Add(1), Add(1), Del(1)])
            .failing(&[2]),
        case("CHECK without the interface", json!({}))
            .steps(&[Add(1), Pod("link del eth0"), Check(1), Del(1)])
            .failing(&[2]),
        case("DEL of what never was", json!({})).steps(&[Del(1)]),
        Case::new(
            "DEL with ranges no longer valid",
            network(
                "bridge",
                &json!({"ipam": ranges(&json!(
            [[{"subnet": "10.1.0.0/32"}]]))}),
            ),
        )
        .steps(&[Del(1)]),
    ]
}
