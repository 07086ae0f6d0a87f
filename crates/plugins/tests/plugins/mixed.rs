// SPDX-License-Identifier: Apache-2.0
//! The Go plugins and podwire on one node: each with the other's IPAM plugin, each removing the
//! other's pods, with a shared address directory.

use std::path::Path;

use serde_json::{Value, json};
use testkit::{in_netns, not_run_unless};

use crate::call::Call;
use crate::conf::{bridge, dual, dummy, host_local, ipvlan, macvlan, ptp, vlan, with};
use crate::world::{Plugins, World};

fn networks() -> [Value; 2] {
    let routes = json!({"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
    let ipam = with(dual(), &routes);
    [bridge(&json!({"isGateway": true, "ipam": ipam})), ptp(&json!({"ipam": ipam}))]
}

/// Creates a directory that contains a link to one plugin of a set.
fn only(plugins: &Plugins, name: &str, directory: &str) -> Plugins {
    std::fs::create_dir_all(directory).expect("create a directory in /run");
    let link = Path::new(directory).join(name);
    std::os::unix::fs::symlink(plugins.directory().join(name), link)
        .expect("create a symlink in /run");
    Plugins(directory.into())
}

#[track_caller]
fn assert_nothing_left(world: &World) {
    assert_eq!(world.host.ip_json(&["link", "show", "type", "veth"]), json!([]));
    let disk = world.disk().without_bookkeeping().0;
    assert!(disk.is_empty(), "{disk:?}");
}

/// Addresses, gateways and routes of a result.
fn assigned(result: &Value) -> [Value; 3] {
    let ips = result["ips"].as_array().expect("addresses");
    let part = |key: &str| ips.iter().map(|ip| ip[key].clone()).collect();
    [part("address"), part("gateway"), result["routes"].clone()]
}

fn run_all_verbs(world: &World, call: &Call) -> Value {
    let result = call.add().result();
    call.check(&result).ok();
    call.del(&result).ok();
    assert_nothing_left(world);
    result
}

#[test]
fn bridge_with_other_sets_host_local_works() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let go_ipam = only(&go, "host-local", "/run/go-ipam");
        let our_ipam = only(&ours, "host-local", "/run/our-ipam");
        for network in networks() {
            let mut results = Vec::new();
            for (plugins, path) in [
                (&go, [&go_ipam, &our_ipam]),
                (&go, [&our_ipam, &go_ipam]),
                (&ours, [&our_ipam, &go_ipam]),
                (&ours, [&go_ipam, &our_ipam]),
            ] {
                let world = World::new(&go, 1);
                let path = path.map(Plugins::directory);
                let call = world.call_of(plugins, &network, 1).path(&path);
                results.push(assigned(&run_all_verbs(&world, &call)));
            }
            assert!(results.iter().all(|one| *one == results[0]), "{results:?}");
        }
    });
}

#[test]
fn in_process_and_exec_delegation_agree() {
    in_netns(|| {
        let ours = Plugins::ours();
        for network in networks() {
            let world = World::new(&ours, 1);
            let call = world.call(&network, 1);
            let by_function = run_all_verbs(&world, &call);
            drop(world);
            let world = World::new(&ours, 1);
            let by_process = run_all_verbs(&world, &world.call(&network, 1).always_exec());
            assert_eq!(assigned(&by_function), assigned(&by_process));
        }
    });
}

/// Switching a node in either direction while pods run.
#[test]
fn pods_are_taken_over_between_go_and_podwire() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        for network in networks() {
            for (before, after) in [(&go, &ours), (&ours, &go)] {
                let world = World::new(before, 3);
                let old = world.call_of(before, &network, 1).add().result();
                let gone = world.call_of(before, &network, 2).add().result();
                world.call_of(after, &network, 1).check(&old).ok();
                world.call_of(after, &network, 2).del(&gone).ok();
                let new = world.call_of(after, &network, 3).add().result();
                assert_ne!(assigned(&old)[0], assigned(&new)[0]);
                world.call_of(after, &network, 1).check(&old).ok();
                world.call_of(before, &network, 3).check(&new).ok();
                world.call_of(after, &network, 1).add();
                world.call_of(after, &network, 1).del(&old).ok();
                world.call_of(before, &network, 3).del(&new).ok();
                assert_nothing_left(&world);
            }
        }
    });
}

/// After a failed second ADD, the exec IPAM plugin gets a DEL, which must not release the live
/// container's address.
#[test]
fn second_add_with_exec_ipam_keeps_address() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        for network in networks() {
            let world = World::new(&ours, 1);
            let by_go = world.call(&network, 1).path(&[go.directory()]);
            let by_process = world.call(&network, 1).always_exec();
            for call in [by_go, by_process, world.call(&network, 1)] {
                let result = call.add().result();
                let before = world.snapshot();
                call.add().fails_with(999, "");
                assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
                call.check(&result).ok();
                call.del(&result).ok();
            }
        }
    });
}

/// Both sets use one directory in turn: the round-robin continues, and no address is assigned
/// twice.
#[test]
fn host_local_directory_is_shared_with_go() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&ours, 0);
        let config = host_local(&json!({"ranges": [[{"subnet": "10.1.0.0/28"}]]}));
        let call = |n: usize| {
            let plugins = if n.is_multiple_of(2) { &go } else { &ours };
            world.call_of(plugins, &config, 1).container(&format!("c{n}"))
        };
        let addresses: Vec<Value> =
            (0..13).map(|n| call(n).add().result()["ips"][0]["address"].clone()).collect();
        let expected: Vec<String> = (2..15).map(|n| format!("10.1.0.{n}/28")).collect();
        assert_eq!(addresses, expected);
        for n in [13, 14] {
            let answer = call(n).add();
            assert!(answer.stdout.contains("no IP addresses available"), "{}", answer.stdout);
        }
        // Each set releases addresses assigned by the other.
        (0..13).for_each(|n| call(n + 1).container(&format!("c{n}")).run("DEL").ok());
        assert!(world.disk().without_bookkeeping().0.is_empty());
    });
}

/// Each set checks and removes interfaces created by the other.
fn check_takeover(config: &Value) {
    let (go, ours) = (Plugins::go(), Plugins::ours());
    for (first, second) in [(&go, &ours), (&ours, &go)] {
        let world = World::new(&ours, 1);
        world.on_host("link add m0 type veth peer name m1");
        world.on_host("link set m0 up");
        let before = world.snapshot().without_bookkeeping();
        let result = world.call_of(first, config, 1).add().result();
        world.call_of(second, config, 1).check(&result).ok();
        world.call_of(second, config, 1).del(&result).ok();
        world.call_of(first, config, 1).del(&result).ok();
        let changes = before.changes_to(&world.snapshot().without_bookkeeping());
        assert!(changes.is_empty(), "{changes:#?}");
    }
}

#[test]
fn macvlan_is_taken_over_between_go_and_podwire() {
    in_netns(|| check_takeover(&macvlan(&json!({}))));
}

#[test]
fn vm_ipvlan_vlan_and_dummy_are_taken_over() {
    in_netns(|| {
        not_run_unless!(Link("ipvlan"), Link("vlan"), Link("dummy"));
        check_takeover(&ipvlan(&json!({})));
        check_takeover(&vlan(&json!({})));
        check_takeover(&dummy(&json!({})));
    });
}
