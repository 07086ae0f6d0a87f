// SPDX-License-Identifier: Apache-2.0
//! Options of bridge, verified in the kernel.

use serde_json::{Value, json};
use testkit::in_netns;

use crate::call::Call;
use crate::conf::{bridge, ptp, with};
use crate::world::{Plugins, World};

fn pod_link(world: &World) -> Value {
    world.pod(1).ip_json(&["addr", "show", "eth0"])[0].clone()
}

fn host_veth(result: &Value) -> String {
    let named = result["interfaces"].as_array().expect("interfaces").iter();
    let names = named.filter_map(|one| one["name"].as_str());
    names
        .into_iter()
        .find(|name| name.starts_with("veth"))
        .expect("the result contains a host veth")
        .to_owned()
}

/// Runs ADD, `verify`, CHECK and DEL.
fn run_all_verbs(world: &World, call: &Call, verify: impl FnOnce(&World, &Value)) {
    let result = call.add().result();
    verify(world, &result);
    call.check(&result).ok();
    call.del(&result).ok();
}

/// The kernel changes a bridge's MAC address with its first port unless the address is pinned. The
/// plugin pins the bridge's current address, like the Go plugin.
#[test]
fn existing_bridge_keeps_its_mac_address() {
    in_netns(|| {
        for plugins in [Plugins::go(), Plugins::ours()] {
            for (state, with_port) in [("down", false), ("up", false), ("up", true)] {
                let world = World::new(&plugins, 1);
                world.on_host("link add br0 type bridge");
                world.on_host(&format!("link set br0 {state}"));
                if with_port {
                    world.on_host("link add p0 master br0 up type veth peer name p1");
                    world.on_host("link set p1 up");
                }
                let address = || world.host_link("br0")["address"].clone();
                let before = address();
                let call = world.call(&bridge(&json!({"isGateway": true})), 1);
                let result = call.add().result();
                assert_eq!(
                    result["interfaces"][0]["mac"], before,
                    "{plugins:?} {state} {with_port}"
                );
                assert_eq!(address(), before, "{plugins:?} {state} {with_port}");
                call.check(&result).ok();
                call.del(&result).ok();
                assert_eq!(address(), before, "{plugins:?} {state} {with_port}");
            }
        }
    });
}

/// A bridge that has lost its last port has no MAC address to keep.
#[test]
fn existing_bridge_without_mac_address_gets_one() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        world.on_host("link add br0 type bridge");
        world.on_host("link add p0 master br0 type veth peer name p1");
        world.on_host("link del p0");
        let address = || world.host_link("br0")["address"].clone();
        assert_eq!(address(), "00:00:00:00:00:00");
        let call = world.call(&bridge(&json!({"isGateway": true})), 1);
        let result = call.add().result();
        assert_ne!(address(), "00:00:00:00:00:00");
        assert_eq!(result["interfaces"][0]["mac"], address());
        call.check(&result).ok();
    });
}

#[test]
fn mac_sources_follow_precedence() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let args = json!({"args": {"cni": {"mac": "02:00:00:00:00:02"}}});
        let runtime = json!({"runtimeConfig": {"mac": "02:00:00:00:00:03"}});
        let plain = bridge(&json!({}));
        let configs = [
            (plain.clone(), "02:00:00:00:00:01"),
            (with(plain.clone(), &args), "02:00:00:00:00:02"),
            (with(with(plain, &args), &runtime), "02:00:00:00:00:03"),
        ];
        for (config, mac) in configs {
            let call = world.call(&config, 1).args("IgnoreUnknown=1;MAC=02:00:00:00:00:01");
            run_all_verbs(&world, &call, |world, result| {
                assert_eq!(pod_link(world)["address"], mac);
                assert_eq!(result["interfaces"][2]["mac"], mac);
            });
        }
    });
}

/// The host resolves containers from the bridge's link-local address, which is unusable during
/// duplicate address detection.
#[test]
fn new_bridge_has_dad_disabled() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        run_all_verbs(
            &world,
            &world.call(&bridge(&json!({"isGateway": true})), 1),
            |world, result| {
                let name = result["interfaces"][0]["name"].as_str().expect("the bridge's name");
                let switch = format!("net.ipv6.conf.{name}.accept_dad");
                assert_eq!(world.host.exec("sysctl", &["-n", &switch]).trim(), "0");
            },
        );
    });
}

