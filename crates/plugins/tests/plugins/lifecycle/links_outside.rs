// SPDX-License-Identifier: Apache-2.0
//! macvlan, ipvlan and vlan on a network with other machines: names, neighbours and duplicate
//! addresses.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{can_ping, in_netns, not_run_unless, ping, wait_for};

use super::links::{left, world};
use crate::conf::{dual, ipvlan, macvlan, v4, vlan, with};
use crate::world::{Plugins, World};

/// Kernels before 6.15 check on the host whether the name is in use.
fn check_name_of_master(config: &Value) {
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
fn vm_macvlan_with_name_of_master_works() {
    in_netns(|| check_name_of_master(&macvlan(&json!({}))));
}

#[test]
fn vm_ipvlan_and_vlan_with_name_of_master_work() {
    in_netns(|| {
        not_run_unless!(Link("ipvlan"), Link("vlan"));
        check_name_of_master(&ipvlan(&json!({})));
        check_name_of_master(&vlan(&json!({})));
    });
}

/// Checks that the container reaches another machine on the network with the first packet.
fn check_reaches_network(config: &Value, port: &str) {
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
fn macvlan_pod_reaches_network() {
    in_netns(|| check_reaches_network(&macvlan(&json!({"ipam": dual()})), "eth0"));
}

#[test]
fn vm_ipvlan_pod_reaches_network() {
    in_netns(|| {
        not_run_unless!(Link("ipvlan"));
        check_reaches_network(&ipvlan(&json!({"ipam": dual()})), "eth0");
    });
}

#[test]
fn vm_vlan_pod_reaches_network() {
    in_netns(|| {
        not_run_unless!(Link("vlan"));
        check_reaches_network(&vlan(&json!({"ipam": dual()})), "eth0.5");
    });
}

/// Neighbours with a stale entry for the address learn the new MAC address from an announcement.
#[test]
fn macvlan_add_updates_stale_neighbour_entries() {
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
        let mac = result["interfaces"][0]["mac"].as_str().expect("a MAC address").to_owned();
        for address in addresses {
            let knows = || lan.ip(&["neigh", "show", address]).contains(&mac);
            wait_for("the neighbour entry to be updated", Duration::from_secs(30), knows);
        }
    });
}

/// Without `enabledad`, IPv6 addresses are usable without duplicate address detection.
#[test]
fn macvlan_enabledad_with_duplicate_address_fails() {
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

/// ADD does not wait for the carrier of the master.
#[test]
fn macvlan_add_without_carrier_does_not_wait() {
    in_netns(|| {
        let world = world(&Plugins::ours(), 1);
        world.on_host("link set m1 down");
        let call = world.call(&macvlan(&json!({"ipam": dual()})), 1);
        let start = Instant::now();
        let result = call.add().result();
        // If ADD waited, it would wait for ten seconds.
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        call.check(&result).ok();
    });
}

#[test]
fn macvlan_passthru_with_mac_is_rejected() {
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
