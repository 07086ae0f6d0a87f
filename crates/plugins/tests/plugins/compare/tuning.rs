// SPDX-License-Identifier: Apache-2.0
//! Configurations of tuning.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{Add, Check, Del, Pod};
use crate::conf::{chained, eth0_result, network, with, without};

/// Directory of tuning's backups, part of the files compared.
const DATA_DIR: &str = "/run/data/tuning";

pub fn cases() -> Vec<Case> {
    [plain(), sources(), refused(), damaged()].concat()
}

fn tuning(more: &Value) -> Value {
    with(chained("tuning", &json!({"dataDir": DATA_DIR})), more)
}

fn case(name: &str, more: &Value) -> Case {
    Case::new(name, tuning(more)).after_eth0()
}

fn plain() -> Vec<Case> {
    let versions = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    let in_version = |version: &&str| {
        let more = json!({"mac": "02:00:00:00:00:07", "mtu": 1400,
            "prevResult": eth0_result(version)});
        case(&format!("MAC and MTU in {version}"), &more).version(version).after_eth0()
    };
    let all = json!({"mac": "02:00:00:00:00:07", "mtu": 1400, "promisc": true, "allmulti": true,
        "txQLen": 777, "sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1"}});
    let mut cases: Vec<Case> = versions.iter().map(in_version).collect();
    cases.extend([
        case("nothing to do", &json!({})),
        case("MAC address", &json!({"mac": "02:00:00:00:00:07"})),
        case("empty MAC address", &json!({"mac": "", "mtu": 1300})),
        case("mtu", &json!({"mtu": 1300})),
        case("promisc", &json!({"promisc": true})),
        case("promisc off", &json!({"promisc": false})),
        case("allmulti", &json!({"allmulti": true})),
        case("allmulti off", &json!({"allmulti": false})),
        case("txQLen", &json!({"txQLen": 20000})),
        case("txQLen of 0", &json!({"txQLen": 0})),
        case("all at once", &all),
        case(
            "sysctl",
            &json!({"sysctl": {"net.ipv4.ip_forward": "1",
            "net.ipv4.conf.all.arp_notify": "1"}}),
        ),
        case("sysctl with slashes", &json!({"sysctl": {"net/ipv6/conf/IFNAME/accept_ra": "0"}})),
        case("sysctl with a slash before", &json!({"sysctl": {"/net.ipv4.ip_forward": "1"}})),
        case("no gateway, no routes", &json!({"mtu": 1400, "prevResult": {"cniVersion": "1.1.0"}})),
        case("key in different letter case", &json!({"MTU": 1400, "txqlen": 5})),
    ]);
    cases
}

/// Precedence of the sources of a value.
fn sources() -> Vec<Case> {
    let mac = |last: u8| format!("02:00:00:00:00:0{last}");
    let args = json!({"cni": {"mac": mac(4), "mtu": 1200, "promisc": true, "allmulti": true,
        "txQLen": 5, "sysctl": {"net.ipv4.ip_forward": "1"}}});
    let runtime = json!({"mac": mac(3)});
    vec![
        case("CNI_ARGS", &json!({"mac": mac(1)})).args("MAC=02:00:00:00:00:02"),
        case("capability", &json!({"mac": mac(1), "runtimeConfig": runtime})),
        case("capability and CNI_ARGS", &json!({"mac": mac(1), "runtimeConfig": runtime}))
            .args("IgnoreUnknown=1;MAC=02:00:00:00:00:02;A=b"),
        case(
            "args.cni",
            &json!({"mac": mac(1), "mtu": 1400, "runtimeConfig": runtime,
            "sysctl": {"net.ipv4.conf.all.arp_notify": "1", "net.ipv4.ip_forward": "0"},
            "args": args}),
        )
        .args("MAC=02:00:00:00:00:02"),
        case(
            "args.cni turns off",
            &json!({"promisc": true, "allmulti": true,
            "args": {"cni": {"promisc": false, "allmulti": false}}}),
        ),
        case(
            "sysctl by args.cni alone",
            &json!({
            "args": {"cni": {"sysctl": {"net.ipv4.ip_forward": "1"}}}}),
        ),
        case("args without cni", &json!({"mtu": 1400, "args": {"labels": [1]}})),
    ]
}

