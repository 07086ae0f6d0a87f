// SPDX-License-Identifier: Apache-2.0
//! The gateway interface of a VLAN: created once, kept while a port uses it, then removed.

use std::thread;

use serde_json::{Value, json};
use testkit::{answers, in_netns, not_run_unless, ping};

use super::vlan::run_bridge;
use crate::conf::{bridge, dual, with};
use crate::world::{Plugins, World, vlan_filtering_file};

fn config() -> Value {
    bridge(&json!({"vlan": 100, "isGateway": true, "ipam": dual()}))
}

fn has_gateway(world: &World) -> bool {
    let links = world.host.ip_json(&["link", "show"]);
    links.as_array().expect("a list of links").iter().any(|link| link["ifname"] == "br0.100")
}

#[track_caller]
fn assert_reaches_gateway(world: &World, pod: usize) {
    for gateway in ["10.1.0.1", "fd00:1::1"] {
        assert!(answers(world.pod(pod), gateway.parse().expect("an address")), "{gateway}");
    }
}

#[test]
fn vm_vlan_gateway_is_removed_with_last_container() {
    in_netns(|| {
        not_run_unless!(File(vlan_filtering_file()));
        let world = World::new(&Plugins::ours(), 3);
        let other = bridge(&json!({"name": "two", "vlan": 200, "isGateway": true}));
        let other = with(
            other,
            &json!({"ipam": {"type": "static", "addresses": [
            {"address": "10.2.0.5/24", "gateway": "10.2.0.1"}]}}),
        );
        world.call(&other, 3).add().ok();
        let one = world.call(&config(), 1).add().result();
        let two = world.call(&config(), 2).add().result();
        let interfaces = one["interfaces"].as_array().expect("interfaces");
        assert_eq!(interfaces.len(), 4);
        assert_eq!(interfaces[3]["name"], "br0.100");
        assert_eq!(interfaces[3]["mac"], world.host_link("br0.100")["address"]);
        assert_eq!(interfaces[3], two["interfaces"][3], "second gateway created");
        assert_reaches_gateway(&world, 1);
        assert_reaches_gateway(&world, 2);
        // DEL without the namespace, as after a restart.
        world.call(&config(), 1).netns("").del(&one).ok();
        assert!(has_gateway(&world));
        assert_reaches_gateway(&world, 2);
        world.call(&config(), 2).del(&two).ok();
        assert!(!has_gateway(&world));
        assert_eq!(
            world.host_link("br0.200")["operstate"],
            "UP",
            "gateway of another VLAN changed"
        );
        world.call(&config(), 2).del(&two).ok();
    });
}

#[test]
fn vm_gc_removes_unused_vlan_gateway() {
    in_netns(|| {
        not_run_unless!(File(vlan_filtering_file()));
        let world = World::new(&Plugins::ours(), 2);
        let one = world.call(&config(), 1).add().result();
        world.call(&config(), 2).add().ok();
        world.call(&config(), 1).run("GC").ok();
        world.call(&config(), 1).gc(&[("c1", "eth0")]).ok();
        world.call(&config(), 1).check(&one).ok();
        assert_reaches_gateway(&world, 1);
        world.call(&config(), 1).gc(&[]).ok();
        assert!(!has_gateway(&world));
        // State after a killed DEL: a gateway without a container.
        let one = world.call(&config(), 1).add().result();
        let host_veth = one["interfaces"][1]["name"].as_str().expect("a name");
        world.on_host(&format!("link del {host_veth}"));
        assert!(has_gateway(&world));
        world.call(&config(), 1).gc(&[]).ok();
        assert!(!has_gateway(&world));
    });
}

/// A foreign port in the VLAN keeps the gateway.
#[test]
fn vm_vlan_gateway_with_foreign_port_is_kept() {
    in_netns(|| {
        not_run_unless!(File(vlan_filtering_file()));
        let world = World::new(&Plugins::ours(), 1);
        let result = world.call(&config(), 1).add().result();
        world.on_host("link add up0 type veth peer name up1");
        world.on_host("link set up0 master br0");
        run_bridge(&world, "vlan add dev up0 vid 90-110");
        world.call(&config(), 1).del(&result).ok();
        assert!(has_gateway(&world));
        run_bridge(&world, "vlan del dev up0 vid 100");
        world.call(&config(), 1).del(&result).ok();
        assert!(!has_gateway(&world));
    });
}

