// SPDX-License-Identifier: Apache-2.0
//! flannel: the delegate's configuration, built from the daemon's subnet file at ADD and saved for
//! DEL. Debian's Go plugins do not include flannel, so the saved file is compared with the format
//! in its source code.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::in_netns;

use crate::call::Call;
use crate::conf::network;
use crate::snapshot::Snapshot;
use crate::world::{Plugins, World};

const DATA_DIR: &str = "/run/data/flannel";

const SUBNET_ENV: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
    FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\n\
    FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

/// Delegate configuration that the Go plugin saves for [`config`], according to its source code.
const SAVED_CONF: &str = "{\"bridge\":\"br0\",\"cniVersion\":\"1.1.0\",\"ipMasq\":false,\"ipam\":{\
    \"dataDir\":\"/run/data\",\"ranges\":[[{\"subnet\":\"10.244.1.0/24\"}],\
    [{\"subnet\":\"fd00:244:0:1::/64\"}]],\"routes\":[{\"dst\":\"10.244.0.0/16\"},\
    {\"dst\":\"fd00:244::/48\"}],\"type\":\"host-local\"},\"isGateway\":true,\"mtu\":1450,\
    \"name\":\"net\",\"type\":\"bridge\"}";

fn config(more: &Value) -> Value {
    let base = json!({"dataDir": DATA_DIR, "delegate": {"bridge": "br0"},
        "ipam": {"dataDir": "/run/data"}});
    crate::conf::with(network("flannel", &base), more)
}

fn write_subnet_env(text: &str) {
    fs::create_dir_all("/run/flannel").expect("create a directory in /run");
    fs::write("/run/flannel/subnet.env", text).expect("write a file in /run");
}

fn world(pods: usize) -> World {
    write_subnet_env(SUBNET_ENV);
    World::new(&Plugins::ours(), pods)
}

/// The daemon's subnet changes while a pod exists. The test runs the command given in the error's
/// hint.
#[test]
fn hint_for_bridge_with_old_subnet_works() {
    in_netns(|| {
        let world = world(2);
        let config = config(&json!({"delegate": {"bridge": "cni0"}}));
        let (old, new) = (world.call(&config, 1), world.call(&config, 2));
        let result = old.add().result();
        write_subnet_env(
            &SUBNET_ENV.replace("10.244.1.1", "10.244.2.1").replace(":1::1/", ":2::1/"),
        );
        let refused = new.add();
        refused.fails_with(7, "\"cni0\" already has an IP address different from 10.244.2.1/24");
        let details = refused.values[0]["details"].as_str().expect("details").to_owned();
        let hint = overlay::stale_bridge::hint("cni0");
        assert_eq!(details, format!("it has 10.244.1.1/24; {hint}"));
        assert!(hint.starts_with("delete the pods that are attached to cni0"), "{hint}");
        old.del(&result).ok();
        let command = hint.split('`').nth(1).expect("a command");
        world.on_host(command.strip_prefix("ip ").expect("an ip command"));
        let result = new.add().result();
        let bridge = world.host.ip_json(&["address", "show", "dev", "cni0"])[0].to_string();
        assert!(bridge.contains("10.244.2.1") && !bridge.contains("10.244.1.1"), "{bridge}");
        new.del(&result).ok();
    });
}

fn saved_files() -> Vec<String> {
    let Ok(entries) = fs::read_dir(DATA_DIR) else { return Vec::new() };
    let names = entries.map(|entry| entry.expect("read a directory entry").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into()).collect();
    names.sort();
    names
}

/// Number of host veths and number of reserved addresses.
fn count(world: &World) -> (usize, usize) {
    let Snapshot(facts) = world.snapshot().without_bookkeeping();
    let count = |is_one: &dyn Fn(&str) -> bool| facts.keys().filter(|name| is_one(name)).count();
    let is_veth = |name: &str| name.starts_with("host/veth") && name.ends_with("/ifname");
    (count(&is_veth), count(&|name| name.starts_with("disk/net/")))
}

#[test]
fn flannel_add_configures_bridge_from_subnet_env() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&config(&json!({})), 1);
        call.status().ok();
        let result = call.add().result();
        let addresses = [&result["ips"][0]["address"], &result["ips"][1]["address"]];
        assert_eq!(addresses, ["10.244.1.2/24", "fd00:244:0:1::2/64"]);
        let link = world.pod(1).ip_json(&["link", "show", "eth0"])[0].clone();
        assert_eq!(link["mtu"], 1450);
        let route = world.pod(1).ip_json(&["route", "show", "10.244.0.0/16"])[0].clone();
        assert_eq!(route["gateway"], "10.244.1.1");
        let file = Path::new(DATA_DIR).join("c1");
        assert_eq!(fs::read_to_string(&file).expect("read the saved configuration"), SAVED_CONF);
        call.check(&result).ok();
        call.del(&result).ok();
        call.del(&result).ok();
        assert_eq!((count(&world), saved_files()), ((0, 0), vec![]));
    });
}