fn refused() -> Vec<Case> {
    let sysctl = |key: &str, value: Value| json!({"mtu": 1400, "sysctl": {key: value}});
    vec![
        Case::new("not chained", without(tuning(&json!({"mtu": 1400})), &["prevResult"]))
            .after_eth0()
            .fails(7, "prevResult"),
        Case::new("no interface", tuning(&json!({"mtu": 1400}))).fails(999, "eth0"),
        case("namespace is missing", &json!({"mtu": 1400}))
            .netns("/run/netns/nowhere")
            .fails(3, "nowhere"),
        case("sysctl of the host", &sysctl("kernel.hostname", json!("x")))
            .fails(7, "kernel.hostname"),
        case("sysctl with ..", &sysctl("net/../kernel/hostname", json!("x")))
            .fails(7, "net/../kernel/hostname"),
        case("sysctl that is missing", &sysctl("net.ipv4.no_such_thing", json!("1")))
            .fails(999, "no_such_thing"),
        case("sysctl with a bad value", &sysctl("net.ipv4.ip_forward", json!("yes")))
            .fails(999, "net.ipv4.ip_forward"),
        case("sysctl is a number", &sysctl("net.ipv4.ip_forward", json!(1)))
            .fails(7, "net.ipv4.ip_forward"),
        case("invalid MAC address", &json!({"mac": "02:00"})).fails(7, "02:00"),
        case("multicast MAC address", &json!({"mac": "01:00:00:00:00:01", "mtu": 1400}))
            .fails(7, "01:00:00:00:00:01"),
        case(
            "mtu the kernel refuses",
            &json!({"mac": "02:00:00:00:00:07", "mtu": 9,
            "sysctl": {"net.ipv4.ip_forward": "1"}}),
        )
        .fails(999, "eth0"),
        case("unknown argument", &json!({"mtu": 1400})).args("A=b").fails(4, "A=b"),
        Case::new("network has no name", network("tuning", &json!({"name": ""})))
            .always_fails(7, "missing network name"),
    ]
}

fn damaged() -> Vec<Case> {
    let check = |name: &str, more: &Value, damage: &'static str| {
        case(name, more).steps(&[Add(1), Pod(damage), Check(1), Del(1)]).failing(&[(2, 999)])
    };
    vec![
        check("CHECK of mtu", &json!({"mtu": 1400}), "link set eth0 mtu 1300"),
        check("CHECK of promisc", &json!({"promisc": true}), "link set eth0 promisc off"),
        check("CHECK of allmulti", &json!({"allmulti": true}), "link set eth0 allmulticast off"),
        check("CHECK of txQLen", &json!({"txQLen": 7}), "link set eth0 txqueuelen 8"),
        check(
            "CHECK of mac",
            &json!({"mac": "02:00:00:00:00:07"}),
            "link set eth0 address 02:00:00:00:00:08",
        ),
        check("CHECK without the interface", &json!({"mtu": 1400}), "link del eth0"),
        case("CHECK of a capture", &json!({"mtu": 1400})).steps(&[
            Add(1),
            Pod("link set eth0 promisc on"),
            Check(1),
            Del(1),
        ]),
        case("two numbers", &json!({"sysctl": {"net.ipv4.ip_local_port_range": "2000 3000"}})),
        case("DEL without backup", &json!({"mtu": 1400})).steps(&[Del(1)]),
        case("DEL without interface", &json!({"mtu": 1400})).steps(&[
            Add(1),
            Pod("link del eth0"),
            Del(1),
        ]),
    ]
}