#[test]
fn vm_check_of_damaged_vlan_gateway_fails() {
    in_netns(|| {
        not_run_unless!(File(vlan_filtering_file()));
        let world = World::new(&Plugins::ours(), 2);
        let call = world.call(&config(), 1);
        let result = call.add().result();
        let port = world.host_link("br0.100")["link"].as_str().expect("its peer").to_owned();
        let ip = |line: &str| drop(world.on_host(line));
        let damage: [(&dyn Fn(), &str); 5] = [
            (
                &|| ip("addr del 10.1.0.1/24 dev br0.100"),
                "10.1.0.1/24 is missing on interface br0.100",
            ),
            (&|| ip("link set br0.100 down"), "br0.100, gateway of VLAN 100, is down"),
            (
                &|| ip(&format!("link set {port} nomaster")),
                "br0.100 is not connected to bridge br0",
            ),
            (
                &|| drop(run_bridge(&world, &format!("vlan del dev {port} vid 100"))),
                "br0.100 is not in VLAN 100",
            ),
            (&|| ip("link del br0.100"), "br0.100, gateway of VLAN 100, is missing"),
        ];
        for (damage, words) in damage {
            damage();
            call.check(&result).fails_with(999, words);
            // The next ADD repairs the gateway.
            let other = world.call(&config(), 2).add().result();
            assert_reaches_gateway(&world, 2);
            world.call(&config(), 2).del(&other).ok();
            assert_reaches_gateway(&world, 1);
        }
    });
}

/// DEL of the last container runs at the same time as ADD of the next, which must have a gateway.
#[test]
fn vm_concurrent_add_and_del_keep_vlan_gateway() {
    in_netns(|| {
        not_run_unless!(File(vlan_filtering_file()));
        let world = World::new(&Plugins::ours(), 2);
        let mut result = world.call(&config(), 1).add().result();
        for round in 0..10 {
            let (old, new) = (round % 2 + 1, (round + 1) % 2 + 1);
            let before = result.clone();
            result = thread::scope(|scope| {
                let leaving = scope.spawn(|| world.call(&config(), old).del(&before).ok());
                let coming = scope.spawn(|| world.call(&config(), new).add().result());
                leaving.join().expect("DEL succeeds");
                coming.join().expect("ADD succeeds")
            });
            world.call(&config(), new).check(&result).ok();
            assert_reaches_gateway(&world, new);
        }
        world.call(&config(), 1).del(&result).ok();
        assert!(!has_gateway(&world));
    });
}

/// Switching a node: podwire uses the Go plugin's gateway and, like the Go plugin, never removes
/// it.
#[test]
fn vm_vlan_gateway_of_go_plugin_is_used_and_kept() {
    in_netns(|| {
        not_run_unless!(File(vlan_filtering_file()));
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&ours, 2);
        let by_go = world.call_of(&go, &config(), 1).add().result();
        world.call(&config(), 1).check(&by_go).ok();
        let by_us = world.call(&config(), 2).add().result();
        assert_eq!(by_go["interfaces"][3], by_us["interfaces"][3]);
        // Duplicate address detection may still be running for the address set by Go.
        ping(world.pod(2), "fd00:1::1".parse().expect("an address"));
        assert_reaches_gateway(&world, 2);
        world.call_of(&go, &config(), 2).check(&by_us).ok();
        world.call(&config(), 1).del(&by_go).ok();
        world.call(&config(), 2).del(&by_us).ok();
        assert!(has_gateway(&world), "podwire removed the Go plugin's gateway");

        world.on_host("link del br0.100");
        world.on_host("link del br0");
        let by_us = world.call(&config(), 1).add().result();
        world.call_of(&go, &config(), 2).add().ok();
        world.call_of(&go, &config(), 1).check(&by_us).ok();
        world.call_of(&go, &config(), 1).del(&by_us).ok();
        assert_reaches_gateway(&world, 2);
    });
}
