// SPDX-License-Identifier: Apache-2.0
//! Configurations of tap.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{Add, Check, Del, Pod};
use crate::conf::{dual, tap, v4, v6, with};

pub fn cases() -> Vec<Case> {
    [plain(), options(), refused(), later()].concat()
}

fn case(name: &str, more: &Value) -> Case {
    Case::new(name, tap(more))
}

fn plain() -> Vec<Case> {
    let versions = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    let mut cases: Vec<Case> = versions
        .iter()
        .map(|version| case(&format!("IPv4 in {version}"), &json!({"ipam": v4()})).version(version))
        .collect();
    let fixed = json!({"type": "static", "addresses": [{"address": "fd00:1::5/64"}]});
    cases.extend([
        case("plain", &json!({})),
        case("IPv6 without a gateway", &json!({"ipam": fixed})),
        case("two containers", &json!({"ipam": v4()})).steps(&[
            Add(1),
            Add(2),
            Check(1),
            Del(1),
            Check(2),
            Del(2),
            Del(2),
        ]),
    ]);
    cases
}

fn options() -> Vec<Case> {
    let ids = json!({"owner": 0, "group": 44});
    let routes = json!({"routes": [{"dst": "0.0.0.0/0"}]});
    let named = json!({"type": "static", "dns": {"nameservers": ["10.0.0.3"]},
        "addresses": [{"address": "10.1.0.5/24"}]});
    vec![
        case("owner", &json!({"owner": 1000})),
        case("group", &json!({"group": 44})),
        case("owner and group", &ids),
        case("multiQueue", &json!({"multiQueue": true})),
        case("multiQueue with owner and group", &with(tap(&ids), &json!({"multiQueue": true}))),
        case("mtu", &json!({"mtu": 1400})),
        case("mac", &json!({"mac": "02:00:00:00:00:21"})),
        case("empty mac", &json!({"mac": ""})),
        case("mac with owner and group", &with(tap(&ids), &json!({"mac": "02:00:00:00:00:21"}))),
        case("MAC in CNI_ARGS", &json!({"mac": "02:00:00:00:00:21"})).args("MAC=02:00:00:00:00:22"),
        case("mac of the runtime", &json!({"runtimeConfig": {"mac": "02:00:00:00:00:23"}}))
            .args("MAC=02:00:00:00:00:22"),
        case("bridge", &json!({"bridge": "br0"})).before(&[
            Pod("link add br0 address 02:00:00:00:00:31 type bridge"),
            Pod("link set br0 up"),
        ]),
        case("dns", &json!({"dns": {"nameservers": ["10.0.0.2"]}})),
        case("empty dns", &json!({"ipam": named, "dns": {"nameservers": []}})),
        case("routes", &json!({"ipam": with(v4(), &routes)})),
    ]
}

fn refused() -> Vec<Case> {
    let route = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.99.0.1"}]});
    vec![
        case("no address for a version that needs one", &json!({}))
            .version("0.2.0")
            .fails(999, "no valid IP addresses"),
        case("mtu is a text", &json!({"mtu": "abc"})).fails(7, "mtu"),
        case("owner is negative", &json!({"owner": -1})).fails(7, "owner"),
        case("invalid mac", &json!({"mac": "02:00"})).fails(7, "02:00"),
        case("unknown argument", &json!({})).args("A=b").fails(4, "A=b"),
        case("bridge is missing", &json!({"bridge": "br0"})).fails(7, "br0"),
        case("bridge is not a bridge", &json!({"bridge": "lo"})).fails(7, "lo"),
        case("interface exists", &json!({"ipam": v4()}))
            .before(&[Pod("link add eth0 type veth peer name other")])
            .steps(&[Add(1)])
            .fails(999, "already exists"),
        case("gateway of a route cannot be reached", &json!({"ipam": with(v4(), &route)}))
            .fails(999, "unreachable"),
        case("selinuxContext without SELinux", &json!({"selinuxContext": "a:b:c:s0"}))
            .fails(7, "selinuxContext"),
        case("namespace is missing", &json!({})).netns("/run/netns/nowhere").fails(3, "nowhere"),
    ]
}

fn later() -> Vec<Case> {
    vec![
        case("second ADD", &json!({})).steps(&[Add(1), Add(1), Del(1)]).failing(&[(2, 999)]),
        case("CHECK without the address", &json!({"ipam": v4()}))
            .steps(&[Add(1), Pod("addr flush dev eth0"), Check(1), Del(1)])
            .failing(&[(2, 999)]),
        case("DEL without ADD", &json!({"ipam": dual()})).steps(&[Del(1)]),
        case("IPv6", &json!({"ipam": v6()})),
    ]
}
