// SPDX-License-Identifier: Apache-2.0
//! Configurations of bridge with VLANs, for a kernel that filters them.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{Add, Check, Del, Host};
use crate::conf::{bridge, dual};

fn case(name: &str, more: &Value) -> Case {
    Case::new(name, bridge(more))
}

pub fn cases() -> Vec<Case> {
    let keep = json!({"vlan": 100, "preserveDefaultVlan": true});
    let trunk = json!([{"minID": 10, "maxID": 20}, {"id": 30}, {"id": 15}]);
    let within = json!({"vlan": 15, "vlanTrunk": trunk});
    let both = json!({"vlan": 100, "vlanTrunk": trunk, "preserveDefaultVlan": true});
    let gateway = json!({"vlan": 100, "isDefaultGateway": true, "ipam": dual()});
    vec![
        case("vlan", &json!({"vlan": 100})),
        case("vlan and default", &keep),
        case("vlan without IPAM", &json!({"vlan": 100, "ipam": {}})),
        case("trunk", &json!({"vlanTrunk": trunk})),
        case("trunk of the usual native VLAN", &json!({"vlanTrunk": [{"id": 1}, {"id": 2}]})),
        case("empty trunk", &json!({"vlanTrunk": []})),
        case("trunk and native", &both),
        case("native VLAN within the trunk", &within),
        case("existing bridge", &json!({"vlan": 100})).before(&[Host("link add br0 type bridge")]),
        case("existing bridge with another default", &json!({"vlan": 100}))
            .before(&[Host("link add br0 type bridge vlan_filtering 1 vlan_default_pvid 7")]),
        case("gateway of a trunk is the bridge", &json!({"vlanTrunk": trunk, "isGateway": true})),
        case("gateway of a VLAN", &gateway).steps(&[
            Add(1),
            Check(1),
            Add(2),
            Check(2),
            Del(1),
            Check(2),
            Del(2),
            Del(2),
        ]),
        case("gateway of a VLAN in 0.4.0", &gateway).version("0.4.0"),
        case("gateway of a VLAN is there", &json!({"vlan": 100, "isGateway": true})).before(&[
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
