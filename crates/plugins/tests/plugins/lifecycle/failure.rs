// SPDX-License-Identifier: Apache-2.0
//! ADD fails at each stage and leaves kernel and disk unchanged.

use serde_json::{Value, json};
use testkit::in_netns;

use crate::conf::{bridge, dual, ptp, ranges, v4, v6, with};
use crate::world::{Plugins, World};

/// A failing ADD: conflicting objects on the host and in the pod, and the expected error.
struct Failure {
    name: &'static str,
    config: Value,
    host: &'static [&'static str],
    pod: &'static [&'static str],
    netns: &'static str,
    code: u32,
    words: &'static str,
}

fn failure(name: &'static str, config: Value, code: u32, words: &'static str) -> Failure {
    Failure { name, config, host: &[], pod: &[], netns: "/run/netns/pod1", code, words }
}

const CONFLICTING_ETH0: &[&str] = &["link add eth0 type veth peer name other"];

/// Failures before the veth pair exists: IPAM, bridge, and the bridge's addresses.
fn before_veth_pair() -> Vec<Failure> {
    let exhausted = ranges(&json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/126",
        "rangeStart": "fd00:1::1", "rangeEnd": "fd00:1::1"}]]));
    let clash = ranges(&json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]));
    let clash = bridge(&json!({"isGateway": true, "ipam": clash}));
    let gateway = bridge(&json!({"isGateway": true}));
    vec![
        Failure {
            netns: "/run/netns/nowhere",
            ..failure("namespace is missing", bridge(&json!({"ipam": dual()})), 3, "nowhere")
        },
        failure("second range is exhausted", bridge(&json!({"ipam": exhausted})), 11, "range 1"),
        Failure {
            host: &["link add br0 type veth peer name br0p"],
            ..failure("bridge is a veth", bridge(&json!({})), 7, "not a bridge")
        },
        failure("MTU out of range", bridge(&json!({"mtu": 70000})), 7, "\"mtu\" is 70000"),
        Failure {
            host: &["link add br0 type bridge", "addr add 10.9.0.1/24 dev br0"],
            ..failure("bridge has another address", gateway, 7, "10.1.0.1/24")
        },
        failure("second gateway", clash, 7, "different from 10.2.0.1/24"),
    ]
}

/// Failures while the veth pair or the container's side is configured.
fn after_veth_pair() -> Vec<Failure> {
    let unreachable = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.99.0.1"}]});
    let unreachable = with(dual(), &unreachable);
    let twice = json!({"routes": [{"dst": "192.0.2.0/24"}, {"dst": "192.0.2.0/24"}]});
    let bad_bridge = bridge(&json!({"isGateway": true, "ipam": unreachable}));
    let bad_ptp = ptp(&json!({"ipam": unreachable}));
    vec![
        Failure {
            pod: CONFLICTING_ETH0,
            ..failure("interface exists", bridge(&json!({"ipam": dual()})), 999, "already exists")
        },
        failure("gateway of a route is unreachable", bad_bridge, 999, "unreachable"),
        failure("duplicate route", bridge(&json!({"ipam": with(v4(), &twice)})), 999, "exists"),
        Failure {
            pod: CONFLICTING_ETH0,
            ..failure("ptp: interface exists", ptp(&json!({"ipam": v6()})), 999, "already exists")
        },
        failure("ptp: gateway of a route is unreachable", bad_ptp, 999, "unreachable"),
    ]
}

fn failures() -> Vec<Failure> {
    before_veth_pair().into_iter().chain(after_veth_pair()).collect()
}

fn fail(plugins: &Plugins, failure: &Failure, always_exec: bool) {
    println!("{}, always exec {always_exec}", failure.name);
    let world = World::new(plugins, 1);
    failure.host.iter().for_each(|line| drop(world.on_host(line)));
    failure.pod.iter().for_each(|line| drop(world.in_pod(1, line)));
    let before = world.snapshot().without_bookkeeping();
    let mut call = world.call(&failure.config, 1).netns(failure.netns);
    call.always_exec = always_exec;
    call.add().fails_with(failure.code, failure.words);
    let changes = before.changes_to(&world.snapshot().without_bookkeeping());
    assert!(changes.is_empty(), "{}: {changes:#?}", failure.name);
    // The runtime calls DEL after a failed ADD. DEL changes nothing, unless the pod already had an
    // eth0.
    call.del(&Value::Null).ok();
    if failure.pod.is_empty() {
        let changes = before.changes_to(&world.snapshot().without_bookkeeping());
        assert!(changes.is_empty(), "DEL after {}: {changes:#?}", failure.name);
    }
}

#[test]
fn failed_add_leaves_nothing() {
    in_netns(|| {
        let plugins = Plugins::ours();
        failures().iter().for_each(|one| fail(&plugins, one, false));
    });
}

#[test]
fn failed_add_with_exec_delegates_leaves_nothing() {
    in_netns(|| {
        let plugins = Plugins::ours();
        failures().iter().for_each(|one| fail(&plugins, one, true));
    });
}

#[test]
fn failed_add_keeps_bridge_in_use() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        let config = bridge(&json!({"isGateway": true, "ipam": dual()}));
        world.call(&config, 1).add().ok();
        world.in_pod(2, "link add eth0 type veth peer name other");
        let before = world.snapshot().without_bookkeeping();
        world.call(&config, 2).add().fails_with(999, "already exists");
        let changes = before.changes_to(&world.snapshot().without_bookkeeping());
        assert!(changes.is_empty(), "{changes:#?}");
        world.in_pod(2, "link del eth0");
        world.call(&config, 2).add().ok();
    });
}

/// With `enabledad`, ADD detects a duplicate address on the link.
#[test]
fn add_with_duplicate_ipv6_address_fails() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        let fixed = json!({"type": "static", "addresses": [{"address": "fd00:1::5/64"}]});
        let config = bridge(&json!({"enabledad": true, "ipam": fixed}));
        world.call(&config, 1).add().ok();
        let before = world.snapshot().without_bookkeeping();
        world.call(&config, 2).add().fails_with(999, "is in use by another host");
        let changes = before.changes_to(&world.snapshot().without_bookkeeping());
        assert!(changes.is_empty(), "{changes:#?}");
    });
}
