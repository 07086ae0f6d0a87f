// SPDX-License-Identifier: Apache-2.0
//! macvlan, ipvlan and vlan on a network with others: names, neighbours and duplicates.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{can_ping, in_netns, not_run_unless, ping, wait_for};

use super::links::{left, world};
use crate::conf::{dual, ipvlan, macvlan, v4, vlan, with};
use crate::world::{Plugins, World};

/// Kernels before 6.15 look for the name on the host.
fn name_of_the_master(config: &Value) {
    let world = World::new(&Plugins::ours(), 1);
    world.on_host("link add eth0 type veth peer name lan");
    world.on_host("link set eth0 up");
    world.on_host("link set lan up");
    let call = world.call(&with(config.clone(), &json!({"master": "eth0"})), 1);
    let result = call.add().result();
    call.check(&result).ok();
    call.add().fails_with(999, "already exists");
    call.check(&result).ok();
    call.del(&result).ok();
    assert_eq!(left(&world, config), (0, 0));
}

#[test]
fn vm_macvlan_may_have_the_name_of_its_master() {
    in_netns(|| name_of_the_master(&macvlan(&json!({}))));
}

#[test]
fn vm_ipvlan_and_vlan_may_have_the_name_of_their_master() {
    in_netns(|| {
        not_run_unless!(Link("ipvlan"), Link("vlan"));
        name_of_the_master(&ipvlan(&json!({})));
        name_of_the_master(&vlan(&json!({})));
    });
}

/// Another machine on the network, which is to be reached, and to know the container at once.
fn reaches_the_network(config: &Value, port: &str) {
    let world = World::new(&Plugins::ours(), 2);
    let lan = testkit::Ns::new("lan");
    world.host.connect("m0", &lan, "eth0");
    if port != "eth0" {
        lan.ip(&["link", "add", "link", "eth0", "name", port, "type", "vlan", "id", "5"]);
        lan.ip(&["link", "set", port, "up"]);
    }
    lan.ip(&["addr", "add", "10.1.0.1/24", "dev", port]);
    lan.ip(&["addr", "add", "fd00:1::1/64", "dev", port, "nodad"]);
    let start = Instant::now();
    let result = world.call(config, 1).add().result();
    println!("ADD took {:?}", start.elapsed());
    let gateways = ["10.1.0.1", "fd00:1::1"];
    for gateway in gateways {
        ping(world.pod(1), gateway.parse().expect("an address"));
    }
    world.call(config, 1).check(&result).ok();
    world.call(config, 1).del(&result).ok();
    assert!(!can_ping(world.pod(1), "10.1.0.1".parse().expect("an address")));
}

#[test]
fn macvlan_reaches_the_network() {
    in_netns(|| reaches_the_network(&macvlan(&json!({"ipam": dual()})), "eth0"));
}

#[test]
fn vm_ipvlan_reaches_the_network() {
    in_netns(|| {
        not_run_unless!(Link("ipvlan"));
        reaches_the_network(&ipvlan(&json!({"ipam": dual()})), "eth0");
    });
}

#[test]
fn vm_vlan_reaches_the_network() {
    in_netns(|| {
        not_run_unless!(Link("vlan"));
        reaches_the_network(&vlan(&json!({"ipam": dual()})), "eth0.5");
    });
}

/// Neighbours that knew another holder of the address learn of the new one without asking.
#[test]
fn macvlan_tells_its_neighbours() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let lan = testkit::Ns::new("lan");
        world.host.connect("m0", &lan, "eth0");
        lan.ip(&["addr", "add", "10.1.0.1/24", "dev", "eth0"]);
        lan.ip(&["addr", "add", "fd00:1::1/64", "dev", "eth0", "nodad"]);
        let addresses = ["10.1.0.2", "fd00:1::2"];
        for address in addresses {
            let stale = ["lladdr", "02:00:00:00:00:77", "dev", "eth0", "nud", "stale"];
            lan.ip(&[&["neigh", "add", address], &stale[..]].concat());
        }
        let result = world.call(&macvlan(&json!({"ipam": dual()})), 1).add().result();
        let mac = result["interfaces"][0]["mac"].as_str().expect("a hardware address").to_owned();
        for address in addresses {
            let knows = || lan.ip(&["neigh", "show", address]).contains(&mac);
            wait_for("the neighbour to learn", Duration::from_secs(30), knows);
        }
    });
}

/// IPv6 addresses wait for nobody, unless the network asks for detection.
#[test]
fn duplicate_of_macvlan_is_found_where_asked_for() {
    in_netns(|| {
        let world = world(&Plugins::ours(), 2);
        let fixed = json!({"type": "static", "addresses": [{"address": "fd00:1::5/64"}]});
        let config = macvlan(&json!({"enabledad": true, "ipam": fixed}));
        world.call(&config, 1).add().ok();
        let before = world.snapshot().without_bookkeeping();
        world.call(&config, 2).add().fails_with(999, "is in use by another host");
        let changes = before.changes_to(&world.snapshot().without_bookkeeping());
        assert!(changes.is_empty(), "{changes:#?}");
    });
}

/// A master without carrier is no reason to wait.
#[test]
fn macvlan_does_not_wait_for_a_cable() {
    in_netns(|| {
        let world = world(&Plugins::ours(), 1);
        world.on_host("link set m1 down");
        let call = world.call(&macvlan(&json!({"ipam": dual()})), 1);
        let start = Instant::now();
        let result = call.add().result();
        // Where it waits, then for ten seconds.
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        call.check(&result).ok();
    });
}

#[test]
fn macvlan_refuses_a_hardware_address_that_it_cannot_give() {
    in_netns(|| {
        let world = world(&Plugins::ours(), 1);
        let config = macvlan(&json!({"mode": "passthru", "mac": "02:00:00:00:00:05"}));
        world
            .call(&config, 1)
            .add()
            .fails_with(7, "mode \"passthru\" uses the MAC address of the master");
        let config = macvlan(&json!({"mode": "passthru", "ipam": v4()}));
        let result = world.call(&config, 1).add().result();
        assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:01");
        world.call(&config, 1).check(&result).ok();
    });
}
