// SPDX-License-Identifier: Apache-2.0
//! Configurations of macvlan, ipvlan, vlan and dummy, whose interfaces exist only in the container.

use serde_json::{Value, json};

use super::case::Case;
use super::case::Step::{self, Add, Check, Del, Host, Pod};
use crate::conf::{dual, dummy, ipvlan, macvlan, ranges, v4, v6, vlan, with, without};

/// A network on the host: `m0` is the host's interface and `m1` its only peer.
const LAN: [Step; 3] = [
    Host("link add m0 address 02:00:00:00:00:01 type veth peer name m1"),
    Host("link set m0 up"),
    Host("link set m1 up"),
];

type Conf = fn(&Value) -> Value;

fn case(conf: Conf, name: &str, more: &Value) -> Case {
    Case::new(name, conf(more)).before(&LAN)
}

/// LAN, followed by these steps.
fn lan_and(steps: &[Step]) -> Vec<Step> {
    [&LAN, steps].concat()
}

fn version(conf: Conf, version: &str) -> Case {
    Case::new(format!("IPv4 in {version}"), conf(&json!({}))).version(version).before(&LAN)
}

fn routes() -> Value {
    json!({"routes": [
        {"dst": "0.0.0.0/0"},
        {"dst": "192.0.2.0/24", "gw": "10.1.0.1", "priority": 7, "table": 100},
        {"dst": "203.0.114.0/24", "mtu": 1280, "advmss": 1200},
    ]})
}

/// Cases for every link type, including those that need a virtual machine.
fn essential(conf: Conf) -> Vec<Case> {
    let fixed = json!({"type": "static", "dns": {"nameservers": ["10.0.0.3"]}, "addresses": [
        {"address": "10.1.0.5/24", "gateway": "10.1.0.1"}]});
    vec![
        version(conf, "1.1.0"),
        case(conf, "routes", &json!({"ipam": with(dual(), &routes())})),
        case(conf, "dns of IPAM", &json!({"ipam": fixed})),
        case(conf, "empty dns", &json!({"ipam": fixed, "dns": {"nameservers": []}})),
    ]
}

/// Cases for code that all link types share, run for one type only.
fn thorough(conf: Conf) -> Vec<Case> {
    let two = ranges(&json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]));
    let small = ranges(&json!([[{"subnet": "10.1.0.0/30"}]]));
    let versions = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"];
    let mut cases: Vec<Case> = versions.iter().map(|one| version(conf, one)).collect();
    cases.extend([
        case(conf, "IPv6", &json!({"ipam": v6()})),
        case(conf, "dns", &json!({"dns": {"nameservers": ["10.0.0.2"]}})),
        case(conf, "two addresses", &json!({"ipam": two})),
        case(conf, "another name", &json!({})).ifname("net1"),
        case(conf, "no addresses from IPAM", &json!({"ipam": {"type": "static"}}))
            .fails(999, "missing IP config"),
        case(conf, "range is exhausted", &json!({"ipam": small}))
            .before(&lan_and(&[Step::File("/run/data/net/10.1.0.2", "other\r\neth0")]))
            .fails(11, "no IP addresses available"),
        case(conf, "namespace is missing", &json!({}))
            .netns("/run/netns/nowhere")
            .fails(3, "nowhere"),
        case(conf, "mtu is a text", &json!({"mtu": "abc"})).fails(7, "mtu"),
        case(conf, "mtu is negative", &json!({"mtu": -1})).fails(7, "is -1, allowed are 68 to"),
        case(conf, "master is a number", &json!({"master": 7})).fails(7, "master"),
        case(conf, "mtu of the master", &json!({"mtu": 1500})),
        case(conf, "CHECK without the interface", &json!({}))
            .steps(&[Add(1), Pod("link del eth0"), Check(1), Del(1)])
            .failing(&[(2, 999)]),
        case(conf, "DEL without ADD", &json!({})).steps(&[Del(1)]),
        case(conf, "DEL without namespace", &json!({})).netns("/run/netns/gone").steps(&[Del(1)]),
    ]);
    cases
}

/// A failure late in ADD, after most changes are made.
fn fails_late(conf: Conf) -> Case {
    let route = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.99.0.1"}]});
    let ipam = json!({"ipam": with(v4(), &route)});
    case(conf, "gateway of a route cannot be reached", &ipam).fails(999, "unreachable")
}

