// SPDX-License-Identifier: Apache-2.0
//! vrf. The `vm_` tests run in a virtual machine with Debian's kernel, because not every kernel
//! supports VRFs.

use serde_json::{Value, json};
use testkit::{in_netns, not_run_unless, run};

use crate::conf::{ETH0_SETUP, chained, eth0_result};
use crate::world::{Plugins, World};

fn world() -> World {
    let world = World::new(&Plugins::ours(), 1);
    ETH0_SETUP.iter().for_each(|line| drop(world.in_pod(1, line)));
    world
}

fn vrf(more: &Value) -> Value {
    crate::conf::with(chained("vrf", &json!({"vrfname": "blue"})), more)
}

fn link(world: &World, name: &str) -> Value {
    world.pod(1).ip_json(&["link", "show", name])[0].clone()
}

/// Destinations of unicast routes in a table, without link-local ones.
fn table(world: &World, family: &str, table: &str) -> Vec<String> {
    let routes = world.pod(1).ip_json(&[family, "route", "show", "table", table]);
    let routes = routes.as_array().expect("a list of routes").iter();
    let routes = routes.filter(|route| route["type"] == "unicast");
    let shown = |route: &Value| route["dst"].as_str().expect("a destination").to_owned();
    let mut routes: Vec<String> =
        routes.map(shown).filter(|dst| !dst.starts_with("fe80")).collect();
    routes.sort();
    routes
}

fn has_blue(world: &World) -> bool {
    world.pod(1).try_exec("ip", &["link", "show", "blue"]).is_ok()
}

#[test]
fn vm_vrf_add_moves_addresses_and_routes() {
    in_netns(|| {
        not_run_unless!(Link("vrf"));
        // With and without the sysctl that keeps IPv6 addresses.
        for keeps in ["0", "1"] {
            let world = world();
            let path = "/proc/sys/net/ipv6/conf/eth0/keep_addr_on_down";
            let script = format!("echo {keeps} > {path}");
            run("nsenter", &["--net=/run/netns/pod1", "sh", "-c", &script]);
            let call = world.call(&vrf(&json!({"table": 1001})), 1);
            call.status().ok();
            let result = call.add().result();
            assert_eq!(link(&world, "eth0")["master"], "blue");
            let blue = link(&world, "blue");
            assert_eq!(blue["linkinfo"]["info_data"]["table"], 1001);
            assert!(blue["flags"].to_string().contains("\"UP\""), "{blue}");
            let v4 = ["10.1.0.0/24", "192.0.2.0/24", "198.51.100.0/24", "default"];
            assert_eq!(table(&world, "-4", "1001"), v4);
            assert_eq!(table(&world, "-6", "1001"), ["default", "fd00:1::/64"]);
            assert_eq!(table(&world, "-4", "main"), Vec::<String>::new());
            let addresses = world.in_pod(1, "addr show eth0");
            assert!(addresses.contains("fd00:1::5/64"), "{addresses}");
            call.check(&result).ok();
            call.add().fails_with(999, "has already a master set: blue");
            call.check(&result).ok();
            call.del(&result).ok();
            assert_eq!(link(&world, "eth0")["master"], Value::Null);
            assert!(!has_blue(&world));
            call.del(&result).ok();
        }
    });
}

#[test]
fn vm_vrf_is_removed_with_last_interface() {
    in_netns(|| {
        not_run_unless!(Link("vrf"));
        let world = world();
        for line in ["link add eth1 type veth peer name peer1", "link set eth1 up"] {
            world.in_pod(1, line);
        }
        let eth0 = world.call(&vrf(&json!({})), 1);
        let eth1 = eth0.ifname("eth1").with_prev_result(&json!({"cniVersion": "1.1.0"}));
        let result = eth0.add().result();
        eth1.add().ok();
        eth0.del(&result).ok();
        assert!(has_blue(&world));
        assert_eq!(link(&world, "eth1")["master"], "blue");
        eth0.del(&result).ok();
        assert_eq!(link(&world, "eth1")["master"], "blue");
        world.in_pod(1, "link del eth1");
        eth1.run("DEL").ok();
        assert!(!has_blue(&world));
        for netns in ["", "/run/netns/gone"] {
            eth0.netns(netns).del(&result).ok();
        }
    });
}

