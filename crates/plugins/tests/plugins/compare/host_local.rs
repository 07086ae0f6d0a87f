// SPDX-License-Identifier: Apache-2.0
//! Configurations of host-local alone; its files are compared byte by byte.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{Add, Check, Del, File};
use crate::conf::{host_local, network, ranges, with, without};

pub fn cases() -> Vec<Case> {
    [versions(), given(), in_ranges(), requested(), refused(), round_robin(), history()].concat()
}

fn case(name: &str, ipam: &Value) -> Case {
    Case::new(name, host_local(ipam))
}

/// A case with one range set.
fn set(name: &str, ranges: &Value) -> Case {
    case(name, &json!({"ranges": [ranges]}))
}

fn versions() -> Vec<Case> {
    let config = host_local(&json!({
        "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd00:9::/64", "gw": "fd00:1::9"}],
    }));
    ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
        .iter()
        .map(|version| Case::new(format!("both in {version}"), config.clone()).version(version))
        .collect()
}

fn given() -> Vec<Case> {
    let legacy = json!({"type": "host-local", "dataDir": "/run/data", "subnet": "10.5.0.0/24",
        "rangeStart": "10.5.0.20", "rangeEnd": "10.5.0.30", "gateway": "10.5.0.9"});
    let both = with(legacy.clone(), &json!({"ranges": [[{"subnet": "10.6.0.0/24"}]]}));
    let runtime = json!({"runtimeConfig": {"ipRanges": [[{"subnet": "10.7.0.0/24"}]]}});
    let route = json!({"dst": "0.0.0.0/0", "gw": "10.1.0.9", "mtu": 1400, "advmss": 1300,
        "priority": 5, "table": 100, "scope": 253});
    let resolv = "# a comment\n; another\ndomain example.org\nnameserver 10.0.0.1\n\
        nameserver fd00::1\nsearch a b\noptions ndots:5 rotate\nsortlist x\n";
    let nothing = json!({"type": "host-local", "dataDir": "/run/data"});
    let alone = |ipam: &Value| network("host-local", &json!({ "ipam": ipam }));
    vec![
        Case::new("one range in the old format", alone(&legacy)),
        Case::new("one range and sets", alone(&both)),
        Case::new("ranges of the runtime", with(alone(&both), &runtime)),
        Case::new("only ranges of the runtime", with(alone(&nothing), &runtime)),
        case("name servers", &json!({"resolvConf": "/run/resolv.conf"}))
            .before(&[File("/run/resolv.conf", resolv)]),
        case("routes", &json!({ "routes": [route] })),
        case("unknown arguments with IgnoreUnknown", &json!({})).args("IgnoreUnknown=true;A=b"),
    ]
}

fn in_ranges() -> Vec<Case> {
    let from_to = |subnet: &str, start: &str, end: &str| json!({"subnet": subnet, "rangeStart": start, "rangeEnd": end});
    let (one, two) = (
        from_to("10.1.0.0/24", "10.1.0.10", "10.1.0.10"),
        from_to("10.2.0.0/24", "10.2.0.10", "10.2.0.10"),
    );
    let v6 = from_to("fd00:1::/64", "fd00:1::ff:1", "fd00:1::ff:ffff");
    vec![
        set("start and end", &json!([from_to("10.1.0.0/24", "10.1.0.10", "10.1.0.11")])),
        set("two ranges of a set", &json!([one, two])).steps(&[
            Add(1),
            Add(2),
            Check(1),
            Check(2),
            Del(1),
            Del(2),
        ]),
        set("IPv6 start and end", &json!([with(v6, &json!({"gateway": "fd00:1::fffe"}))])),
        set("gateway outside", &json!([{"subnet": "10.1.0.0/24", "gateway": "10.2.0.9"}])),
        set("smallest range", &json!([{"subnet": "10.1.0.0/30"}])),
    ]
}

fn requested() -> Vec<Case> {
    let args = json!({"args": {"cni": {"ips": ["10.1.0.40"]}}});
    let runtime = json!({"runtimeConfig": {"ips": ["10.1.0.41/24"]}});
    let with_more = |more: &Value| with(host_local(&json!({})), more);
    vec![
        case("IP in CNI_ARGS", &json!({})).args("IP=10.1.0.50"),
        case("IP with length in CNI_ARGS", &json!({})).args("IP=10.1.0.50/24"),
        Case::new("ips in args", with_more(&args)),
        Case::new("ips in runtimeConfig", with_more(&runtime)),
        case("IP is the gateway", &json!({})).args("IP=10.1.0.1").fails(999, "gateway"),
        case("IP is outside", &json!({})).args("IP=10.9.0.1").fails(999, "10.9.0.1"),
        case("invalid IP", &json!({})).args("IP=ten").fails(4, "ten"),
        case("IP is taken", &json!({}))
            .before(&[File("/run/data/net/10.1.0.50", "other\r\neth0")])
            .args("IP=10.1.0.50")
            .fails(999, "10.1.0.50"),
        case("unknown argument", &json!({})).args("A=b").fails(4, "A=b"),
    ]
}

