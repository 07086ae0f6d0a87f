// SPDX-License-Identifier: Apache-2.0
//! sbr: tables and rules, and DEL with missing state.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{in_netns, wait_for};

use super::locks::lock_file;
use crate::conf::{ETH0_SETUP, chained};
use crate::world::{Plugins, World};

fn world() -> World {
    let world = World::new(&Plugins::ours(), 1);
    ETH0_SETUP.iter().for_each(|line| drop(world.in_pod(1, line)));
    world
}

/// Route of a packet with this source address.
fn route(world: &World, from: &str, to: &str) -> Value {
    world.pod(1).ip_json(&["route", "get", to, "from", from])[0].clone()
}

fn table(world: &World, family: &str, table: &str) -> Vec<String> {
    let routes = world.pod(1).ip_json(&[family, "route", "show", "table", table]);
    let routes = routes.as_array().expect("a list of routes").iter();
    let shown = |route: &Value| route["dst"].as_str().expect("a destination").to_owned();
    routes.map(shown).filter(|dst| !dst.starts_with("fe80")).collect()
}

#[test]
fn sbr_add_routes_packets_by_source_address() {
    in_netns(|| {
        let world = world();
        // A second interface with the default route in the main table.
        for line in [
            "route del default",
            "link add eth1 type veth peer name peer1",
            "addr add 10.2.0.5/24 dev eth1",
            "link set peer1 up",
            "link set eth1 up",
            "route add default via 10.2.0.1",
        ] {
            world.in_pod(1, line);
        }
        let call = world.call(&chained("sbr", &json!({})), 1);
        let result = call.add().result();
        let by_eth0 = route(&world, "10.1.0.5", "203.0.113.1");
        assert_eq!((&by_eth0["dev"], &by_eth0["gateway"]), (&json!("eth0"), &json!("10.1.0.1")));
        assert_eq!(route(&world, "10.2.0.5", "203.0.113.1")["dev"], "eth1");
        assert_eq!(route(&world, "fd00:1::5", "2001:db8::1")["gateway"], "fd00:1::1");
        call.check(&result).ok();
        call.del(&result).ok();
        assert_eq!(route(&world, "10.1.0.5", "203.0.113.1")["dev"], "eth1");
    });
}

#[test]
fn sbr_second_add_creates_no_second_table() {
    in_netns(|| {
        let world = world();
        let call = world.call(&chained("sbr", &json!({})), 1);
        call.add().ok();
        let after = world.snapshot();
        let result = call.add().result();
        assert_eq!(after.changes_to(&world.snapshot()), Vec::<String>::new());
        call.check(&result).ok();
        let others = world.call(&chained("sbr", &json!({"table": 3000})), 1);
        others.add().ok();
        let after = world.snapshot();
        others.add().ok();
        assert_eq!(after.changes_to(&world.snapshot()), Vec::<String>::new());
    });
}

#[test]
fn sbr_add_skips_tables_with_routes() {
    in_netns(|| {
        let world = world();
        world.in_pod(1, "route add 203.0.113.0/24 via 10.1.0.9 table 100");
        world.call(&chained("sbr", &json!({})), 1).add().ok();
        assert_eq!(table(&world, "-4", "100"), ["203.0.113.0/24"]);
        let routes = ["default", "10.1.0.0/24", "192.0.2.0/24", "198.51.100.0/24"];
        assert_eq!(table(&world, "-4", "101"), routes);
        assert_eq!(table(&world, "-6", "102"), ["fd00:1::/64", "default"]);
        assert_eq!(table(&world, "-4", "main"), Vec::<String>::new());
    });
}