/// The error for an address outside the ranges lists the ranges.
#[test]
fn requested_ip_outside_ranges_error_lists_ranges() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&bridge(&json!({})), 1).args("IgnoreUnknown=1;IP=10.9.0.1");
        let answer = call.add();
        answer.fails_with(999, "failed to allocate all requested IPs: 10.9.0.1");
        let details = "one address is assigned from each of: 10.1.0.1-10.1.0.254";
        assert_eq!(answer.values[0]["details"], details);
    });
}

#[test]
fn mtu_applies_to_veth_pair_and_new_bridge() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        run_all_verbs(&world, &world.call(&bridge(&json!({"mtu": 1400})), 1), |world, result| {
            assert_eq!(pod_link(world)["mtu"], 1400);
            assert_eq!(world.host_link(&host_veth(result))["mtu"], 1400);
            assert_eq!(world.host_link("br0")["mtu"], 1400);
        });
        run_all_verbs(&world, &world.call(&ptp(&json!({"mtu": 1300})), 1), |world, result| {
            assert_eq!(pod_link(world)["mtu"], 1300);
            assert_eq!(world.host_link(&host_veth(result))["mtu"], 1300);
        });
    });
}

#[test]
fn bridge_port_options_are_applied() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        for (key, option) in [("hairpinMode", "hairpin"), ("portIsolation", "isolated")] {
            for is_on in [true, false] {
                let config = bridge(&json!({ key: is_on }));
                run_all_verbs(&world, &world.call(&config, 1), |world, result| {
                    let port = world.host_link(&host_veth(result));
                    let found = &port["linkinfo"]["info_slave_data"][option];
                    assert_eq!(*found, is_on, "{key}: {port}");
                });
            }
        }
        run_all_verbs(
            &world,
            &world.call(&bridge(&json!({"promiscMode": true})), 1),
            |world, _| {
                assert_ne!(world.host_link("br0")["promiscuity"], 0);
            },
        );
    });
}

#[test]
fn force_address_replaces_bridge_address() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        world.on_host("link add br0 type bridge");
        world.on_host("addr add 10.9.0.1/24 dev br0");
        let config = bridge(&json!({"isGateway": true, "forceAddress": true}));
        run_all_verbs(&world, &world.call(&config, 1), |world, _| {
            let shown = world.on_host("-4 -o addr show br0");
            assert!(shown.contains("10.1.0.1/24") && !shown.contains("10.9.0.1"), "{shown}");
        });
    });
}

#[test]
fn disabled_container_interface_stays_down() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let config = bridge(&json!({"disableContainerInterface": true, "ipam": {}}));
        run_all_verbs(&world, &world.call(&config, 1), |world, result| {
            assert_eq!(pod_link(world)["operstate"], "DOWN");
            assert_eq!(result["ips"], Value::Null);
            assert_eq!(world.host_link(&host_veth(result))["master"], "br0");
        });
    });
}

#[test]
fn static_address_sources_follow_precedence() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let ipam = json!({"type": "static", "addresses": [{"address": "10.1.0.5/24"}]});
        let plain = bridge(&json!({"ipam": ipam}));
        let args = json!({"args": {"cni": {"ips": ["10.1.0.7/24"]}}});
        let runtime = json!({"runtimeConfig": {"ips": ["10.1.0.8/24"]}});
        let configs = [
            (plain.clone(), vec!["10.1.0.5", "10.1.0.6"]),
            (with(plain.clone(), &args), vec!["10.1.0.7"]),
            (with(with(plain, &args), &runtime), vec!["10.1.0.8"]),
        ];
        for (config, expected) in configs {
            let call = world.call(&config, 1).args("IgnoreUnknown=1;IP=10.1.0.6/24");
            run_all_verbs(&world, &call, |world, _| {
                let link = pod_link(world);
                let found = link["addr_info"].as_array().expect("addresses").iter();
                let found = found.filter(|one| one["family"] == "inet");
                let found: Vec<&str> = found.filter_map(|one| one["local"].as_str()).collect();
                assert_eq!(found, expected);
            });
        }
    });
}
