// SPDX-License-Identifier: Apache-2.0
//! Lifecycle of tap.

use std::fs;

use serde_json::{Value, json};
use testkit::{in_netns, run};

use crate::conf::{dual, ranges, tap, v4, with, without};
use crate::world::{Plugins, World};

fn world(pods: usize) -> World {
    World::new(&Plugins::ours(), pods)
}

fn taps(world: &World, pod: usize) -> usize {
    let links = world.pod(pod).ip_json(&["link", "show", "type", "tun"]);
    links.as_array().expect("a list of links").len()
}

#[track_caller]
fn assert_gone(world: &World) {
    assert_eq!(taps(world, 1), 0);
    let disk = world.disk().without_bookkeeping().0;
    assert!(disk.is_empty(), "{disk:?}");
}

/// Sets every key and verifies the tap with `ip`.
#[test]
fn tap_with_all_keys_is_configured() {
    in_netns(|| {
        let world = world(1);
        world.in_pod(1, "link add br0 type bridge");
        let keys = json!({"multiQueue": true, "mtu": 1400, "mac": "02:00:00:00:00:21",
            "owner": 1000, "group": 44, "bridge": "br0", "ipam": dual(),
            "dns": {"domain": "example.org"}});
        let call = world.call(&tap(&keys), 1);
        let result = call.add().result();
        let link = world.pod(1).ip_json(&["link", "show", "eth0"])[0].clone();
        assert_eq!((&link["mtu"], &link["master"]), (&json!(1400), &json!("br0")));
        assert_eq!(link["address"], "02:00:00:00:00:21");
        assert_eq!(result["interfaces"][0]["mac"], link["address"]);
        assert_eq!(result["dns"]["domain"], "example.org");
        let data = &link["linkinfo"]["info_data"];
        assert_eq!((&data["multi_queue"], &data["persist"]), (&json!(true), &json!(true)));
        let shown = world.in_pod(1, "tuntap");
        assert!(shown.contains("user 1000 group 44"), "{shown}");
        call.check(&result).ok();
        call.del(&result).ok();
        assert_gone(&world);
    });
}

/// A process opens the tap and sends a frame, which the pod receives.
#[test]
fn tap_frames_are_received() {
    in_netns(|| {
        testkit::require!(Program("socat"));
        let world = world(1);
        let call = world.call(&tap(&json!({"ipam": v4()})), 1);
        call.add().ok();
        let machine = "TUN,tun-device=/dev/net/tun,tun-type=tap,tun-name=eth0,iff-no-pi";
        let frame = "SYSTEM:printf hello-hello-hello-hello; cat >/dev/null";
        let _sender = world.pod(1).start("socat", &[frame, machine]);
        let received = || {
            let link = world.pod(1).ip_json(&["-s", "link", "show", "eth0"]);
            link[0]["stats64"]["rx"]["packets"].as_u64().is_some_and(|count| count > 0)
        };
        testkit::wait_for(
            "the pod to receive a frame",
            std::time::Duration::from_secs(30),
            received,
        );
    });
}

#[test]
fn tap_del_with_missing_state_succeeds() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&tap(&json!({"ipam": dual()})), 1);
        let result = call.add().result();
        for _ in 0..2 {
            let answer = call.del(&result);
            answer.ok();
            assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("", ""));
            assert_gone(&world);
        }
        call.add().ok();
        call.run("DEL").ok();
        assert_gone(&world);
        for netns in ["", "/run/netns/gone", "/etc/hostname"] {
            call.add().ok();
            call.netns(netns).run("DEL").ok();
            call.run("DEL").ok();
            assert_gone(&world);
        }
        call.add().ok();
        let junk = tap(&json!({"ipam": dual(), "mtu": [], "owner": "x", "mac": "x"}));
        call.config(&junk).args("A=b").run("DEL").ok();
        assert_eq!(taps(&world, 1), 0);
        let result = call.add().result();
        run("ip", &["netns", "del", "pod1"]);
        call.del(&result).ok();
        assert!(world.disk().without_bookkeeping().0.is_empty());
    });
}

#[test]
fn tap_del_keeps_foreign_interfaces() {
    in_netns(|| {
        let world = world(1);
        let new = world.call(&tap(&json!({})), 1).container("new");
        let result = new.add().result();
        new.container("old").run("DEL").ok();
        new.config(&tap(&json!({"name": "other"}))).run("DEL").ok();
        new.check(&result).ok();
        new.del(&result).ok();
        world.in_pod(1, "link add eth0 type veth peer name other");
        new.run("DEL").ok();
        assert!(world.in_pod(1, "link").contains("eth0"));
    });
}