#[test]
fn flannel_configured_keys_override_daemon_values() {
    in_netns(|| {
        let world = world(1);
        let own = json!({"delegate": {"type": "ptp", "mtu": 1300, "ipMasq": false},
            "ipam": {"dataDir": "/run/data", "routes": [{"dst": "0.0.0.0/0"}]},
            "runtimeConfig": {"ips": ["10.244.1.77"]}});
        let call = world.call(&config(&own), 1);
        let result = call.add().result();
        assert_eq!(
            result["ips"][0]["address"], "10.244.1.77/24",
            "runtimeConfig is not passed to the delegate"
        );
        let text = fs::read_to_string(Path::new(DATA_DIR).join("c1")).expect("a file");
        let file: Value = serde_json::from_str(&text).expect("the file is JSON");
        assert_eq!((&file["type"], &file["mtu"]), (&json!("ptp"), &json!(1300)));
        assert_eq!(file["isGateway"], Value::Null, "isGateway is a key of bridge only");
        assert_eq!(file["ipam"]["routes"][0]["dst"], "0.0.0.0/0");
        assert_eq!(file["runtimeConfig"]["ips"][0], "10.244.1.77");
        call.del(&result).ok();
        assert_eq!(count(&world), (0, 0));
    });
}

#[test]
fn flannel_without_daemon_reports_cause() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&config(&json!({})), 1);
        let before = world.snapshot();
        let fails = |call: &Call, code: u32, words: &str| {
            call.add().fails_with(code, words);
            call.status().fails_with(50, words);
        };
        fails(&call, 11, "daemon is not ready");
        write_subnet_env("");
        fails(&call, 11, "FLANNEL_MTU, FLANNEL_IPMASQ is missing");
        write_subnet_env(&SUBNET_ENV.replace("1450", "x"));
        fails(&call, 999, "FLANNEL_MTU is \"x\", expected a number");
        write_subnet_env(&SUBNET_ENV.replace("=true", ""));
        fails(&call, 999, "\"FLANNEL_IPMASQ\" has no '='");
        call.run("DEL").ok();
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
        for (bad, words) in [
            (json!({"delegate": {"name": "x"}}), "must not hold \"name\""),
            (json!({"delegate": {"ipam": {}}}), "must not hold \"ipam\""),
            (json!({"delegate": {"type": 7}}), "\"delegate.type\" is 7"),
            (json!({"delegate": []}), "\"delegate\" is []"),
            (json!({"ipam": "x"}), "\"ipam\" is \"x\""),
            (json!({"ipam": {"routes": [{"dst": "x"}]}}), "ipam.routes[0].dst"),
            (json!({"subnetFile": 7}), "\"subnetFile\" is 7"),
        ] {
            write_subnet_env(SUBNET_ENV);
            world.call(&config(&bad), 1).add().fails_with(7, words);
        }
    });
}

#[test]
fn flannel_del_with_missing_state_removes_everything() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&config(&json!({})), 1);
        let file = Path::new(DATA_DIR).join("c1");
        let overwrite = |text: &str| fs::write(&file, text).expect("write the file");
        type Before<'a> = &'a dyn Fn();
        let cases: [(&str, Before); 5] = [
            ("nothing is missing", &|| {}),
            ("subnet file is missing", &|| {
                fs::remove_file("/run/flannel/subnet.env").expect("remove the file");
            }),
            ("daemon has another subnet", &|| {
                write_subnet_env(&SUBNET_ENV.replace("244.1.1", "244.9.1"));
            }),
            ("saved file is empty", &|| overwrite("")),
            ("saved file is missing", &|| fs::remove_file(&file).expect("remove the file")),
        ];
        for (name, break_state) in cases {
            for netns in ["/run/netns/pod1", ""] {
                write_subnet_env(SUBNET_ENV);
                call.add().ok();
                break_state();
                call.netns(netns).run("DEL").ok();
                assert_eq!((count(&world), saved_files()), ((0, 0), vec![]), "{name}, {netns:?}");
            }
        }
    });
}

