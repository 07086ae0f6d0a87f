// SPDX-License-Identifier: Apache-2.0
//! tuning: DEL restores everything that ADD changed.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{in_netns, run};

use super::links;
use crate::conf::{ETH0_SETUP, chained, macvlan, network, tap, with};
use crate::world::{Plugins, World};

const DATA_DIR: &str = "/run/data/tuning";
const BACKUP: &str = "/run/data/tuning/c1_eth0.json";

fn tuning(more: &Value) -> Value {
    with(chained("tuning", &json!({"dataDir": DATA_DIR})), more)
}

fn world() -> World {
    let world = World::new(&Plugins::ours(), 1);
    ETH0_SETUP.iter().for_each(|line| drop(world.in_pod(1, line)));
    world
}

fn link(world: &World) -> Value {
    world.pod(1).ip_json(&["link", "show", "eth0"])[0].clone()
}

#[test]
fn tuning_second_add_keeps_first_backup() {
    in_netns(|| {
        let world = world();
        let before = world.snapshot().without_bookkeeping();
        let first = world.call(&tuning(&json!({"mtu": 1400})), 1);
        first.add().ok();
        let second = world.call(&tuning(&json!({"mtu": 1300, "txQLen": 7})), 1);
        second.add().ok();
        assert_eq!((&link(&world)["mtu"], &link(&world)["txqlen"]), (&json!(1300), &json!(7)));
        let refused = world.call(&tuning(&json!({"mtu": 9, "promisc": true})), 1);
        let saved = fs::read_to_string(BACKUP).expect("read the backup");
        refused.add().fails_with(999, "eth0");
        assert_eq!(fs::read_to_string(BACKUP).expect("read the backup"), saved);
        second.run("DEL").ok();
        let changes = before.changes_to(&world.snapshot().without_bookkeeping());
        assert!(changes.is_empty(), "{changes:#?}");
    });
}

/// CHECK of the previous plugin accepts the MTU set by tuning although its own configuration has
/// another MTU.
#[test]
fn check_of_interface_with_tuned_mtu_succeeds() {
    in_netns(|| {
        let plugins = Plugins::ours();
        for version in ["1.0.0", "1.1.0"] {
            for kind in [macvlan, tap] {
                let world = links::world(&plugins, 1);
                let config = kind(&json!({"mtu": 1400, "cniVersion": version}));
                let keys = json!({"cniVersion": version, "dataDir": DATA_DIR, "mtu": 1300});
                let (interface, tuning) = (world.call(&config, 1), network("tuning", &keys));
                let tuning = world.call(&tuning, 1);
                let result = tuning.with_prev_result(&interface.add().result()).add().result();
                interface.check(&result).ok();
                tuning.check(&result).ok();
                world.in_pod(1, "link set eth0 mtu 1200");
                tuning.check(&result).fails_with(999, "1200");
                if version == "1.1.0" {
                    interface.check(&result).fails_with(999, "has MTU 1200, expected 1300");
                }
            }
        }
    });
}

#[test]
fn tuning_del_without_namespace_removes_backup() {
    in_netns(|| {
        let world = world();
        let call = world.call(&tuning(&json!({"mtu": 1400})), 1);
        for netns in ["", "/run/netns/gone", "/run/plain"] {
            fs::write("/run/plain", "").expect("write a file in /run");
            call.add().ok();
            assert!(Path::new(BACKUP).exists());
            call.netns(netns).run("DEL").ok();
            call.netns(netns).run("DEL").ok();
            assert!(!Path::new(BACKUP).exists(), "{netns:?}");
        }
        fs::write(BACKUP, "{\"mtu\": 15").expect("write a truncated backup");
        call.run("DEL").ok();
        assert!(!Path::new(BACKUP).exists(), "truncated backup");
    });
}

/// If the kernel rejects one attribute, DEL still restores the others and succeeds.
#[test]
fn tuning_del_with_rejected_value_restores_others() {
    in_netns(|| {
        let world = world();
        let call = world.call(&tuning(&json!({"mtu": 1400, "txQLen": 7})), 1);
        call.add().ok();
        let broken = fs::read_to_string(BACKUP).expect("read the backup").replace("1500", "9");
        fs::write(BACKUP, broken).expect("write the backup");
        call.run("DEL").ok();
        assert_eq!((&link(&world)["mtu"], &link(&world)["txqlen"]), (&json!(1400), &json!(1000)));
    });
}