fn refused() -> Vec<Case> {
    let two = json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]});
    vec![
        set("range too small", &json!([{"subnet": "10.1.0.0/31"}])).fails(7, "10.1.0.0/31"),
        set("subnet with host bits", &json!([{"subnet": "10.1.0.5/24"}])).fails(7, "10.1.0.5/24"),
        set("invalid subnet", &json!([{"subnet": "ten"}])).fails(7, "ten"),
        set("start outside", &json!([{"subnet": "10.1.0.0/24", "rangeStart": "10.2.0.1"}]))
            .fails(7, "10.2.0.1"),
        set("end outside", &json!([{"subnet": "10.1.0.0/24", "rangeEnd": "10.2.0.1"}]))
            .fails(7, "10.2.0.1"),
        set(
            "end before start",
            &json!([
            {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.8"}]),
        )
        .fails(7, "10.1.0.9"),
        set("families mixed", &json!([{"subnet": "10.1.0.0/24"}, {"subnet": "fd00:1::/64"}]))
            .fails(7, "famil"),
        set("ranges overlap", &json!([{"subnet": "10.1.0.0/24"}, {"subnet": "10.1.0.0/25"}]))
            .fails(7, "overlap"),
        case(
            "sets overlap",
            &json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.0/25"}]]}),
        )
        .fails(7, "overlap"),
        set("empty set", &json!([])).fails(7, "range set 0"),
        case("no ranges", &json!({"ranges": []})).fails(7, "no IP ranges specified"),
        case("two of one family in an old version", &two).version("0.2.0").fails(7, "per family"),
        case("no such resolv.conf", &json!({"resolvConf": "/run/nowhere"}))
            .fails(7, "/run/nowhere"),
        case("data directory is a file", &json!({"dataDir": "/run/plain"}))
            .before(&[File("/run/plain", "")])
            .always_fails(5, "/run/plain"),
        Case::new("no ipam key", network("host-local", &json!({}))).fails(7, "ipam"),
    ]
}

/// Round-robin order in a small pool.
fn round_robin() -> Vec<Case> {
    let pool = json!({"ranges": [[
        {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.12"}]]});
    let last = |text| File("/run/data/net/last_reserved_ip.0", text);
    let taken = [
        File("/run/data/net/10.1.0.10", "a\r\neth0"),
        File("/run/data/net/10.1.0.11", "b\r\neth0"),
        File("/run/data/net/10.1.0.12", "d"),
    ];
    vec![
        case("round-robin continues", &pool).steps(&[Add(1), Del(1), Add(2), Del(2), Add(1)]),
        case("round-robin wraps around", &pool).before(&[last("10.1.0.12")]),
        case("round-robin skips addresses in use", &pool).before(&[last("10.1.0.10"), taken[1]]),
        case("last address is outside", &pool).before(&[last("10.9.0.9")]),
        case("invalid last address", &pool).before(&[last("x")]),
        case("range is exhausted", &pool)
            .before(&taken)
            .fails(11, "no IP addresses available in range set: 10.1.0.10-10.1.0.12"),
    ]
}

/// Files left in the directory by other containers and other versions.
fn history() -> Vec<Case> {
    let usual = without(ranges(&json!([[{"subnet": "10.1.0.0/24"}]])), &["dataDir"]);
    let other = with(host_local(&json!({})), &json!({"name": "two"}));
    let (add_two, del_two) = ([Add(1), Add(2), Check(2)], [Del(1), Check(2), Del(2)]);
    vec![
        case("two containers", &json!({})).steps(&[add_two, del_two].concat()),
        case("second ADD", &json!({}))
            .steps(&[Add(1), Add(1), Check(1), Del(1)])
            .failing(&[(2, 999)]),
        case("DEL of an old file", &json!({}))
            .before(&[
                File("/run/data/net/10.1.0.9", "c1"),
                File("/run/data/net/10.1.0.8", "c2\r\neth0"),
            ])
            .steps(&[Check(1), Del(1), Check(2), Del(2)]),
        case("DEL of another interface", &json!({}))
            .before(&[File("/run/data/net/10.1.0.9", "c1\r\neth1")])
            .steps(&[Del(1)]),
        // The directory's modification time stays the same, so the index is stale.
        case("DEL after a rewrite in place", &json!({})).steps(&[
            Add(1),
            File("/run/data/net/10.1.0.2", "c2\r\neth0"),
            Del(2),
            Del(1),
        ]),
        case("CHECK after a rewrite in place", &json!({})).steps(&[
            Add(1),
            File("/run/data/net/10.1.0.2", "c2\r\neth0"),
            Check(2),
            Del(2),
        ]),
        case("CHECK without ADD", &json!({})).steps(&[Check(1), Del(1)]).failing(&[(1, 999)]),
        Case::new("other networks are not touched", other)
            .before(&[File("/run/data/net/10.1.0.2", "c1\r\neth0")]),
        Case::new("default directory", network("host-local", &json!({ "ipam": usual }))),
    ]
}
