// SPDX-License-Identifier: Apache-2.0
//! Configurations of vrf.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{Add, Check, Del, Pod};
use crate::conf::{chained, eth0_result, with, without};

fn vrf(more: &Value) -> Value {
    with(chained("vrf", &json!({"vrfname": "blue"})), more)
}

fn case(name: &str, more: &Value) -> Case {
    Case::new(name, vrf(more)).after_eth0()
}

pub fn cases() -> Vec<Case> {
    let in_version = |version: &&str| {
        let more = json!({"prevResult": eth0_result(version)});
        case(&format!("both families in {version}"), &more).version(version).after_eth0()
    };
    let mut cases: Vec<Case> = ["0.3.1", "1.1.0"].iter().map(in_version).collect();
    cases.extend([
        case("table", &json!({"table": 1001})),
        case("VRF exists", &json!({})).and_before(&[Pod("link add blue type vrf table 77")]),
    ]);
    cases
}

/// Cases rejected before the plugin creates a VRF, so any kernel can run them.
pub fn refused() -> Vec<Case> {
    vec![
        case("name of something else", &json!({"vrfname": "peer0"}))
            .steps(&[Add(1)])
            .fails(7, "not a VRF"),
        case("no name", &json!({"vrfname": ""})).fails(7, "vrfname"),
        Case::new("not chained", without(vrf(&json!({})), &["prevResult"]))
            .after_eth0()
            .fails(7, "prevResult"),
        case("DEL without ADD", &json!({})).steps(&[Del(1)]),
    ]
}

pub fn failing() -> Vec<Case> {
    vec![
        case("VRF exists with another table", &json!({"table": 5}))
            .and_before(&[Pod("link add blue type vrf table 77")])
            .steps(&[Add(1)])
            .fails(7, "\\\"table\\\" is 5"),
        case("second ADD", &json!({}))
            .steps(&[Add(1), Add(1), Check(1), Del(1)])
            .failing(&[(2, 999)]),
        case("CHECK after the interface left the VRF", &json!({}))
            .steps(&[Add(1), Pod("link set eth0 nomaster"), Check(1)])
            .failing(&[(2, 999)]),
    ]
}
