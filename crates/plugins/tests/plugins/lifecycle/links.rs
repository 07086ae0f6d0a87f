// SPDX-License-Identifier: Apache-2.0
//! macvlan, ipvlan, vlan and dummy, whose interfaces exist only in the container's namespace. Tests
//! of link types that the test machine's kernel lacks run in a virtual machine.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{in_netns, not_run_unless, run, wait_for};

use crate::conf::{dual, dummy, ipvlan, macvlan, vlan, with, without};
use crate::world::{Plugins, World};

/// Creates a host with pods and the interface `m0`, whose peer is the only other interface on its
/// network.
pub fn world(plugins: &Plugins, pods: usize) -> World {
    let world = World::new(plugins, pods);
    world.on_host("link add m0 address 02:00:00:00:00:01 type veth peer name m1");
    world.on_host("link set m0 up");
    world.on_host("link set m1 up");
    world
}

fn kind(config: &Value) -> &str {
    config["type"].as_str().expect("every network has a type")
}

/// Number of interfaces of the network's type in the pod, and number of files.
#[track_caller]
pub fn left(world: &World, config: &Value) -> (usize, usize) {
    let links = world.pod(1).ip_json(&["link", "show", "type", kind(config)]);
    let disk = world.disk().without_bookkeeping().0;
    (links.as_array().expect("a list of links").len(), disk.len())
}

/// Runs DEL twice with each kind of missing state.
fn check_del_with_missing_state(config: &Value) {
    let plugins = Plugins::ours();
    let del = |what: &str, del: &dyn Fn(&World, &crate::call::Call, &Value)| {
        let world = world(&plugins, 1);
        let call = world.call(config, 1);
        let result = call.add().result();
        assert_eq!(left(&world, config), (1, 2), "{what}");
        for _ in 0..2 {
            del(&world, &call, &result);
        }
        assert_eq!(left(&world, config), (0, 0), "{what}");
        let host = world.host.ip_json(&["link", "show", "type", kind(config)]);
        assert_eq!(host, json!([]), "{what}: interface left on the host");
    };
    del("twice", &|_, call, result| {
        let answer = call.del(result);
        answer.ok();
        assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("", ""));
    });
    del("no result, no master, junk", &|_, call, _| {
        let junk = json!({"mtu": "x", "mode": 7, "vlanId": -1, "prevResult": {"ips": "junk"}});
        call.config(&with(without(config.clone(), &["master"]), &junk)).run("DEL").ok();
    });
    del("master is gone", &|world, call, result| {
        let _ = world.host.try_exec("ip", &["link", "del", "m0"]);
        call.del(result).ok();
    });
    let world = world(&plugins, 1);
    let call = world.call(config, 1);
    let result = call.add().result();
    call.netns("").del(&result).ok();
    assert_eq!(left(&world, config).1, 0, "address left");
    run("ip", &["netns", "del", "pod1"]);
    call.del(&result).ok();
    let links = || world.host.ip(&["-o", "link"]).lines().count();
    // The kernel deletes namespaces one after the other, and other tests have thousands of them.
    wait_for("only lo, m0 and m1 on the host", Duration::from_secs(120), || links() == 3);
}

#[test]
fn macvlan_del_with_missing_state_succeeds() {
    in_netns(|| check_del_with_missing_state(&macvlan(&json!({"ipam": dual()}))));
}

#[test]
fn vm_ipvlan_del_with_missing_state_succeeds() {
    in_netns(|| {
        not_run_unless!(Link("ipvlan"));
        check_del_with_missing_state(&ipvlan(&json!({"ipam": dual()})));
    });
}

#[test]
fn vm_vlan_del_with_missing_state_succeeds() {
    in_netns(|| {
        not_run_unless!(Link("vlan"));
        check_del_with_missing_state(&vlan(&json!({"ipam": dual()})));
    });
}

#[test]
fn vm_dummy_del_with_missing_state_succeeds() {
    in_netns(|| {
        not_run_unless!(Link("dummy"));
        check_del_with_missing_state(&dummy(&json!({"ipam": dual()})));
    });
}

/// DEL keeps an interface with the same name of another attachment or of another type.
fn check_del_keeps_foreign_interfaces(config: &Value) {
    let world = world(&Plugins::ours(), 1);
    world.in_pod(1, "link add eth0 type veth peer name other");
    world.call(config, 1).add().fails_with(999, "already exists");
    world.call(config, 1).run("DEL").ok();
    world.in_pod(1, "link show eth0");
    world.in_pod(1, "link del eth0");
    let result = world.call(config, 1).add().result();
    world.call(config, 1).container("other").run("DEL").ok();
    let another = with(config.clone(), &json!({"name": "another"}));
    world.call(&another, 1).run("DEL").ok();
    world.call(config, 1).check(&result).ok();
    world.call(config, 1).del(&result).ok();
    assert_eq!(left(&world, config), (0, 0));
}