#[test]
fn flannel_interfaces_have_separate_saved_files() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&config(&json!({})), 1);
        let (eth0, eth1) = (call.add().result(), call.ifname("eth1").add().result());
        assert_eq!(saved_files(), ["c1", "c1:eth1"]);
        call.ifname("eth1").del(&eth1).ok();
        call.ifname("eth1").del(&eth1).ok();
        call.ifname("net9").run("DEL").ok();
        assert_eq!((count(&world), saved_files()), ((1, 2), vec!["c1".to_owned()]));
        call.check(&eth0).ok();
        call.del(&eth0).ok();
        assert_eq!((count(&world), saved_files()), ((0, 0), vec![]));
    });
}

#[test]
fn flannel_failed_add_leaves_nothing() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&config(&json!({})), 1);
        for always_exec in [false, true] {
            let mut call = call.clone();
            call.always_exec = always_exec;
            let first = call.add().result();
            let after = world.snapshot();
            write_subnet_env(&SUBNET_ENV.replace("1450", "1300"));
            call.add().fails_with(999, "already exists");
            assert_eq!(after.changes_to(&world.snapshot()), Vec::<String>::new());
            call.check(&first).ok();
            call.del(&first).ok();
            let before = world.snapshot().without_bookkeeping();
            let far = json!({"ipam": {"dataDir": "/run/data",
                "routes": [{"dst": "192.0.2.0/24", "gw": "10.99.0.1"}]}});
            call.config(&config(&far)).add().fails_with(999, "unreachable");
            let nowhere = json!({"delegate": {"type": "nowhere"}});
            call.config(&config(&nowhere)).add().fails_with(7, "nowhere");
            let changes = before.changes_to(&world.snapshot().without_bookkeeping());
            assert!(changes.is_empty(), "{changes:#?}");
        }
    });
}

#[test]
fn flannel_status_and_check_call_delegate() {
    in_netns(|| {
        let world = world(1);
        write_subnet_env(&SUBNET_ENV.replace("10.244.1.1/24", "10.244.1.1/30"));
        let call = world.call(&config(&json!({})), 1);
        let result = call.add().result();
        call.status().fails_with(50, "no IP addresses available");
        call.check(&result).ok();
        call.run("CHECK").fails_with(7, "prevResult");
        world.in_pod(1, "route del 10.244.0.0/16");
        call.check(&result).fails_with(999, "route to 10.244.0.0/16");
        call.del(&result).ok();
        call.status().ok();
    });
}

#[test]
fn flannel_gc_deletes_unlisted_attachments() {
    in_netns(|| {
        let world = world(3);
        let configured = config(&json!({}));
        let call = |pod: usize| world.call(&configured, pod);
        let other = config(&json!({"name": "other", "delegate": {"bridge": "br1"}}));
        let first = call(1).add().result();
        call(2).add().ok();
        call(2).ifname("eth1").add().ok();
        world.call(&other, 3).add().ok();
        call(1).run("GC").ok();
        assert_eq!(saved_files().len(), 4, "GC without a list removed an attachment");
        // An address without a saved file is released by the delegate's GC.
        fs::write("/run/data/net/10.244.1.200", "c9\r\neth0").expect("write an address file");
        fs::remove_file("/run/flannel/subnet.env").expect("remove the daemon's file");
        call(1).gc(&[("c1", "eth0")]).ok();
        assert_eq!(
            (count(&world), saved_files()),
            ((2, 2), vec!["c1".to_owned(), "c3".to_owned()])
        );
        call(1).check(&first).ok();
        call(1).gc(&[]).ok();
        assert_eq!(saved_files(), ["c3"], "GC removed an attachment of another network");
    });
}

/// Switching a node between plugin sets while pods run.
#[test]
fn flannel_del_removes_attachment_of_go_plugins() {
    in_netns(|| {
        let world = world(1);
        let go = Plugins::go();
        let configured = config(&json!({}));
        let call = world.call(&configured, 1);
        // Imitates Go's flannel: saves the file and calls Go's bridge.
        let delegate: Value = serde_json::from_str(SAVED_CONF).expect("JSON");
        for ifname in ["eth0", "net1"] {
            fs::create_dir_all(DATA_DIR).expect("create a directory in /run");
            fs::write(Path::new(DATA_DIR).join("c1"), SAVED_CONF).expect("write a file in /run");
            let result = world.call_of(&go, &delegate, 1).ifname(ifname).add().result();
            call.ifname(ifname).check(&result).ok();
            call.ifname(ifname).del(&result).ok();
            assert_eq!(count(&world), (0, 0), "{ifname}");
        }
        // podwire's flannel with Go's delegates.
        let mixed = call.path(&[go.directory()]);
        let result = mixed.add().result();
        mixed.check(&result).ok();
        mixed.del(&result).ok();
        assert_eq!((count(&world), saved_files()), ((0, 0), vec![]));
    });
}
