// SPDX-License-Identifier: Apache-2.0
//! host-device: ADD, CHECK, STATUS, GC, and `useInterfaceNetwork`.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{answers, in_netns, wait_for, write_program};

use crate::call::Call;
use crate::compare::host_device::make_bus;
use crate::conf::{ENS1, host_device, ranges, v4, v6, with, without};
use crate::world::{Plugins, World};

/// The kernel updates the operational state asynchronously after a carrier change.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Creates a host with `ens1`. The peer of `ens1` is up and has an address.
pub fn world(pods: usize) -> World {
    let world = World::new(&Plugins::ours(), pods);
    for line in [ENS1, "link set far1 up", "addr add 10.1.0.1/24 dev far1"] {
        world.on_host(line);
    }
    world
}

/// Returns the link with this name on the host, as printed by `ip`.
pub fn find_on_host(world: &World, name: &str) -> Option<Value> {
    let links = world.host.ip_json(&["link"]);
    let links = links.as_array().expect("a list of links");
    links.iter().find(|link| link["ifname"] == name).cloned()
}

#[track_caller]
pub fn assert_untouched(world: &World) {
    let link = find_on_host(world, "ens1").expect("the device is on the host");
    assert_eq!((&link["ifalias"], &link["group"]), (&json!(null), &json!("default")));
    let flags = link["flags"].as_array().expect("a list of flags");
    assert!(!flags.contains(&json!("UP")), "{flags:?}");
}

#[test]
fn device_added_moves_to_pod_and_del_returns_it() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&host_device(&json!({"ipam": v4()})), 1);
        let result = call.add().result();
        assert_eq!(find_on_host(&world, "ens1"), None);
        let link = world.pod(1).ip_json(&["link", "show", "eth0"])[0].clone();
        assert_eq!(
            (&link["ifalias"], &link["address"]),
            (&json!("ens1"), &result["interfaces"][0]["mac"])
        );
        assert!(answers(world.pod(1), "10.1.0.1".parse().unwrap()));
        call.check(&result).ok();
        call.del(&result).ok();
        assert_untouched(&world);
    });
}

/// After a failed ADD the device is unchanged: up, with addresses and routes, in its bridge.
#[test]
fn failed_add_leaves_device_unchanged() {
    in_netns(|| {
        let route = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.99.0.1"}]});
        let unreachable = host_device(&json!({"ipam": with(v4(), &route)}));
        let carried = with(unreachable.clone(), &json!({"useInterfaceNetwork": true}));
        for config in [unreachable, carried] {
            let world = world(1);
            let lines = "link add br9 type bridge;link set br9 up;link set ens1 master br9 alias mine;\
                link set ens1 up;addr add 198.51.100.5/24 brd + dev ens1;\
                route add 203.0.113.0/24 via 198.51.100.1";
            lines.split(';').for_each(|line| drop(world.on_host(line.trim())));
            let before = world.snapshot().without_bookkeeping();
            world.call(&config, 1).add().fails_with(999, "unreachable");
            let changes = before.changes_to(&world.snapshot().without_bookkeeping());
            assert_eq!(changes, Vec::<String>::new());
        }
    });
}

/// Installs an IPAM plugin that creates `eth0` in the pod after the host-device plugin has checked
/// that it does not exist.
fn install_conflicting_ipam() -> String {
    let path = "/run/conflicting";
    fs::create_dir_all(path).expect("create a directory in /run");
    let script = "#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exit 0\n\
        ip -n pod1 link add eth0 type veth peer name other >&2\n\
        echo '{\"cniVersion\": \"1.1.0\", \"ips\": [{\"address\": \"10.1.0.7/24\"}]}'\n";
    let file = format!("{path}/conflicting");
    write_program(&file, script);
    path.to_owned()
}

