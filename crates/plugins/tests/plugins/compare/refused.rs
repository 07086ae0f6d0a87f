// SPDX-License-Identifier: Apache-2.0
//! Bridge configurations that fail, and calls after a failure.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{Add, Check, Del, File, Host, Pod};
use crate::conf::{bridge, network, ranges, v4, v6, with, without};

pub fn cases() -> Vec<Case> {
    [contradictions(), wrong_types(), environment(), conflicts(), later()].concat()
}

fn case(name: &str, more: &Value) -> Case {
    Case::new(name, bridge(more))
}

fn contradictions() -> Vec<Case> {
    let two = ranges(&json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]));
    let outside = ranges(&json!([[{"subnet": "10.1.0.0/24", "rangeStart": "10.2.0.5"}]]));
    vec![
        case("hairpin and promiscuous", &json!({"hairpinMode": true, "promiscMode": true}))
            .fails(7, "cannot set hairpin mode and promiscuous mode"),
        case("disableContainerInterface with IPAM", &json!({"disableContainerInterface": true}))
            .fails(7, "cannot use IPAM when DisableContainerInterface flag is set"),
        case("two gateways need forceAddress", &json!({"isGateway": true, "ipam": two}))
            .fails(7, "already has an IP address different from 10.2.0.1/24"),
        case("vlan out of range", &json!({"vlan": 5000})).fails(7, "\\\"vlan\\\" is 5000"),
        case("trunk out of range", &json!({"vlanTrunk": [{"id": 4095}]})).fails(7, "is 4095"),
        case("trunk without maxID", &json!({"vlanTrunk": [{"minID": 5}]})).fails(7, "maxID"),
        case("trunk with minID above maxID", &json!({"vlanTrunk": [{"minID": 9, "maxID": 5}]}))
            .fails(7, "above its maxID 5"),
        case("range outside subnet", &json!({"ipam": outside})).fails(7, "10.2.0.5"),
        case("no addresses from IPAM", &json!({"ipam": {"type": "static"}}))
            .fails(999, "missing IP config"),
        case("IPAM plugin is missing", &json!({"ipam": {"type": "nowhere"}}))
            .always_fails(7, "nowhere"),
    ]
}

fn wrong_types() -> Vec<Case> {
    vec![
        case("mtu is a text", &json!({"mtu": "abc"})).fails(7, "mtu"),
        case("isGateway is a number", &json!({"isGateway": 1})).fails(7, "isGateway"),
        case("bridge name too long", &json!({"bridge": "a-name-of-17-byte"}))
            .fails(7, "a-name-of-17-byte"),
        case("invalid MAC", &json!({"runtimeConfig": {"mac": "02:00"}})).fails(7, "02:00"),
        case("unknown version", &json!({"cniVersion": "2.0.0"})).always_fails(1, "incompatible"),
        Case::new("network has no name", without(bridge(&json!({})), &["name"]))
            .always_fails(7, "missing network name"),
        case("network has a bad name", &json!({"name": "a/b"})).always_fails(7, "name"),
    ]
}

fn environment() -> Vec<Case> {
    vec![
        case("unknown argument", &json!({})).args("K8S_POD_NAME=a").fails(4, "K8S_POD_NAME=a"),
        case("MAC unknown to host-local", &json!({}))
            .args("MAC=02:00:00:00:00:03")
            .fails(4, "MAC=02:00:00:00:00:03"),
        case("argument without value", &json!({})).args("MAC").fails(4, "\\\"MAC\\\""),
        case("interface name is too long", &json!({}))
            .ifname("sixteen-letters-")
            .always_fails(4, "sixteen"),
        case("namespace is missing", &json!({})).netns("/run/netns/nowhere").fails(3, "nowhere"),
        case("namespace is a file", &json!({}))
            .before(&[File("/run/plain", "")])
            .netns("/run/plain")
            .fails(999, "/run/plain"),
        case("namespace is the host's", &json!({}))
            .netns("/run/netns/host")
            .always_fails(8, "same"),
    ]
}

fn conflicts() -> Vec<Case> {
    let route = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.99.0.1"}]});
    vec![
        case("another address without forceAddress", &json!({"isGateway": true}))
            .before(&[Host("link add br0 type bridge"), Host("addr add 10.9.0.1/24 dev br0")])
            .fails(7, "already has an IP address different from 10.1.0.1/24"),
        case("another address of the IPv6 network", &json!({"isGateway": true, "ipam": v6()}))
            .before(&[
                Host("link add br0 type bridge"),
                Host("addr add fd00:1::9/64 dev br0 nodad"),
            ])
            .fails(7, "already has an IP address different from fd00:1::1/64"),
        case("bridge is something else", &json!({}))
            .before(&[Host("link add br0 type veth peer name br0p")])
            .fails(7, "not a bridge"),
        case("interface exists", &json!({}))
            .before(&[Pod("link add eth0 type veth peer name other")])
            .fails(999, "already exists"),
        case("gateway of a route cannot be reached", &json!({"ipam": with(v4(), &route)}))
            .fails(999, "unreachable"),
    ]
}

fn later() -> Vec<Case> {
    let small = ranges(&json!([[{"subnet": "10.1.0.0/30"}]]));
    let invalid = ranges(&json!([[{"subnet": "10.1.0.0/32"}]]));
    vec![
        case("range is exhausted", &json!({"ipam": small}))
            .steps(&[Add(1), Add(2), Del(2), Del(1)])
            .failing(&[(2, 11)]),
        case("second ADD", &json!({"isGateway": true}))
            .steps(&[Add(1), Add(1), Check(1), Del(1)])
            .failing(&[(2, 999)]),
        case("CHECK without the interface", &json!({}))
            .steps(&[Add(1), Pod("link del eth0"), Check(1), Del(1)])
            .failing(&[(2, 999)]),
        case("DEL without ADD", &json!({})).steps(&[Del(1)]),
        Case::new("DEL with invalid ranges", network("bridge", &json!({"ipam": invalid})))
            .steps(&[Del(1)]),
    ]
}