#[test]
fn macvlan_del_keeps_foreign_interfaces() {
    in_netns(|| check_del_keeps_foreign_interfaces(&macvlan(&json!({"ipam": dual()}))));
}

#[test]
fn vm_dummy_del_keeps_foreign_interfaces() {
    in_netns(|| {
        not_run_unless!(Link("dummy"));
        check_del_keeps_foreign_interfaces(&dummy(&json!({"ipam": dual()})));
    });
}

/// A late failure of ADD, with in-process and exec IPAM plugins, leaves nothing.
fn check_failed_add_leaves_nothing(config: &Value) {
    let world = world(&Plugins::ours(), 1);
    let unreachable = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.99.0.1"}]});
    let ipams = [
        (with(dual(), &unreachable), "unreachable"),
        (json!({"type": "static"}), "missing IP config"),
        (json!({"type": "nowhere"}), "nowhere"),
    ];
    let before = world.snapshot().without_bookkeeping();
    for (ipam, words) in &ipams {
        let call = world.call(&with(config.clone(), &json!({"ipam": ipam})), 1);
        for call in [call.always_exec(), call] {
            let answer = call.add();
            assert!(!answer.success && answer.stdout.contains(words), "{}", answer.stdout);
            let changes = before.changes_to(&world.snapshot().without_bookkeeping());
            assert!(changes.is_empty(), "{words}: {changes:#?}");
        }
    }
    world.call(config, 1).add().ok();
}

#[test]
fn macvlan_failed_add_leaves_nothing() {
    in_netns(|| check_failed_add_leaves_nothing(&macvlan(&json!({}))));
}

#[test]
fn vm_ipvlan_failed_add_leaves_nothing() {
    in_netns(|| {
        not_run_unless!(Link("ipvlan"));
        check_failed_add_leaves_nothing(&ipvlan(&json!({})));
    });
}

#[test]
fn vm_vlan_failed_add_leaves_nothing() {
    in_netns(|| {
        not_run_unless!(Link("vlan"));
        check_failed_add_leaves_nothing(&vlan(&json!({})));
    });
}

#[test]
fn vm_dummy_failed_add_leaves_nothing() {
    in_netns(|| {
        not_run_unless!(Link("dummy"));
        check_failed_add_leaves_nothing(&dummy(&json!({})));
    });
}

/// CHECK detects each damage in the pod and names it.
fn assert_check_detects(config: &Value, damage: &[(&str, &str)]) {
    let plugins = Plugins::ours();
    let world = world(&plugins, 1);
    let call = world.call(config, 1);
    for (line, words) in damage {
        let result = call.add().result();
        call.check(&result).ok();
        world.in_pod(1, line);
        println!("{line}");
        call.check(&result).fails_with(999, words);
        call.del(&result).ok();
    }
    call.run("CHECK").fails_with(7, "prevResult");
}

/// Damage that all link types detect.
const DAMAGE: [(&str, &str); 5] = [
    ("addr del 10.1.0.5/24 dev eth0", "10.1.0.5/24 is missing"),
    ("route del default", "route to 0.0.0.0/0 is missing"),
    ("link set eth0 down", "eth0 is down"),
    ("link del eth0", "eth0 does not exist"),
    ("link set eth0 mtu 1300", "has MTU 1300, expected 1400"),
];

fn damage(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [&DAMAGE, more].concat()
}

fn with_route() -> Value {
    let fixed = json!([{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}]);
    json!({"type": "static", "addresses": fixed, "routes": [{"dst": "0.0.0.0/0"}]})
}

#[test]
fn macvlan_check_of_damaged_interface_fails() {
    in_netns(|| {
        let config = macvlan(&json!({"mtu": 1400, "ipam": with_route()}));
        let own = [
            (
                "link set eth0 type macvlan mode private",
                "mode private does not match expected value: bridge",
            ),
            ("link set eth0 address 02:00:00:00:00:09", "02:00:00:00:00:09"),
        ];
        assert_check_detects(&config, &damage(&own));
    });
}

#[test]
fn vm_ipvlan_check_of_damaged_interface_fails() {
    in_netns(|| {
        not_run_unless!(Link("ipvlan"));
        let config = ipvlan(&json!({"mtu": 1400, "ipam": with_route()}));
        assert_check_detects(
            &config,
            &damage(&[(
                "link set eth0 type ipvlan mode l3",
                "mode l3 does not match expected value: l2",
            )]),
        );
    });
}

