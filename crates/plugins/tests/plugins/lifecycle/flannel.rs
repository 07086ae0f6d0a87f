// SPDX-License-Identifier: Apache-2.0
//! flannel: the delegate's configuration, from the daemon's file and from the one kept. Debian's Go
//! plugins do not hold it, so that what it writes is compared with what its sources say.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::in_netns;

use crate::call::Call;
use crate::conf::network;
use crate::snapshot::Snapshot;
use crate::world::{Plugins, World};

const PLACE: &str = "/run/data/flannel";

const SUBNET_ENV: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
    FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\n\
    FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

/// What the Go plugin keeps for [`config`], by its sources.
const KEPT: &str = "{\"bridge\":\"br0\",\"cniVersion\":\"1.1.0\",\"ipMasq\":false,\"ipam\":{\
    \"dataDir\":\"/run/data\",\"ranges\":[[{\"subnet\":\"10.244.1.0/24\"}],\
    [{\"subnet\":\"fd00:244:0:1::/64\"}]],\"routes\":[{\"dst\":\"10.244.0.0/16\"},\
    {\"dst\":\"fd00:244::/48\"}],\"type\":\"host-local\"},\"isGateway\":true,\"mtu\":1450,\
    \"name\":\"net\",\"type\":\"bridge\"}";

fn config(more: &Value) -> Value {
    let base = json!({"dataDir": PLACE, "delegate": {"bridge": "br0"},
        "ipam": {"dataDir": "/run/data"}});
    crate::conf::with(network("flannel", &base), more)
}

fn daemon_says(text: &str) {
    fs::create_dir_all("/run/flannel").expect("a directory below /run");
    fs::write("/run/flannel/subnet.env", text).expect("a file below /run");
}

fn world(pods: usize) -> World {
    daemon_says(SUBNET_ENV);
    World::new(&Plugins::ours(), pods)
}

/// The daemon's subnet changes while a pod is there. The error's hint is followed to the letter.
#[test]
fn hint_for_a_bridge_of_another_subnet_works() {
    in_netns(|| {
        let world = world(2);
        let config = config(&json!({"delegate": {"bridge": "cni0"}}));
        let (old, new) = (world.call(&config, 1), world.call(&config, 2));
        let result = old.add().result();
        daemon_says(&SUBNET_ENV.replace("10.244.1.1", "10.244.2.1").replace(":1::1/", ":2::1/"));
        let refused = new.add();
        refused.fails_with(7, "\"cni0\" already has an IP address different from 10.244.2.1/24");
        let details = refused.values[0]["details"].as_str().expect("details").to_owned();
        let hint = overlay::stale_bridge::hint("cni0");
        assert_eq!(details, format!("it has 10.244.1.1/24; {hint}"));
        assert!(hint.starts_with("delete the pods that are attached to cni0"), "{hint}");
        old.del(&result).ok();
        let command = hint.split('`').nth(1).expect("a command");
        world.on_host(command.strip_prefix("ip ").expect("a command of ip"));
        let result = new.add().result();
        let bridge = world.host.ip_json(&["address", "show", "dev", "cni0"])[0].to_string();
        assert!(bridge.contains("10.244.2.1") && !bridge.contains("10.244.1.1"), "{bridge}");
        new.del(&result).ok();
    });
}

fn kept() -> Vec<String> {
    let Ok(entries) = fs::read_dir(PLACE) else { return Vec::new() };
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into()).collect();
    names.sort();
    names
}

/// How many veths the host has, and how many addresses are reserved.
fn count(world: &World) -> (usize, usize) {
    let Snapshot(facts) = world.snapshot().without_bookkeeping();
    let count = |is_one: &dyn Fn(&str) -> bool| facts.keys().filter(|name| is_one(name)).count();
    let is_veth = |name: &str| name.starts_with("host/veth") && name.ends_with("/ifname");
    (count(&is_veth), count(&|name| name.starts_with("disk/net/")))
}

#[test]
fn flannel_configures_a_bridge_by_the_daemons_subnet() {
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
        let file = Path::new(PLACE).join("c1");
        assert_eq!(fs::read_to_string(&file).expect("the kept configuration"), KEPT);
        call.check(&result).ok();
        call.del(&result).ok();
        call.del(&result).ok();
        assert_eq!((count(&world), kept()), ((0, 0), vec![]));
    });
}

#[test]
fn flannel_puts_the_configurations_own_words_first() {
    in_netns(|| {
        let world = world(1);
        let own = json!({"delegate": {"type": "ptp", "mtu": 1300, "ipMasq": false},
            "ipam": {"dataDir": "/run/data", "routes": [{"dst": "0.0.0.0/0"}]},
            "runtimeConfig": {"ips": ["10.244.1.77"]}});
        let call = world.call(&config(&own), 1);
        let result = call.add().result();
        assert_eq!(result["ips"][0]["address"], "10.244.1.77/24", "capabilities are handed on");
        let text = fs::read_to_string(Path::new(PLACE).join("c1")).expect("a file");
        let file: Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!((&file["type"], &file["mtu"]), (&json!("ptp"), &json!(1300)));
        assert_eq!(file["isGateway"], Value::Null, "a key of bridge");
        assert_eq!(file["ipam"]["routes"][0]["dst"], "0.0.0.0/0");
        assert_eq!(file["runtimeConfig"]["ips"][0], "10.244.1.77");
        call.del(&result).ok();
        assert_eq!(count(&world), (0, 0));
    });
}