/// Rejected cases for code that all link types share, run for one type only.
fn refused(conf: Conf) -> Vec<Case> {
    let veth = Pod("link add eth0 type veth peer name other");
    vec![
        case(conf, "interface exists", &json!({}))
            .before(&lan_and(&[veth]))
            .steps(&[Add(1)])
            .fails(999, "already exists"),
        fails_late(conf),
        case(conf, "second ADD", &json!({})).steps(&[Add(1), Add(1), Del(1)]).failing(&[(2, 999)]),
        case(conf, "CHECK without the address", &json!({}))
            .steps(&[Add(1), Pod("addr flush dev eth0"), Check(1), Del(1)])
            .failing(&[(2, 999)]),
    ]
}

/// Cases for link types with a master.
fn with_master(conf: Conf) -> Vec<Case> {
    vec![
        case(conf, "mtu", &json!({"mtu": 1400})),
        case(conf, "master in the container", &json!({"master": "p0", "linkInContainer": true}))
            .before(&[
                Pod("link add p0 address 02:00:00:00:00:02 type veth peer name p1"),
                Pod("link set p0 up"),
                Pod("link set p1 up"),
            ]),
        case(conf, "master is gone", &json!({})).steps(&[
            Add(1),
            Host("link del m0"),
            Del(1),
            Del(1),
        ]),
    ]
}

fn missing_master(conf: Conf) -> Case {
    case(conf, "master is missing", &json!({"master": "m9"})).fails(7, "m9")
}

fn long_mtu(conf: Conf) -> Case {
    case(conf, "mtu above the master's", &json!({"mtu": 1501})).fails(7, "1500")
}

fn without_ipam(conf: Conf) -> Case {
    Case::new("no ipam key", without(conf(&json!({})), &["ipam"])).before(&LAN).fails(7, "ipam")
}

/// The default route leads through `m0`.
const DEFAULT_ROUTE: [Step; 2] =
    [Host("addr add 192.0.2.1/24 dev m0"), Host("route add default via 192.0.2.254")];

fn default_route(conf: Conf) -> Vec<Case> {
    let default = without(conf(&json!({})), &["master"]);
    let before = lan_and(&DEFAULT_ROUTE);
    vec![
        Case::new("master by the default route", default.clone()).before(&before),
        Case::new("default route is gone", default).before(&before).steps(&[
            Add(1),
            Host("route del default"),
            Del(1),
        ]),
    ]
}

fn no_default_route(conf: Conf) -> Case {
    let default = without(conf(&json!({})), &["master"]);
    Case::new("no default route", default).before(&LAN).fails(7, "default route")
}

fn two_containers(conf: Conf) -> Case {
    let steps = [Add(1), Add(2), Check(1), Del(1), Check(2), Del(2), Del(2)];
    case(conf, "two containers", &json!({})).steps(&steps)
}

pub fn macvlan_cases() -> Vec<Case> {
    let plain = [
        essential(macvlan),
        thorough(macvlan),
        with_master(macvlan),
        default_route(macvlan),
        refused(macvlan),
        vec![missing_master(macvlan), long_mtu(macvlan)],
    ];
    let mac = json!({"mac": "02:00:00:00:00:05"});
    let both = with(mac.clone(), &json!({"runtimeConfig": {"mac": "02:00:00:00:00:06"}}));
    let fixed = json!({"type": "static", "addresses": [{"address": "10.1.0.5/24"}]});
    let by_env = with(mac.clone(), &json!({"ipam": fixed}));
    let modes = ["bridge", "private", "vepa", "passthru"]
        .map(|mode| case(macvlan, &format!("mode {mode}"), &json!({"mode": mode})));
    let own = vec![
        two_containers(macvlan),
        case(macvlan, "without addresses", &json!({"ipam": {}})),
        Case::new("no ipam key", without(macvlan(&json!({})), &["ipam"])).before(&LAN),
        case(macvlan, "bcqueuelen", &json!({"bcqueuelen": 500})),
        case(macvlan, "mac", &mac),
        case(macvlan, "mac of the runtime", &both).args("MAC=02:00:00:00:00:07;IgnoreUnknown=1"),
        case(macvlan, "MAC in CNI_ARGS", &by_env).args("MAC=02:00:00:00:00:07;IgnoreUnknown=1"),
        case(macvlan, "unknown mode", &json!({"mode": "l2"})).fails(7, "mode"),
        case(macvlan, "invalid mac", &json!({"mac": "02:00"})).fails(7, "02:00"),
        no_default_route(macvlan),
        case(macvlan, "unknown argument", &json!({})).args("A=b").fails(4, "A=b"),
        case(macvlan, "passthru needs a master for itself", &json!({"mode": "passthru"}))
            .before(&lan_and(&[Host("link add link m0 name mv9 type macvlan mode bridge")]))
            .fails(999, "macvlan"),
        case(macvlan, "CHECK of another mode", &json!({}))
            .steps(&[Add(1), Pod("link set eth0 type macvlan mode private"), Check(1), Del(1)])
            .failing(&[(2, 999)]),
    ];
    plain.into_iter().flatten().chain(modes).chain(own).collect()
}

