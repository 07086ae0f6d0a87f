// SPDX-License-Identifier: Apache-2.0
//! Configurations of sbr.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{Add, Check, Del, Pod};
use crate::conf::{chained, eth0_result, without};

pub fn cases() -> Vec<Case> {
    [plain(), refused()].concat()
}

fn case(name: &str, more: &Value) -> Case {
    Case::new(name, chained("sbr", more)).after_eth0()
}

fn plain() -> Vec<Case> {
    let versions = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    let in_version = |version: &&str| {
        let more = json!({"prevResult": eth0_result(version)});
        case(&format!("both families in {version}"), &more).version(version).after_eth0()
    };
    let address = |more: Value| json!({"prevResult": {"cniVersion": "1.1.0", "ips": [more]}});
    let two = json!({"prevResult": {"cniVersion": "1.1.0", "ips": [
        {"address": "10.1.0.5/24", "gateway": "10.1.0.1"},
        {"address": "10.1.0.6/24", "gateway": "10.1.0.1"}]}});
    let mut cases: Vec<Case> = versions.iter().map(in_version).collect();
    cases.extend([
        case("IPv4 alone", &address(json!({"address": "10.1.0.5/24", "gateway": "10.1.0.1"}))),
        case("no gateway", &address(json!({"address": "10.1.0.5/24"}))),
        case("configured table", &json!({"table": 3000})),
        case("configured low table", &json!({"table": 7})),
        case("two addresses of a network", &two)
            .and_before(&[Pod("addr add 10.1.0.6/24 dev eth0")]),
        case("tables in use", &json!({})).and_before(&[
            Pod("rule add from 10.9.0.1 lookup 100"),
            Pod("-6 rule add from fd00:9::1 lookup 101"),
        ]),
        case("routes of another interface", &json!({})).and_before(&[
            Pod("link add eth1 type veth peer name peer1"),
            Pod("addr add 10.2.0.5/24 dev eth1"),
            Pod("link set peer1 up"),
            Pod("link set eth1 up"),
            Pod("route add 203.0.113.0/24 via 10.2.0.1"),
            Pod("rule add from 10.2.0.5 lookup main"),
        ]),
        case("foreign rules stay", &json!({})).steps(&[
            Add(1),
            Pod("rule add from 10.1.0.7 lookup 500"),
            Pod("rule add from 10.1.0.5 to 10.7.0.0/16 lookup 500"),
            Del(1),
        ]),
        case("DEL keeps rules of other tables", &json!({"table": 3000}))
            .and_before(&[Pod("rule add from 10.1.0.5 lookup 3001")]),
    ]);
    cases
}

fn refused() -> Vec<Case> {
    let empty = json!({"prevResult": {"cniVersion": "1.1.0", "ips": []}});
    let far = json!({"prevResult": {"cniVersion": "1.1.0",
        "ips": [{"address": "10.1.0.5/24", "gateway": "10.99.0.1"}]}});
    vec![
        Case::new("not chained", without(chained("sbr", &json!({})), &["prevResult"]))
            .after_eth0()
            .fails(7, "must be called as chained plugin"),
        case("no address", &empty).fails(999, "No IP addresses supplied on interface: eth0"),
        Case::new("no interface", chained("sbr", &json!({}))).fails(999, "eth0"),
        case("gateway cannot be reached", &far).fails(999, "dev eth0 table 100: Network"),
        case("table is a text", &json!({"table": "x"})).fails(7, "table"),
        case("DEL without ADD", &json!({})).steps(&[Del(1)]),
        case("DEL without interface", &json!({})).steps(&[Add(1), Pod("link del eth0"), Del(1)]),
        case("CHECK without a rule", &json!({}))
            .steps(&[Add(1), Pod("rule del from 10.1.0.5"), Check(1), Del(1)])
            .failing(&[(2, 999)]),
    ]
}