#[test]
fn vm_vrf_without_table_key_picks_unused_table() {
    in_netns(|| {
        not_run_unless!(Link("vrf"));
        let world = world();
        for line in [
            "link add red type vrf table 1",
            "route add 203.0.113.0/24 via 10.1.0.9 table 2",
            "rule add from 10.9.0.1 lookup 3",
        ] {
            world.in_pod(1, line);
        }
        let call = world.call(&vrf(&json!({})), 1);
        let result = call.add().result();
        assert_eq!(link(&world, "blue")["linkinfo"]["info_data"]["table"], 4);
        call.check(&result).ok();
        call.del(&result).ok();
        assert_eq!(link(&world, "red")["ifname"], "red");
    });
}

#[test]
fn vm_vrf_failed_add_leaves_nothing() {
    in_netns(|| {
        not_run_unless!(Link("vrf"));
        let world = world();
        world.in_pod(1, "link add red type vrf table 7");
        world.in_pod(1, "link add other type veth peer name other0");
        let before = world.snapshot();
        for (more, code, words) in [
            (
                json!({"vrfname": "red", "table": 8}),
                7,
                "VRF red already exist with different routing table 7",
            ),
            (json!({"vrfname": "other"}), 7, "Netlink other is not a VRF"),
            (json!({"vrfname": ""}), 7, "\"vrfname\""),
            (json!({"vrfname": "a/b"}), 7, "a/b"),
            (json!({"table": "x"}), 7, "table"),
        ] {
            let call = world.call(&vrf(&more), 1);
            call.add().fails_with(code, words);
            call.run("DEL").ok();
        }
        let call = world.call(&vrf(&json!({})), 1);
        call.ifname("eth9").add().fails_with(999, "eth9");
        let unchained = crate::conf::without(vrf(&json!({})), &["prevResult"]);
        call.config(&unchained).add().fails_with(7, "prevResult");
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
    });
}

#[test]
fn vm_vrf_check_of_damaged_vrf_fails() {
    in_netns(|| {
        not_run_unless!(Link("vrf"));
        for (damage, words) in [
            ("link set eth0 nomaster", "failed to find eth0 associated to vrf blue"),
            ("link del blue", "VRF blue is not in the container"),
            ("-6 addr del fd00:1::5/64 dev eth0", "fd00:1::5/64 is missing"),
            ("route del default table 1001", "route to 0.0.0.0/0 is missing in table 1001"),
        ] {
            let world = world();
            let call = world.call(&vrf(&json!({"table": 1001})), 1);
            let result = call.add().result();
            call.check(&result).ok();
            world.in_pod(1, damage);
            call.check(&result).fails_with(999, words);
        }
    });
}

#[test]
fn vm_vrf_is_undone_between_go_and_podwire() {
    in_netns(|| {
        not_run_unless!(Link("vrf"));
        let go = Plugins::go();
        for version in ["0.3.1", "0.4.0", "1.0.0"] {
            let world = world();
            let more = json!({"cniVersion": version, "prevResult": eth0_result(version)});
            let ours = world.call(&vrf(&more), 1);
            let theirs = world.call_of(&go, &vrf(&more), 1);
            for (adds, dels) in [(&ours, &theirs), (&theirs, &ours)] {
                let result = adds.add().result();
                if version != "0.3.1" {
                    ours.check(&result).ok();
                    theirs.check(&result).ok();
                }
                dels.del(&result).ok();
                assert!(!has_blue(&world));
                for line in
                    ["route add default via 10.1.0.1", "-6 addr flush dev eth0 scope global"]
                {
                    world.in_pod(1, line);
                }
                world.in_pod(1, "addr add fd00:1::5/64 dev eth0 nodad");
            }
        }
    });
}

#[test]
fn vrf_status_without_kernel_support_fails() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 0);
        let answer = world.call(&vrf(&json!({})), 1).status();
        match testkit::missing(testkit::Need::Link("vrf")) {
            Some(_) => answer.fails_with(50, "no VRFs"),
            None => answer.ok(),
        }
        world.call(&vrf(&json!({})), 1).gc(&[]).ok();
        let old = vrf(&json!({"cniVersion": "0.3.0"}));
        world.call(&old, 1).run("DEL").fails_with(1, "incompatible");
    });
}