#[test]
fn vm_vlan_check_of_damaged_interface_fails() {
    in_netns(|| {
        not_run_unless!(Link("vlan"));
        let config = vlan(&json!({"mtu": 1400, "ipam": with_route()}));
        assert_check_detects(
            &config,
            &damage(&[("link set eth0 address 02:00:00:00:00:09", "00:09")]),
        );
        let world = world(&Plugins::ours(), 1);
        let result = world.call(&config, 1).add().result();
        let other = with(config, &json!({"vlanId": 6}));
        world.call(&other, 1).check(&result).fails_with(999, "has VLAN 5, expected 6");
    });
}

#[test]
fn vm_dummy_check_of_damaged_interface_fails() {
    in_netns(|| {
        not_run_unless!(Link("dummy"));
        let config = dummy(&json!({"ipam": with_route()}));
        let without_mtu: Vec<_> =
            damage(&[]).into_iter().filter(|(line, _)| !line.contains("mtu")).collect();
        assert_check_detects(&config, &without_mtu);
    });
}

#[test]
fn macvlan_check_with_wrong_master_fails() {
    in_netns(|| {
        let world = world(&Plugins::ours(), 1);
        let config = macvlan(&json!({}));
        let result = world.call(&config, 1).add().result();
        let other = with(config.clone(), &json!({"master": "m1"}));
        world.call(&other, 1).check(&result).fails_with(999, "is not on master m1");
        let missing = with(config.clone(), &json!({"master": "m9"}));
        world.call(&missing, 1).check(&result).fails_with(999, "m9");
        world.call(&config, 1).check(&result).ok();
        // For a macvlan on a macvlan, the kernel uses the lower device.
        world.on_host("link add link m0 name mv0 type macvlan mode bridge");
        let beside = with(config, &json!({"master": "mv0"}));
        world.call(&beside, 1).check(&result).ok();
    });
}

#[test]
fn macvlan_status_agrees_with_add() {
    in_netns(|| {
        let world = world(&Plugins::ours(), 1);
        let config = macvlan(&json!({}));
        let call = world.call(&config, 1);
        let before = world.snapshot();
        call.status().ok();
        world.call(&with(config.clone(), &json!({"mtu": 9000})), 1).status().fails_with(7, "1500");
        let missing = with(config.clone(), &json!({"master": "m9"}));
        world.call(&missing, 1).status().fails_with(50, "\"m9\"");
        world.call(&with(missing, &json!({"linkInContainer": true})), 1).status().ok();
        let default = without(config.clone(), &["master"]);
        world.call(&default, 1).status().fails_with(50, "default route");
        let nowhere = with(config, &json!({"ipam": {"type": "nowhere"}}));
        world.call(&nowhere, 1).status().fails_with(7, "nowhere");
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
        world.on_host("link set m0 down");
        call.status().ok();
        let result = call.add().result();
        call.check(&result).ok();
        call.del(&result).ok();
    });
}

/// STATUS fails if ADD would: a VLAN interface does not come up on a master that is down, an ipvlan
/// interface does.
#[test]
fn vm_status_with_master_down_agrees_with_add() {
    in_netns(|| {
        not_run_unless!(Link("ipvlan"), Link("vlan"));
        let world = world(&Plugins::ours(), 1);
        world.on_host("link set m0 down");
        let call = world.call(&ipvlan(&json!({})), 1);
        call.status().ok();
        let result = call.add().result();
        call.del(&result).ok();
        let call = world.call(&vlan(&json!({})), 1);
        call.status().fails_with(51, "m0 is down");
        call.add().fails_with(999, "down");
    });
}

/// STATUS succeeds if the kernel supports the link type and reports a missing type.
#[test]
fn vm_status_without_link_type_support_fails() {
    in_netns(|| {
        let world = world(&Plugins::ours(), 1);
        for config in [ipvlan(&json!({})), vlan(&json!({})), dummy(&json!({}))] {
            let answer = world.call(&config, 1).status();
            match testkit::missing(testkit::Need::Link(kind(&config))) {
                None => answer.ok(),
                Some(_) => answer.fails_with(50, kind(&config)),
            }
        }
    });
}

#[test]
fn macvlan_gc_releases_addresses_keeps_interfaces() {
    in_netns(|| {
        let world = world(&Plugins::ours(), 2);
        let config = macvlan(&json!({"ipam": dual()}));
        let first = world.call(&config, 1).add().result();
        world.call(&config, 2).add().ok();
        let files = || world.disk().without_bookkeeping().0.len();
        world.call(&config, 1).run("GC").ok();
        assert_eq!(files(), 4, "GC without a list");
        world.call(&config, 1).gc(&[("c1", "eth0")]).ok();
        assert_eq!(files(), 2);
        world.call(&config, 1).check(&first).ok();
        world.in_pod(2, "link show eth0");
    });
}