#[test]
fn sbr_gateways_override_gateways_of_result() {
    in_netns(|| {
        let world = world();
        let gateways = json!({"gateways": ["10.1.0.77", "fd00:1::77"]});
        for line in ["route del default", "-6 route del default"] {
            world.in_pod(1, line);
        }
        let call = world.call(&chained("sbr", &gateways), 1);
        let mut result = call.config["prevResult"].clone();
        result["routes"] = json!([]);
        let result = call.with_prev_result(&result).add().result();
        assert_eq!(route(&world, "10.1.0.5", "203.0.113.1")["gateway"], "10.1.0.77");
        assert_eq!(route(&world, "fd00:1::5", "2001:db8::1")["gateway"], "fd00:1::77");
        call.check(&result).ok();
        for (bad, words) in [
            (json!(["10.1.0.1", "10.1.0.2"]), "multiple IPv4 addresses: 10.1.0.1 and 10.1.0.2"),
            (json!(["x"]), "invalid static gateway IP address: x"),
            (json!("10.1.0.1"), "gateways"),
        ] {
            let call = world.call(&chained("sbr", &json!({"gateways": bad})), 1);
            call.add().fails_with(7, words);
        }
        world.call(&chained("sbr", &json!({"table": 0})), 1).add().fails_with(7, "\"table\" is 0");
    });
}

#[test]
fn sbr_source_hints_keep_link_routes_in_main_table() {
    in_netns(|| {
        let world = world();
        let call = world.call(&chained("sbr", &json!({"addSourceHints": true})), 1);
        let result = call.add().result();
        assert_eq!(table(&world, "-4", "main"), ["10.1.0.0/24", "198.51.100.0/24"]);
        assert_eq!(table(&world, "-6", "main"), ["fd00:1::/64"]);
        let v6 = world.pod(1).ip_json(&["-6", "route", "show", "fd00:1::/64"])[0].clone();
        assert_eq!(v6["prefsrc"], "fd00:1::5");
        assert_eq!(table(&world, "-4", "100").len(), 4);
        call.check(&result).ok();
    });
}

/// The Go plugin creates an empty file at the namespace's path, which makes every later DEL fail.
#[test]
fn sbr_del_without_namespace_creates_no_file() {
    in_netns(|| {
        let world = world();
        let call = world.call(&chained("sbr", &json!({})), 1);
        let result = call.add().result();
        for netns in ["", "/run/netns/gone", "/run/nowhere/gone"] {
            call.netns(netns).del(&result).ok();
            call.netns(netns).run("DEL").ok();
            assert!(netns.is_empty() || !Path::new(netns).exists(), "{netns}");
        }
        call.check(&result).ok();
        call.del(&result).ok();
        call.del(&result).ok();
        let rules = world.pod(1).ip_json(&["rule"]);
        assert_eq!(rules.as_array().map(Vec::len), Some(3), "{rules}");
    });
}

#[test]
fn sbr_check_of_damaged_rules_fails() {
    in_netns(|| {
        for (damage, words) in [
            ("rule del from 10.1.0.5", "rule for packets from 10.1.0.5 is missing"),
            ("-6 rule del from fd00:1::5", "rule for packets from fd00:1::5 is missing"),
            ("route del default table 100", "route to 0.0.0.0/0 via 10.1.0.1 is missing"),
            ("-6 route flush table 101", "route to ::/0 via fd00:1::1 is missing in table 101"),
            ("link del eth0", "eth0"),
        ] {
            let world = world();
            let call = world.call(&chained("sbr", &json!({})), 1);
            let result = call.add().result();
            call.check(&result).ok();
            world.in_pod(1, damage);
            call.check(&result).fails_with(999, words);
        }
    });
}

#[test]
fn sbr_add_waits_for_namespace_lock() {
    in_netns(|| {
        let world = world();
        let call = world.call(&chained("sbr", &json!({})), 1);
        let file = lock_file("sbr", world.pod(1));
        file.lock().expect("lock the file");
        let mut child = call.start_under(&[], "ADD", call.config.to_string().as_bytes());
        let pid = child.id().to_string();
        let waits = || {
            let locks = std::fs::read_to_string("/proc/locks").expect("read /proc/locks");
            let of_child = |line: &str| line.split(' ').any(|word| word == pid);
            locks.lines().any(|line| line.contains("-> FLOCK") && of_child(line))
        };
        wait_for("sbr to wait for the lock", Duration::from_secs(30), waits);
        assert!(child.try_wait().expect("wait for the child").is_none());
        drop(file);
        assert!(child.wait().expect("wait for the child").success());
        call.gc(&[]).ok();
        call.status().ok();
    });
}