#[test]
fn flannel_says_when_the_daemon_is_not_ready() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&config(&json!({})), 1);
        let before = world.snapshot();
        let fails = |call: &Call, code: u32, words: &str| {
            call.add().fails_with(code, words);
            call.status().fails_with(50, words);
        };
        fails(&call, 11, "daemon is not ready");
        daemon_says("");
        fails(&call, 11, "FLANNEL_MTU, FLANNEL_IPMASQ is missing");
        daemon_says(&SUBNET_ENV.replace("1450", "x"));
        fails(&call, 999, "FLANNEL_MTU is \"x\", expected a number");
        daemon_says(&SUBNET_ENV.replace("=true", ""));
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
            daemon_says(SUBNET_ENV);
            world.call(&config(&bad), 1).add().fails_with(7, words);
        }
    });
}

#[test]
fn del_of_flannel_needs_neither_daemon_nor_namespace_nor_result() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&config(&json!({})), 1);
        let file = Path::new(PLACE).join("c1");
        let lose = |text: &str| fs::write(&file, text).expect("the file can be written");
        type Before<'a> = &'a dyn Fn();
        let ways: [(&str, Before); 5] = [
            ("nothing is missing", &|| {}),
            ("daemon is away", &|| fs::remove_file("/run/flannel/subnet.env").expect("a file")),
            ("daemon has another subnet", &|| {
                daemon_says(&SUBNET_ENV.replace("244.1.1", "244.9.1"));
            }),
            ("file is empty", &|| lose("")),
            ("file is lost", &|| fs::remove_file(&file).expect("the file was there")),
        ];
        for (way, lose) in ways {
            for netns in ["/run/netns/pod1", ""] {
                daemon_says(SUBNET_ENV);
                call.add().ok();
                lose();
                call.netns(netns).run("DEL").ok();
                assert_eq!((count(&world), kept()), ((0, 0), vec![]), "{way}, {netns:?}");
            }
        }
    });
}

#[test]
fn interfaces_of_one_container_keep_files_of_their_own() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&config(&json!({})), 1);
        let (eth0, eth1) = (call.add().result(), call.ifname("eth1").add().result());
        assert_eq!(kept(), ["c1", "c1:eth1"]);
        call.ifname("eth1").del(&eth1).ok();
        call.ifname("eth1").del(&eth1).ok();
        call.ifname("net9").run("DEL").ok();
        assert_eq!((count(&world), kept()), ((1, 2), vec!["c1".to_owned()]));
        call.check(&eth0).ok();
        call.del(&eth0).ok();
        assert_eq!((count(&world), kept()), ((0, 0), vec![]));
    });
}

#[test]
fn failing_add_of_flannel_leaves_nothing() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&config(&json!({})), 1);
        for always_exec in [false, true] {
            let mut call = call.clone();
            call.always_exec = always_exec;
            let first = call.add().result();
            let after = world.snapshot();
            daemon_says(&SUBNET_ENV.replace("1450", "1300"));
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
fn flannel_asks_the_delegate() {
    in_netns(|| {
        let world = world(1);
        daemon_says(&SUBNET_ENV.replace("10.244.1.1/24", "10.244.1.1/30"));
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
fn gc_of_flannel_runs_the_dels_that_never_came() {
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
        assert_eq!(kept().len(), 4, "a runtime that says nothing loses nothing");
        // An address that no file of ours tells of is the delegate's to free.
        fs::write("/run/data/net/10.244.1.200", "c9\r\neth0").expect("a file of host-local's");
        fs::remove_file("/run/flannel/subnet.env").expect("the daemon's file");
        call(1).gc(&[("c1", "eth0")]).ok();
        assert_eq!((count(&world), kept()), ((2, 2), vec!["c1".to_owned(), "c3".to_owned()]));
        call(1).check(&first).ok();
        call(1).gc(&[]).ok();
        assert_eq!(kept(), ["c3"], "another network's");
    });
}

/// A node that changes its set of plugins while pods run.
#[test]
fn flannel_deletes_what_the_go_plugins_have_made() {
    in_netns(|| {
        let world = world(1);
        let go = Plugins::go();
        let configured = config(&json!({}));
        let call = world.call(&configured, 1);
        // As Go's flannel does it: keeps the file, and has Go's bridge add the interface.
        let delegate: Value = serde_json::from_str(KEPT).expect("JSON");
        for ifname in ["eth0", "net1"] {
            fs::create_dir_all(PLACE).expect("a directory below /run");
            fs::write(Path::new(PLACE).join("c1"), KEPT).expect("a file below /run");
            let result = world.call_of(&go, &delegate, 1).ifname(ifname).add().result();
            call.ifname(ifname).check(&result).ok();
            call.ifname(ifname).del(&result).ok();
            assert_eq!(count(&world), (0, 0), "{ifname}");
        }
        // Our flannel with Go's delegates.
        let mixed = call.path(&[go.directory()]);
        let result = mixed.add().result();
        mixed.check(&result).ok();
        mixed.del(&result).ok();
        assert_eq!((count(&world), kept()), ((0, 0), vec![]));
    });
}