/// prevResult of a preceding plugin.
fn prev_result(interfaces: &Value) -> Value {
    json!({"prevResult": {"cniVersion": "1.1.0", "interfaces": interfaces,
        "ips": [{"address": "10.1.0.7/24", "gateway": "10.1.0.1", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0"}], "dns": {}}})
}

pub fn ipvlan_cases() -> Vec<Case> {
    let plain = [essential(ipvlan), with_master(ipvlan), default_route(ipvlan)];
    let mode = case(ipvlan, "mode l3s", &json!({"mode": "l3s"}));
    let chained = without(ipvlan(&prev_result(&json!([{"name": "m0"}]))), &["master", "ipam"]);
    let own = vec![
        mode,
        Case::new("chained with IPAM", with(chained, &json!({"ipam": v4()}))).before(&LAN),
    ];
    plain.into_iter().flatten().chain(own).collect()
}

/// Cases rejected before the plugin creates a link, so any kernel can run them.
pub fn ipvlan_refused() -> Vec<Case> {
    let no_interface = ipvlan(&prev_result(&json!([])));
    vec![
        missing_master(ipvlan),
        no_default_route(ipvlan),
        Case::new("chained without interface", without(no_interface, &["master"]))
            .before(&LAN)
            .steps(&[Add(1)])
            .fails(7, "single named interface"),
        without_ipam(ipvlan),
        case(ipvlan, "unknown mode", &json!({"mode": "bridge"})).fails(7, "mode"),
    ]
}

pub fn ipvlan_failing() -> Vec<Case> {
    vec![
        fails_late(ipvlan),
        // The Go plugin accepts this MTU.
        long_mtu(ipvlan),
        case(ipvlan, "CHECK of another mode", &json!({}))
            .steps(&[Add(1), Pod("link set eth0 type ipvlan mode l3"), Check(1), Del(1)])
            .failing(&[(2, 999)]),
    ]
}

pub fn vlan_cases() -> Vec<Case> {
    let own = vec![case(vlan, "VLAN 4094", &json!({"vlanId": 4094}))];
    [essential(vlan), with_master(vlan), own].concat()
}

/// Cases rejected before the plugin creates a link, so any kernel can run them.
pub fn vlan_refused() -> Vec<Case> {
    vec![
        missing_master(vlan),
        long_mtu(vlan),
        case(vlan, "VLAN 4095", &json!({"vlanId": 4095})).fails(7, "4095"),
        Case::new("no master", without(vlan(&json!({})), &["master"]))
            .before(&LAN)
            .fails(7, "master"),
        without_ipam(vlan),
    ]
}

pub fn vlan_failing() -> Vec<Case> {
    vec![
        fails_late(vlan),
        case(vlan, "master is down", &json!({}))
            .before(&lan_and(&[Host("link set m0 down")]))
            .fails(999, "down"),
        case(vlan, "VLAN of another container", &json!({}))
            .steps(&[Add(1), Add(2), Del(2), Del(1)])
            .failing(&[(2, 999)]),
        case(vlan, "CHECK of another MTU", &json!({"mtu": 1400}))
            .steps(&[Add(1), Pod("link set eth0 mtu 1300"), Check(1), Del(1)])
            .failing(&[(2, 999)]),
    ]
}

pub fn dummy_refused() -> Vec<Case> {
    vec![without_ipam(dummy)]
}

pub fn dummy_cases() -> Vec<Case> {
    let own = vec![
        case(dummy, "dns", &json!({"dns": {"nameservers": ["10.0.0.2"]}})),
        case(dummy, "CHECK of an interface that is down", &json!({}))
            .steps(&[Add(1), Pod("link set eth0 down"), Check(1), Del(1)])
            .failing(&[(2, 999)]),
    ];
    [essential(dummy), vec![fails_late(dummy)], own].concat()
}
