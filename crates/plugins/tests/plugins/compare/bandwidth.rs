// SPDX-License-Identifier: Apache-2.0
//! Configurations of bandwidth, after a veth pair that stands for the result of a previous plugin.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{Add, Check, Del, Host, Pod};
use crate::conf::{network, with, without};

pub fn cases() -> Vec<Case> {
    [plain(), refused(), later()].concat()
}

/// A veth pair with an MTU that differs from the default.
const PAIR: [super::Step; 3] = [
    Host("link add vhost0 mtu 1400 type veth peer name eth0 mtu 1400 netns pod1"),
    Host("link set vhost0 up"),
    Pod("link set eth0 up"),
];

/// The same with an MTU below the minimum of IPv6, which the ifb gets too.
const SMALL_PAIR: [super::Step; 3] = [
    Host("link add vhost0 mtu 1024 type veth peer name eth0 mtu 1024 netns pod1"),
    PAIR[1],
    PAIR[2],
];

fn prev_result(version: &str) -> Value {
    let mut ip = json!({"address": "10.1.0.5/24", "interface": 1});
    if version.starts_with('0') {
        ip["version"] = json!("4");
    }
    json!({"cniVersion": version, "ips": [ip], "interfaces": [
        {"name": "vhost0"}, {"name": "eth0", "sandbox": "/run/netns/pod1"}]})
}

fn case_in(version: &str, name: &str, more: &Value) -> Case {
    let config = network("bandwidth", &json!({"prevResult": prev_result(version)}));
    Case::new(name, config).version(version).config(more).before(&PAIR)
}

impl Case {
    fn config(mut self, more: &Value) -> Case {
        self.config = with(self.config, more);
        self
    }
}

fn case(name: &str, more: &Value) -> Case {
    case_in("1.1.0", name, more)
}

fn both() -> Value {
    json!({"ingressRate": 20_000_000, "ingressBurst": 1_000_000,
        "egressRate": 8_000_000, "egressBurst": 400_000})
}

fn plain() -> Vec<Case> {
    let ingress = json!({"ingressRate": 20_000_000, "ingressBurst": 1_000_000});
    let egress = json!({"egressRate": 20_000_000, "egressBurst": 1_000_000});
    let kubernetes = json!({"ingressRate": 1_000_000_000, "ingressBurst": i32::MAX,
        "egressRate": 1_000_000_000, "egressBurst": i32::MAX});
    let containerd = json!({"ingressRate": 1_000_000_000, "ingressBurst": u32::MAX,
        "egressRate": 1_000_000_000, "egressBurst": u32::MAX});
    let wide = json!({"ingressRate": 100_000_000_000_u64, "ingressBurst": 80_000_000});
    let ours = json!({"runtimeConfig": {"bandwidth": both()}});
    let mut cases: Vec<Case> = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
        .iter()
        .map(|version| case_in(version, &format!("both in {version}"), &both()))
        .collect();
    cases.extend([
        case("ingress alone", &ingress),
        case("egress alone", &egress),
        case("from the runtime", &ours),
        case("network overrides runtime", &with(ours.clone(), &ingress)),
        case("zero overrides runtime", &with(ours, &json!({"ingressRate": 0}))),
        case("nothing to limit", &json!({})),
        case("zero is no limit", &json!({"ingressRate": 0, "ingressBurst": 0})),
        case("burst of cri-dockerd", &kubernetes),
        case("burst of containerd", &containerd),
        case("MTU below 1280", &both()).before(&SMALL_PAIR),
        other_interface(),
        case("rate beyond 32 bits", &wide),
        case(
            "smallest",
            &json!({"ingressRate": 8, "ingressBurst": 8,
            "egressRate": 15, "egressBurst": 15}),
        ),
        case(
            "keys in different letter case",
            &json!({"INGRESSRATE": 80_000, "ingressburst": 80_000}),
        ),
    ]);
    cases
}

/// The ifb's name for an interface other than eth0.
fn other_interface() -> Case {
    let mut result = prev_result("1.1.0");
    result["interfaces"][1]["name"] = json!("net1");
    let pair = [
        Host("link add vhost0 mtu 1400 type veth peer name net1 mtu 1400 netns pod1"),
        Host("link set vhost0 up"),
        Pod("link set net1 up"),
    ];
    case("interface net1", &with(both(), &json!({"prevResult": result})))
        .ifname("net1")
        .before(&pair)
}

fn refused() -> Vec<Case> {
    let huge = 8 * u64::from(u32::MAX);
    let macvlan = [
        Host("link add parent type veth peer name other"),
        Host("link add link parent name eth0 netns pod1 type macvlan mode bridge"),
    ];
    let unlisted = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "cni0"}]});
    vec![
        case("rate without burst", &json!({"ingressRate": 8}))
            .fails(7, "if rate is set, burst must also be set"),
        case("burst without rate", &json!({"egressBurst": 8}))
            .fails(7, "if burst is set, rate must also be set"),
        case("burst too large", &json!({"egressRate": 8, "egressBurst": huge})).fails(7, "4 GiB"),
        case("rate is a text", &json!({"egressRate": "1M"})).fails(7, "egressRate"),
        case("rate below zero", &json!({"egressRate": -1})).fails(7, "egressRate"),
        case("less than a byte a second", &json!({"ingressRate": 7, "ingressBurst": 800}))
            .fails(7, "ingressRate"),
        Case::new("no prevResult", without(case("", &both()).config, &["prevResult"]))
            .before(&PAIR)
            .fails(7, "must be called as chained plugin"),
        case("no veth", &both()).before(&macvlan).fails(999, "macvlan"),
        case("no interface", &both()).before(&[]).fails(999, "eth0"),
        case("interface not in prevResult", &with(both(), &json!({"prevResult": unlisted})))
            .fails(999, "vhost0"),
        case("namespace is missing", &both()).netns("/run/netns/nowhere").fails(3, "nowhere"),
        case("version that has no chains", &with(both(), &json!({"cniVersion": "0.2.0"})))
            .always_fails(1, "incompatible"),
    ]
}

fn later() -> Vec<Case> {
    vec![
        case("CHECK without the ifb", &both())
            .steps(&[Add(1), Host("link del bwp623e1c388032"), Check(1), Del(1)])
            .failing(&[(2, 999)]),
        case("DEL without ADD", &both()).steps(&[Del(1)]),
        case("DEL without the pair", &both()).steps(&[Add(1), Host("link del vhost0"), Del(1)]),
    ]
}