#[test]
fn tuning_is_undone_between_go_and_podwire() {
    in_netns(|| {
        let world = world();
        let before = world.snapshot().without_bookkeeping();
        let config = tuning(&json!({"mac": "02:00:00:00:00:07", "mtu": 1400, "promisc": true,
            "allmulti": true, "txQLen": 7}));
        let ours = world.call(&config, 1);
        let go = world.call_of(&Plugins::go(), &config, 1);
        for (adds, dels) in [(&ours, &go), (&go, &ours)] {
            let result = adds.add().result();
            adds.check(&result).ok();
            dels.check(&result).ok();
            dels.del(&result).ok();
            let changes = before.changes_to(&world.snapshot().without_bookkeeping());
            assert!(changes.is_empty(), "{changes:#?}");
        }
    });
}

#[test]
fn tuning_gc_removes_unlisted_backups_of_network() {
    in_netns(|| {
        let world = world();
        let call = world.call(&tuning(&json!({"mtu": 1400})), 1);
        call.add().ok();
        call.container("c2").add().ok();
        let other = world.call(&tuning(&json!({"mtu": 1400, "name": "other"})), 1);
        other.container("c3").add().ok();
        fs::write(format!("{DATA_DIR}/c4_eth0.json"), "{\"mtu\": 1500}")
            .expect("write a backup of the Go plugin");
        let files = || {
            let entries = fs::read_dir(DATA_DIR).expect("read the backup directory");
            let names = entries.map(|entry| entry.expect("read a directory entry").file_name());
            let mut names: Vec<String> = names.map(|n| n.to_string_lossy().into()).collect();
            names.sort();
            names
        };
        call.run("GC").ok();
        assert_eq!(files().len(), 4, "GC without a list removed a backup");
        call.gc(&[("c1", "eth0"), ("c2", "eth1")]).ok();
        assert_eq!(files(), ["c1_eth0.json", "c3_eth0.json", "c4_eth0.json"]);
        call.gc(&[]).ok();
        assert_eq!(files(), ["c3_eth0.json", "c4_eth0.json"]);
    });
}

#[test]
fn tuning_sysctl_outside_allowlist_is_rejected() {
    in_netns(|| {
        let world = world();
        run("mount", &["-t", "tmpfs", "tmpfs", "/etc"]);
        fs::create_dir_all("/etc/cni/tuning").expect("create a directory on the tmpfs");
        let list = |text: &str| {
            fs::write("/etc/cni/tuning/allowlist.conf", text).expect("write a file on the tmpfs");
        };
        let config = tuning(&json!({"mtu": 1400,
            "sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1", "net.ipv4.ip_forward": "1"}}));
        let call = world.call(&config, 1);
        let before = world.snapshot();
        list("^net\\.ipv4\\.conf\\..*\n");
        call.add().fails_with(7, "Sysctl net.ipv4.ip_forward is not allowed");
        call.status().fails_with(7, "Sysctl net.ipv4.ip_forward is not allowed");
        list("net.ipv4.(\n");
        call.add().fails_with(7, "not a regular expression");
        let by_args = with(
            tuning(&json!({})),
            &json!({"args": {"cni": {"sysctl": {
            "net.ipv4.ip_forward": "1"}}}}),
        );
        list("arp_notify\n");
        world.call(&by_args, 1).add().fails_with(7, "not allowed");
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
        list("  ^net\\.ipv4\\.ip_forward$ \n\narp_notify\n");
        call.status().ok();
        let result = call.add().result();
        list("");
        call.check(&result).ok();
        call.del(&result).ok();
    });
}

