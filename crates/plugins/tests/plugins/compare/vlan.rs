// SPDX-License-Identifier: Apache-2.0
//! Configurations of bridge with VLANs, for a kernel with VLAN filtering.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{Add, Check, Del, Host};
use crate::conf::{bridge, dual, with};

fn case(name: &str, more: &Value) -> Case {
    Case::new(name, bridge(more))
}

/// VLANs of the container's port.
pub fn ports() -> Vec<Case> {
    let trunk = json!([{"minID": 10, "maxID": 20}, {"id": 30}, {"id": 15}]);
    let both = json!({"vlan": 100, "vlanTrunk": trunk, "preserveDefaultVlan": true, "ipam": {}});
    let other_default = "link add br0 type bridge vlan_filtering 1 vlan_default_pvid 7";
    let l2 = |more: &Value| with(json!({"ipam": {}}), more);
    vec![
        case("vlan", &json!({"vlan": 100})),
        case(
            "trunk, and the bridge is the gateway",
            &json!({"vlanTrunk": trunk, "isGateway": true}),
        ),
        case("empty trunk", &l2(&json!({"vlanTrunk": []}))),
        case("trunk, native and default", &both),
        case("native VLAN within the trunk", &l2(&json!({"vlan": 15, "vlanTrunk": trunk}))),
        case("existing bridge", &l2(&json!({"vlan": 100})))
            .before(&[Host("link add br0 type bridge")]),
        case("existing bridge with another default", &l2(&json!({"vlan": 100})))
            .before(&[Host(other_default)]),
    ]
}

/// Interface that holds the gateway's address.
pub fn gateways() -> Vec<Case> {
    let gateway = json!({"vlan": 100, "isDefaultGateway": true, "ipam": dual()});
    vec![
        // No CHECK after a DEL: the Go plugin's bridge changes its MAC address with its ports.
        case("gateway of a VLAN", &gateway).steps(&[
            Add(1),
            Check(1),
            Add(2),
            Check(2),
            Del(1),
            Del(2),
        ]),
        case("gateway of a VLAN exists", &json!({"vlan": 100, "isGateway": true})).before(&[
            Host("link add br0 type bridge vlan_filtering 1"),
            Host("link set br0 up"),
            Host("link add link br0 name br0.100 type vlan id 100"),
            Host("link set br0.100 up"),
        ]),
        case("gateway of a VLAN has another address", &json!({"vlan": 100, "isGateway": true}))
            .before(&[
                Host("link add br0 type bridge vlan_filtering 1"),
                Host("link add link br0 name br0.100 type vlan id 100"),
                Host("addr add 10.9.0.1/24 dev br0.100"),
            ])
            .fails(7, "\\\"br0.100\\\" already has an IP address different from 10.1.0.1/24"),
    ]
}
