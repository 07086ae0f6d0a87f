// SPDX-License-Identifier: Apache-2.0
//! Configurations of static alone.

use serde_json::{Value, json};

use super::case::Case;
use crate::conf::{static_addresses, with};

pub fn cases() -> Vec<Case> {
    [given(), refused()].concat()
}

fn case(name: &str, ipam: &Value) -> Case {
    Case::new(name, static_addresses(ipam))
}

fn one() -> Value {
    json!({"addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}]})
}

fn given() -> Vec<Case> {
    let both = json!({"addresses": [
        {"address": "10.1.0.5/24", "gateway": "10.1.0.1"},
        {"address": "fd00:1::5/64", "gateway": "fd00:1::1"}]});
    let rest = json!({"routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.0.9"}],
        "dns": {"nameservers": ["10.0.0.1"], "domain": "example.org", "search": ["a"],
                "options": ["rotate"]}});
    let args = json!({"args": {"cni": {"ips": ["10.2.0.5/24"]}}});
    let runtime = json!({"runtimeConfig": {"ips": ["10.3.0.5/24", "fd00:3::5/64"]}});
    let mut cases: Vec<Case> = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
        .iter()
        .map(|version| {
            case(&format!("both in {version}"), &with(both.clone(), &rest)).version(version)
        })
        .collect();
    cases.extend([
        case("address without gateway", &json!({"addresses": [{"address": "10.1.0.5/24"}]})),
        case("no addresses", &json!({})),
        case("CNI_ARGS", &json!({})).args("IP=10.1.0.6/24,fd00:1::6/64;GATEWAY=10.1.0.1,fd00:1::1"),
        case("CNI_ARGS adds", &one()).args("IP=10.1.0.6/24;GATEWAY=10.1.0.9"),
        Case::new("args", with(static_addresses(&one()), &args)).args("IP=10.1.0.6/24"),
        Case::new("runtimeConfig", with(with(static_addresses(&one()), &args), &runtime)),
    ]);
    cases
}

fn refused() -> Vec<Case> {
    let two = json!({"addresses": [{"address": "10.1.0.5/24"}, {"address": "10.2.0.5/24"}]});
    vec![
        case("address without length", &json!({"addresses": [{"address": "10.1.0.5"}]}))
            .fails(7, "10.1.0.5"),
        case(
            "invalid gateway",
            &json!({"addresses": [{"address": "10.1.0.5/24", "gateway": "x"}]}),
        )
        .fails(7, "gateway"),
        case("CNI_ARGS without length", &json!({})).args("IP=10.1.0.6").fails(4, "10.1.0.6"),
        case("CNI_ARGS with an invalid gateway", &one()).args("GATEWAY=x").fails(4, "GATEWAY"),
        case("two of one family in an old version", &two)
            .version("0.2.0")
            .fails(7, "more than 1 address per family"),
    ]
}