/// The kernel moves the device and then rejects the name. The device must not stay in the pod.
#[test]
fn add_with_conflicting_name_returns_device() {
    in_netns(|| {
        let world = world(1);
        world.on_host("link set ens1 up");
        let shown = || {
            let link = world.host_link("ens1");
            (link["ifalias"].clone(), link["flags"].clone())
        };
        let has_carrier = || world.host_link("ens1")["operstate"] == "UP";
        wait_for("operstate of ens1 to be UP", TIMEOUT, has_carrier);
        let before = shown();
        let config = host_device(&json!({"ipam": {"type": "conflicting"}}));
        let call = world.call(&config, 1).path(&[install_conflicting_ipam().as_ref()]);
        call.add().fails_with(999, "File exists");
        wait_for("operstate of ens1 to be UP", TIMEOUT, has_carrier);
        assert_eq!(shown(), before);
        assert!(!world.in_pod(1, "link").contains("ens1"));
        call.del(&Value::Null).ok();
        assert!(world.in_pod(1, "link").contains("eth0"), "DEL removed a foreign interface");
    });
}

/// Duplicate address detection needs carrier; a missing carrier must not fail the ADD.
#[test]
fn device_without_carrier_gets_ipv6_address() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        world.on_host(ENS1);
        let call = world.call(&host_device(&json!({"ipam": v6()})), 1);
        let result = call.add().result();
        assert!(world.in_pod(1, "addr show eth0").contains("fd00:1::2/64"));
        call.check(&result).ok();
        call.del(&result).ok();
        assert_untouched(&world);
    });
}

fn assert_check_detects(line: &str, words: &str) {
    let world = world(1);
    let routes = json!({"routes": [{"dst": "0.0.0.0/0"}]});
    let call = world.call(&host_device(&json!({"ipam": with(v4(), &routes)})), 1);
    let result = call.add().result();
    call.check(&result).ok();
    world.pod(1).ip(&line.split(' ').collect::<Vec<_>>());
    call.check(&result).fails_with(999, words);
    call.del(&result).ok();
}

#[test]
fn check_of_damaged_device_fails() {
    in_netns(|| {
        assert_check_detects("link set eth0 down", "eth0 is down");
        assert_check_detects("link set eth0 name eth9", "eth0 does not exist");
        assert_check_detects("link set eth0 address 02:00:00:00:00:99", "02:00:00:00:00:99");
        assert_check_detects("link set eth0 alias ", "alias of eth0");
        assert_check_detects("addr flush dev eth0", "10.1.0.2/24 is missing");
        assert_check_detects("route del default", "route to 0.0.0.0/0 is missing");
        let world = world(1);
        let call = world.call(&host_device(&json!({"ipam": v4()})), 1);
        let result = call.add().result();
        call.run("CHECK").fails_with(7, "prevResult");
        fs::remove_file("/run/data/net/10.1.0.2").expect("remove the address file");
        call.check(&result).fails_with(999, "Failed to find address");
    });
}

#[test]
fn status_with_missing_device_fails() {
    in_netns(|| {
        make_bus();
        let world = world(1);
        let call = world.call(&host_device(&json!({})), 1);
        call.status().ok();
        let result = call.add().result();
        call.status().ok();
        let mac = with(
            without(call.config.clone(), &["device"]),
            &json!({"hwaddr": "02:00:00:00:00:11"}),
        );
        call.config(&mac).status().ok();
        call.config(&host_device(&json!({"device": "none0"}))).status().fails_with(50, "none0");
        let bus =
            |id: &str| with(without(call.config.clone(), &["device"]), &json!({"pciBusID": id}));
        call.config(&bus("0000:aa:00.2")).status().ok();
        call.config(&bus("0000:ff:00.0")).status().fails_with(50, "0000:ff:00.0");
        let by_runtime = json!({"capabilities": {"deviceID": true}});
        call.config(&with(without(call.config.clone(), &["device"]), &by_runtime)).status().ok();
        call.del(&result).ok();
        world.on_host("link del ens1");
        call.status().fails_with(50, "ens1");
    });
}

#[test]
fn status_and_gc_call_ipam_plugin() {
    in_netns(|| {
        let world = world(1);
        let small = ranges(&json!([[{"subnet": "10.1.0.0/30"}]]));
        let call = world.call(&host_device(&json!({"ipam": small})), 1);
        let result = call.add().result();
        call.status().fails_with(50, "no IP addresses available");
        call.gc(&[("c1", "eth0")]).ok();
        call.check(&result).ok();
        call.run("GC").ok();
        call.check(&result).ok();
        call.gc(&[]).ok();
        assert!(world.disk().without_bookkeeping().0.is_empty());
        assert_eq!(find_on_host(&world, "ens1"), None, "GC returned a device of a pod");
    });
}

