// SPDX-License-Identifier: Apache-2.0
//! Answers and sysctl changes of portmap. The rules differ by design; tests with real connections
//! compare their effect.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{Add, Check, Del, Host};
use crate::conf::{network, with};

pub fn cases() -> Vec<Case> {
    [passed_on(), versions(), refused()].concat()
}

fn result() -> Value {
    json!({"cniVersion": "1.1.0",
        "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/run/netns/pod1"}],
        "ips": [{"address": "10.1.0.9/24", "interface": 0}, {"address": "10.1.0.2/24", "interface": 1},
            {"address": "fd00:1::2/64", "interface": 1}],
        "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.1.0.1"]}})
}

/// Creates a bridge with a route to the container's address.
fn case(name: &str, mappings: &Value, more: &Value) -> Case {
    let base = json!({"backend": "nftables", "runtimeConfig": {"portMappings": mappings},
        "prevResult": result()});
    Case::new(name, with(network("portmap", &base), more)).before(&[
        Host("link add br0 type bridge"),
        Host("link set br0 up"),
        Host("addr add 10.1.0.1/24 dev br0"),
    ])
}

fn passed_on() -> Vec<Case> {
    let one = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let twice = json!([one[0], one[0]]);
    let at = |ip: &str| json!([with(one[0].clone(), &json!({"hostIP": ip}))]);
    vec![
        case("no ports", &json!([]), &json!({})),
        case("ports are null", &Value::Null, &json!({})),
        case("one port", &one, &json!({})).steps(&[Add(1), Check(1), Del(1), Del(1)]),
        case("the same port twice", &twice, &json!({})),
        case("UDP", &json!([{"hostPort": 53, "containerPort": 53, "protocol": "udp"}]), &json!({})),
        case("SCTP", &json!([{"hostPort": 9, "containerPort": 9, "protocol": "sctp"}]), &json!({})),
        case("no snat", &one, &json!({"snat": false})),
        case("masqAll", &one, &json!({"masqAll": true})),
        case("one address", &at("192.0.2.1"), &json!({})),
        case("every IPv4 address", &at("0.0.0.0"), &json!({})),
        case("every IPv6 address", &at("::"), &json!({})),
        case("conditions of nft", &one, &json!({"conditionsV4": ["ip", "saddr", "10.0.0.0/8"]})),
        case("empty conditions", &one, &json!({"conditionsV4": [], "conditionsV6": []})),
        case("mark bit", &one, &json!({"markMasqBit": 5})),
    ]
}

fn versions() -> Vec<Case> {
    let one = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let old = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.2/24"}});
    let of = |version: &str| {
        let mut result = with(result(), &json!({"cniVersion": version}));
        if version.starts_with("0.3") || version == "0.4.0" {
            for ip in result["ips"].as_array_mut().expect("addresses") {
                let is_v6 = ip["address"].as_str().is_some_and(|text| text.contains(':'));
                ip["version"] = json!(if is_v6 { "6" } else { "4" });
            }
        }
        result
    };
    let new = ["0.3.0", "0.3.1", "0.4.0", "1.0.0"].map(|version| (version, of(version)));
    let all = [("0.1.0", with(old.clone(), &json!({"cniVersion": "0.1.0"}))), ("0.2.0", old)];
    let case = |(version, result): (&str, Value)| {
        let more = json!({"cniVersion": version, "prevResult": result});
        let base = case(&format!("version {version}"), &one, &more);
        let before = base.before.clone();
        base.version(version).before(&before)
    };
    all.into_iter().chain(new).map(case).collect()
}

fn refused() -> Vec<Case> {
    let one = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let with_port = |more: &Value| json!([with(one[0].clone(), more)]);
    let no_result = json!({"prevResult": null});
    let marks = json!({"markMasqBit": 5, "externalSetMarkChain": "X"});
    vec![
        case("no result", &one, &no_result).fails(7, "must be called as chained plugin"),
        case("host port 0", &with_port(&json!({"hostPort": 0})), &json!({})).fails(7, "hostPort"),
        case("host port too high", &with_port(&json!({"hostPort": 65536})), &json!({}))
            .fails(7, "65536"),
        case("container port below 0", &with_port(&json!({"containerPort": -1})), &json!({}))
            .fails(7, "containerPort"),
        case("unknown protocol", &with_port(&json!({"protocol": "icmp"})), &json!({}))
            .fails(7, "icmp"),
        case("unknown backend", &one, &json!({"backend": "ipfw"})).fails(7, "ipfw"),
        case("mark bit too high", &one, &json!({"markMasqBit": 32})).fails(7, "markMasqBit"),
        case("two kinds of mark", &one, &marks)
            .fails(7, "Cannot specify externalSetMarkChain and markMasqBit"),
        case("invalid conditions", &one, &json!({"conditionsV4": ["nonsense"]}))
            .fails(7, "nonsense"),
    ]
}
