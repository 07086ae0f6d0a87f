// SPDX-License-Identifier: Apache-2.0
//! Configurations of ptp.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{Add, Check, Del, Host, Pod};
use crate::conf::{dual, ptp, ranges, v4, v6, with, without};

pub fn cases() -> Vec<Case> {
    [plain(), refused()].concat()
}

fn case(name: &str, more: &Value) -> Case {
    Case::new(name, ptp(more))
}

fn plain() -> Vec<Case> {
    let routes = json!({"routes": [
        {"dst": "0.0.0.0/0"},
        {"dst": "192.0.2.0/24", "gw": "10.1.0.1", "priority": 7, "table": 100},
        {"dst": "203.0.114.0/24", "mtu": 1280, "advmss": 1200},
    ]});
    let fixed = json!({"type": "static", "addresses": [
        {"address": "10.1.0.5/24", "gateway": "10.1.0.1"}]});
    let by_others = json!({"routes": [
        {"dst": "0.0.0.0/0"},
        {"dst": "192.0.2.0/24", "gw": "10.1.0.9"},
        {"dst": "198.51.100.0/24", "gw": "10.1.0.1"},
        {"dst": "fd00:9::/64", "gw": "fd00:1::9"},
        {"dst": "::/0"},
    ]});
    let by_another = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.1.0.9"}]});
    let named = json!({"dns": {"nameservers": ["10.0.0.3"]}});
    let single = json!({"type": "static", "addresses": [
        {"address": "10.1.0.5/32", "gateway": "10.1.0.1"}]});
    let mut cases: Vec<Case> = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
        .iter()
        .map(|version| case(&format!("IPv4 in {version}"), &json!({})).version(version))
        .collect();
    cases.extend([
        case("IPv6", &json!({"ipam": v6()})),
        case("dual", &json!({"ipam": dual()})),
        case("mtu", &json!({"mtu": 1400})),
        case("dns", &json!({"dns": {"nameservers": ["10.0.0.2"]}})),
        case("routes", &json!({"ipam": with(v4(), &routes)})),
        case("static", &json!({"ipam": fixed})),
        case("routes via other gateways", &json!({"ipam": with(dual(), &by_others)})),
        case("route via another gateway", &json!({"ipam": with(v4(), &by_another)})),
        case("dns of IPAM", &json!({"ipam": with(fixed.clone(), &named)})),
        case("empty dns", &json!({"ipam": with(fixed, &named), "dns": {"nameservers": []}})),
        case("static with a single address", &json!({"ipam": single})),
        case("arguments are ignored", &json!({})).args("IgnoreUnknown=1;A=b"),
        case("two containers", &json!({})).steps(&[
            Add(1),
            Add(2),
            Check(1),
            Del(1),
            Check(2),
            Del(2),
            Del(2),
        ]),
        case(
            "two addresses",
            &json!({"ipam": ranges(&json!([
            [{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]))}),
        ),
    ]);
    cases
}

fn refused() -> Vec<Case> {
    let no_gateway = json!({"type": "static", "addresses": [{"address": "10.1.0.5/24"}]});
    let route = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.99.0.1"}]});
    vec![
        Case::new("no ipam key", without(ptp(&json!({})), &["ipam"]))
            .steps(&[Add(1)])
            .fails(7, "ipam"),
        case("no gateway", &json!({"ipam": no_gateway})).fails(7, "10.1.0.5/24 without a gateway"),
        case("mtu is a text", &json!({"mtu": "abc"})).fails(7, "mtu"),
        case("interface exists", &json!({}))
            .before(&[Pod("link add eth0 type veth peer name other")])
            .fails(999, "already exists"),
        case("gateway of a route cannot be reached", &json!({"ipam": with(v4(), &route)}))
            .fails(999, "unreachable"),
        case("namespace is missing", &json!({})).netns("/run/netns/nowhere").fails(3, "nowhere"),
        case("second ADD", &json!({})).steps(&[Add(1), Add(1), Del(1)]).failing(&[(2, 999)]),
        case("CHECK without the host's route", &json!({}))
            .steps(&[Add(1), Host("route del 10.1.0.2/32"), Check(1), Del(1)])
            .failing(&[(2, 999)]),
        case("CHECK without the address", &json!({}))
            .steps(&[Add(1), Pod("addr flush dev eth0"), Check(1), Del(1)])
            .failing(&[(2, 999)]),
    ]
}