/// Configures `ens1` like a configure_like_cloud image: an address, a default route and its own routing table.
fn configure_like_cloud(world: &World) {
    let lines = "link set ens1 up;addr add 10.1.0.5/32 dev ens1;addr add fd00:1::5/64 dev ens1 nodad;\
        route add 10.1.0.1 dev ens1 scope link;\
        route add default via 10.1.0.1 dev ens1 metric 100;\
        route add 192.0.2.0/24 via 10.1.0.1 dev ens1 table 77 mtu 1300;\
        rule add from 10.1.0.5 table 77 priority 900;rule add from 10.9.0.5 table 77";
    lines.split(';').for_each(|line| drop(world.on_host(line.trim())));
}

fn routes(world: &World, pod: usize, table: &str) -> String {
    world.in_pod(pod, &format!("route show table {table}"))
}

fn with_interface_network(call: &Call) -> Value {
    call.config(&with(call.config.clone(), &json!({"useInterfaceNetwork": true}))).config
}

#[test]
fn device_with_interface_network_keeps_addresses() {
    in_netns(|| {
        let world = world(1);
        configure_like_cloud(&world);
        let before = world.snapshot();
        let call = world.call(&host_device(&json!({})), 1);
        let call = call.config(&with_interface_network(&call));
        let result = call.add().result();
        let addresses: Vec<&Value> =
            result["ips"].as_array().expect("addresses").iter().map(|ip| &ip["address"]).collect();
        assert_eq!(addresses, [&json!("10.1.0.5/32"), &json!("fd00:1::5/64")]);
        assert_eq!(
            result["routes"],
            json!([
                {"dst": "10.1.0.1/32", "scope": 253},
                {"dst": "192.0.2.0/24", "gw": "10.1.0.1", "table": 77, "mtu": 1300},
                {"dst": "0.0.0.0/0", "gw": "10.1.0.1", "priority": 100},
            ])
        );
        assert!(routes(&world, 1, "main").contains("default via 10.1.0.1 dev eth0 metric 100"));
        assert!(routes(&world, 1, "77").contains("192.0.2.0/24 via 10.1.0.1 dev eth0 mtu 1300"));
        let rules = world.in_pod(1, "rule");
        assert!(rules.contains("900:\tfrom 10.1.0.5 lookup 77"), "{rules}");
        assert!(!rules.contains("10.9.0.5"), "{rules}");
        assert!(answers(world.pod(1), "10.1.0.1".parse().unwrap()));
        call.check(&result).ok();
        // Changes made in the pod do not follow the device to the host.
        world.in_pod(1, "addr add 10.66.0.1/24 dev eth0");
        call.del(&result).ok();
        let changes = before.changes_to(&world.snapshot());
        // Duplicate address detection may still be running.
        let changes: Vec<_> = changes.iter().filter(|one| !one.contains("fd00:1::5")).collect();
        assert_eq!(changes, Vec::<&String>::new());
        assert!(world.on_host("addr show ens1").contains("fd00:1::5/64"));
    });
}

#[test]
fn ipam_with_interface_network_adds_addresses() {
    in_netns(|| {
        let world = world(1);
        configure_like_cloud(&world);
        let fixed = json!({"type": "static", "addresses": [{"address": "10.1.0.5/32"},
            {"address": "10.2.0.5/24", "gateway": "10.2.0.1"}], "routes": [{"dst": "198.51.100.0/24"}]});
        let call = world.call(&host_device(&json!({"ipam": fixed})), 1);
        let call = call.config(&with_interface_network(&call));
        let result = call.add().result();
        let addresses: Vec<&Value> =
            result["ips"].as_array().expect("addresses").iter().map(|ip| &ip["address"]).collect();
        let expected = [json!("fd00:1::5/64"), json!("10.1.0.5/32"), json!("10.2.0.5/24")];
        assert_eq!(addresses, expected.iter().collect::<Vec<_>>());
        let main = routes(&world, 1, "main");
        assert!(
            main.contains("198.51.100.0/24 via 10.2.0.1") && main.contains("default"),
            "{main}"
        );
        call.check(&result).ok();
        call.del(&result).ok();
        assert_untouched(&world);
    });
}