#[test]
fn tap_failed_add_leaves_nothing() {
    in_netns(|| {
        let route = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.99.0.1"}]});
        let unreachable = tap(&json!({"ipam": with(v4(), &route)}));
        let no_master = tap(&json!({"ipam": v4(), "bridge": "br0"}));
        let cases: [(Value, &str, u32, &str); 3] = [
            (unreachable, "", 999, "unreachable"),
            (no_master, "link add br0 type veth peer name other", 7, "not a bridge"),
            (tap(&json!({"ipam": v4()})), "link add eth0 type veth peer name other", 999, "exists"),
        ];
        for (config, before, code, words) in &cases {
            let world = world(1);
            if !before.is_empty() {
                world.in_pod(1, before);
            }
            let before = world.snapshot().without_bookkeeping();
            world.call(config, 1).add().fails_with(*code, words);
            let changes = before.changes_to(&world.snapshot().without_bookkeeping());
            assert_eq!(changes, Vec::<String>::new(), "{words}");
        }
    });
}

fn assert_check_detects(line: &str, words: &str) {
    let world = world(1);
    world.in_pod(1, "link add br0 type bridge");
    let routes = json!({"routes": [{"dst": "192.0.2.0/24"}]});
    let keys = json!({"mtu": 1400, "bridge": "br0", "ipam": with(v4(), &routes)});
    let call = world.call(&tap(&keys), 1);
    let result = call.add().result();
    call.check(&result).ok();
    line.split(';').for_each(|line| drop(world.in_pod(1, line)));
    call.check(&result).fails_with(if words.contains("not a bridge") { 7 } else { 999 }, words);
    call.del(&result).ok();
    assert_eq!(taps(&world, 1), 0, "{line}");
}

#[test]
fn tap_check_of_damaged_interface_fails() {
    in_netns(|| {
        assert_check_detects("link set eth0 down", "eth0 is down");
        assert_check_detects("link set eth0 mtu 1300", "MTU 1300, expected 1400");
        assert_check_detects("link set eth0 address 02:00:00:00:00:99", "02:00:00:00:00:99");
        assert_check_detects("link set eth0 nomaster", "not a port of bridge br0");
        assert_check_detects("link del br0;link add br0 type veth peer name x", "not a bridge");
        assert_check_detects("addr flush dev eth0", "10.1.0.2/24 is missing");
        assert_check_detects("route del 192.0.2.0/24", "route to 192.0.2.0/24 is missing");
        assert_check_detects("link del eth0", "eth0 does not exist");
        let world = world(1);
        let call = world.call(&tap(&json!({"ipam": v4()})), 1);
        let result = call.add().result();
        call.run("CHECK").fails_with(7, "prevResult");
        fs::remove_file("/run/data/net/10.1.0.2").expect("remove the address file");
        call.check(&result).fails_with(999, "Failed to find address");
        world.in_pod(1, "link del eth0");
        let mac = result["interfaces"][0]["mac"].as_str().expect("a MAC address");
        world.in_pod(1, &format!("link add eth0 address {mac} type veth peer name x"));
        let plain = call.config(&tap(&json!({})));
        plain.check(&without(result, &["ips"])).fails_with(999, "not of type tun");
    });
}

#[test]
fn tap_status_and_gc_agree_with_add() {
    in_netns(|| {
        let world = world(1);
        let small = ranges(&json!([[{"subnet": "10.1.0.0/30"}]]));
        let call = world.call(&tap(&json!({"ipam": small})), 1);
        call.status().ok();
        let result = call.add().result();
        call.status().fails_with(50, "no IP addresses available");
        call.gc(&[("c1", "eth0")]).ok();
        call.run("GC").ok();
        call.check(&result).ok();
        call.gc(&[]).ok();
        assert!(world.disk().without_bookkeeping().0.is_empty());
        let plain = call.config(&tap(&json!({})));
        plain.status().ok();
        let labelled = call.config(&tap(&json!({"selinuxContext": "a:b:c:s0"})));
        labelled.status().fails_with(50, "SELinux is not enabled");
        run("mount", &["-t", "tmpfs", "none", "/dev/net"]);
        plain.status().fails_with(50, "/dev/net/tun");
        plain.ifname("eth1").add().fails_with(999, "create tap eth1");
    });
}

#[test]
fn taps_are_taken_over_between_go_and_podwire() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let config = tap(&json!({"ipam": v4()}));
        for (before, after) in [(&go, &ours), (&ours, &go)] {
            let world = world(1);
            let result = world.call_of(before, &config, 1).add().result();
            world.call_of(after, &config, 1).check(&result).ok();
            world.call_of(after, &config, 1).del(&result).ok();
            assert_gone(&world);
        }
    });
}