/// The result contains the new values for the container's interface, not for the host's.
#[test]
fn tuning_result_contains_new_mac_and_mtu() {
    in_netns(|| {
        let world = world();
        let config = tuning(&json!({"mac": "02-00-00-00-00-0B", "mtu": 1400}));
        let mut result = config["prevResult"].clone();
        result["interfaces"] = json!([
            {"name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1500},
            {"name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1500,
                "sandbox": "/run/netns/pod1"}]);
        let call = world.call(&config, 1).with_prev_result(&result);
        let tuned = call.add().result();
        assert_eq!(tuned["interfaces"][0]["mac"], "02:00:00:00:00:01", "the host's eth0");
        let mac = "02:00:00:00:00:0b";
        assert_eq!(tuned["interfaces"][1]["mac"], mac);
        assert_eq!(tuned["interfaces"][1]["mtu"], 1400);
        assert_eq!(link(&world)["address"], mac);
        call.check(&tuned).ok();
    });
}

/// `/var/run` is often a symlink to `/run`, and some results have no sandbox.
#[test]
fn tuning_result_with_any_sandbox_path_is_updated() {
    in_netns(|| {
        let world = world();
        fs::create_dir_all("/run/other").expect("create a directory in /run");
        std::os::unix::fs::symlink("/run/netns", "/run/other/netns")
            .expect("create a symlink in /run");
        let config = tuning(&json!({"mac": "02:00:00:00:00:0b"}));
        for sandbox in ["/run/netns/pod1", "/run/other/netns/pod1", "", "/run/netns/unknown"] {
            let mut result = config["prevResult"].clone();
            result["interfaces"][0]["sandbox"] = json!(sandbox);
            for plugins in [Plugins::go(), Plugins::ours()] {
                let call = world.call_of(&plugins, &config, 1).with_prev_result(&result);
                let tuned = call.add().result();
                assert_eq!(tuned["interfaces"][0]["mac"], "02:00:00:00:00:0b", "{sandbox:?}");
                call.del(&tuned).ok();
            }
        }
    });
}

/// A container that ended without a DEL left its backup, and a new container has the same id.
#[test]
fn tuning_backup_of_another_namespace_is_ignored() {
    in_netns(|| {
        for plugins in [Plugins::go(), Plugins::ours()] {
            let old = world();
            let call = |world: &World| world.call_of(&plugins, &tuning(&json!({"mtu": 1400})), 1);
            old.in_pod(1, "link set eth0 mtu 1280");
            call(&old).add().ok();
            let saved = fs::read(BACKUP).expect("read the backup");
            drop(old);
            let new = world();
            fs::create_dir_all(DATA_DIR).expect("create a directory in /run");
            fs::write(BACKUP, saved).expect("write the stale backup");
            call(&new).add().ok();
            call(&new).run("DEL").ok();
            assert_eq!(link(&new)["mtu"], 1500, "{plugins:?}");
        }
        // A DEL without an ADD in the new namespace changes nothing there.
        let old = world();
        let call = |world: &World| world.call(&tuning(&json!({"mtu": 1400})), 1);
        old.in_pod(1, "link set eth0 mtu 1280");
        call(&old).add().ok();
        let saved = fs::read(BACKUP).expect("read the backup");
        drop(old);
        let new = world();
        fs::create_dir_all(DATA_DIR).expect("create a directory in /run");
        fs::write(BACKUP, saved).expect("write the stale backup");
        call(&new).run("DEL").ok();
        assert_eq!(link(&new)["mtu"], 1500);
        assert!(!Path::new(BACKUP).exists());
    });
}

#[test]
fn tuning_with_duplicate_sysctl_is_rejected() {
    in_netns(|| {
        let world = world();
        let config = tuning(&json!({"sysctl": {"net.ipv4.ip_forward": "1"}}));
        let twice = r#"{"net.ipv4.ip_forward":"1","net.ipv4.ip_forward":"1"}"#;
        let text = config.to_string().replace(r#"{"net.ipv4.ip_forward":"1"}"#, twice);
        assert!(text.contains(twice));
        let words = "duplicated sysctl keys are not allowed";
        for verb in ["ADD", "CHECK"] {
            let by_go = world.call_of(&Plugins::go(), &config, 1).run_raw(verb, text.as_bytes());
            assert!(!by_go.success && by_go.stdout.contains(words), "{}", by_go.stdout);
            world.call(&config, 1).run_raw(verb, text.as_bytes()).fails_with(7, words);
        }
        world.call(&config, 1).run_raw("DEL", text.as_bytes()).ok();
        // Two names of the same sysctl: the Go plugin writes both in random order.
        let sysctls = |value: &str| {
            tuning(&json!({"sysctl": {"net.ipv4.ip_forward": "1", "net/ipv4/ip_forward": value}}))
        };
        world.call(&sysctls("0"), 1).add().fails_with(7, words);
        world.call(&sysctls("1"), 1).add().ok();
        // The runtime's value overrides the configuration, whichever name is used.
        let by_args = json!({"sysctl": {"net.ipv4.ip_forward": "1"},
            "args": {"cni": {"sysctl": {"net/ipv4/ip_forward": "0"}}}});
        let call = world.call(&tuning(&by_args), 1);
        let result = call.add().result();
        call.check(&result).ok();
        let path = "/proc/sys/net/ipv4/ip_forward";
        assert_eq!(run("nsenter", &["--net=/run/netns/pod1", "cat", path]).trim(), "0");
    });
}

#[test]
fn tuning_check_of_changed_sysctl_fails() {
    in_netns(|| {
        let world = world();
        let config = tuning(&json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1",
            "net.ipv4.route.flush": "1"}}));
        let call = world.call(&config, 1);
        let result = call.add().result();
        call.check(&result).ok();
        let path = "/proc/sys/net/ipv4/conf/eth0/arp_notify";
        run("nsenter", &["--net=/run/netns/pod1", "sh", "-c", &format!("echo 0 > {path}")]);
        call.check(&result).fails_with(999, "arp_notify is 1, current value is 0");
    });
}
