// SPDX-License-Identifier: Apache-2.0
//! DEL after state is missing or the configuration has changed since the ADD.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{in_netns, run, wait_for};

use crate::call::Call;
use crate::conf::{bridge, dual, ptp, with};
use crate::world::{DATA, Plugins, World};

fn configs() -> [Value; 2] {
    [bridge(&json!({"isGateway": true, "ipam": dual()})), ptp(&json!({"ipam": dual()}))]
}

fn veths(world: &World) -> Vec<String> {
    let links = world.host.ip_json(&["link", "show", "type", "veth"]);
    let links = links.as_array().expect("a list of links");
    links.iter().map(|link| link["ifname"].to_string()).collect()
}

fn addresses() -> Vec<String> {
    let entries = fs::read_dir(Path::new(DATA).join("net")).expect("host-local's directory");
    let names =
        entries.map(|entry| entry.expect("read a directory entry").file_name().into_string());
    let names = names.map(|name| name.expect("names are UTF-8"));
    names.filter(|name| name != "lock" && !name.starts_with("last_reserved_ip")).collect()
}

#[track_caller]
fn assert_gone(world: &World, what: &str) {
    assert_eq!(veths(world), Vec::<String>::new(), "{what}: interface left");
    assert_eq!(addresses(), Vec::<String>::new(), "{what}: addresses left");
}

/// For each network: runs ADD, then `del`, and asserts that nothing is left.
fn del_in_every_network(what: &str, del: impl Fn(&World, &Call, &Value)) {
    let plugins = Plugins::ours();
    for config in configs() {
        let world = World::new(&plugins, 1);
        let call = world.call(&config, 1);
        let result = call.add().result();
        del(&world, &call, &result);
        assert_gone(&world, what);
    }
}

#[test]
fn second_del_succeeds_without_output() {
    in_netns(|| {
        del_in_every_network("twice", |_, call, result| {
            for _ in 0..2 {
                let answer = call.del(result);
                answer.ok();
                assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("", ""));
            }
        });
    });
}

#[test]
fn del_without_valid_result_succeeds() {
    in_netns(|| {
        del_in_every_network("no prevResult", |_, call, _| call.run("DEL").ok());
        del_in_every_network("junk as prevResult", |_, call, _| {
            call.del(&json!({"ips": "junk", "cniVersion": 7})).ok();
        });
    });
}

#[test]
fn del_without_namespace_succeeds() {
    in_netns(|| {
        del_in_every_network("CNI_NETNS is empty", |_, call, result| {
            call.netns("").del(result).ok();
        });
        del_in_every_network("path is gone", |_, call, result| {
            call.netns("/run/netns/gone").del(result).ok();
        });
        del_in_every_network("path is a plain file", |world, call, result| {
            // A process keeps the namespace and its interface alive.
            let sleeper = world.pod(1).start("sleep", &["1000"]);
            let inside = format!("/proc/{}/ns/net", sleeper.id());
            let is_same = || same_file(&inside, "/run/netns/pod1");
            wait_for("the process to enter the pod's namespace", Duration::from_secs(30), is_same);
            run("umount", &["/run/netns/pod1"]);
            assert_eq!(veths(world).len(), 1);
            call.del(result).ok();
            assert_gone(world, "namespace still alive");
        });
    });
}

fn same_file(one: &str, other: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = |path: &str| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    inode(one).is_some() && inode(one) == inode(other)
}

#[test]
fn del_after_namespace_removal_succeeds() {
    in_netns(|| {
        del_in_every_network("namespace is removed", |_, call, result| {
            run("ip", &["netns", "del", "pod1"]);
            call.del(result).ok();
        });
    });
}

#[test]
fn del_with_changed_ranges_removes_everything() {
    in_netns(|| {
        let changed = [
            json!([[{"subnet": "10.1.0.0/32"}]]),
            json!([[{"subnet": "10.77.0.0/24"}]]),
            json!([]),
            json!("junk"),
        ];
        for ranges in changed {
            del_in_every_network(&ranges.to_string(), |_, call, result| {
                let ipam = with(call.config["ipam"].clone(), &json!({"ranges": ranges}));
                let config = with(call.config.clone(), &json!({"ipam": ipam}));
                call.config(&config).del(result).ok();
            });
        }
    });
}

/// If the IPAM plugin cannot be called, DEL reports that but removes the interface. A later DEL
/// with a working IPAM plugin releases the address.
#[test]
fn del_with_failing_ipam_removes_interface() {
    in_netns(|| {
        let (unreadable, missing) = (json!("host-local"), json!({"type": "nowhere"}));
        for (ipam, words) in [
            (unreadable, "key \"ipam\" is \"host-local\", expected an object"),
            (missing, "failed to find plugin \"nowhere\" in path"),
        ] {
            for verb in ["DEL", "GC"] {
                del_in_every_network(&format!("{verb}: {words}"), |world, call, _| {
                    let ask = |call: &Call| match verb {
                        "GC" => call.gc(&[]),
                        _ => call.run(verb),
                    };
                    let edited = with(call.config.clone(), &json!({"ipam": ipam}));
                    ask(&call.config(&edited)).fails_with(7, words);
                    assert_eq!(veths(world), Vec::<String>::new(), "{verb}");
                    ask(call).ok();
                });
            }
        }
    });
}

#[test]
fn del_of_one_interface_keeps_others() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let config = bridge(&json!({"ipam": dual()}));
        let (eth0, eth1) = (world.call(&config, 1), world.call(&config, 1).ifname("eth1"));
        let (first, second) = (eth0.add().result(), eth1.add().result());
        assert_ne!(first["ips"], second["ips"]);
        eth0.netns("").del(&Value::Null).ok();
        assert_eq!((veths(&world).len(), addresses().len()), (1, 2));
        eth1.check(&second).ok();
        eth1.del(&second).ok();
        assert_gone(&world, "both");
    });
}

/// A foreign host interface has the name that ADD would use.
#[test]
fn add_with_host_name_in_use_uses_another_name() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&bridge(&json!({})), 1);
        let first = call.add().result();
        call.del(&first).ok();
        let name = first["interfaces"][1]["name"].as_str().expect("a name").to_owned();
        world.on_host(&format!("link add {name} type veth peer name foreign"));
        let second = call.add().result();
        assert_ne!(second["interfaces"][1]["name"], name.as_str());
        call.check(&second).ok();
        call.del(&second).ok();
        assert_eq!(veths(&world).len(), 2, "the foreign veth pair is gone");
    });
}

#[test]
fn del_keeps_interface_of_another_attachment() {
    in_netns(|| {
        for config in configs() {
            let world = World::new(&Plugins::ours(), 1);
            let old = world.call(&config, 1).container("old");
            let old_result = old.add().result();
            // Simulates a new namespace at the same path.
            world.in_pod(1, "link del eth0");
            let new = world.call(&config, 1).container("new");
            let new_result = new.add().result();
            old.del(&old_result).ok();
            new.check(&new_result).ok();
            let other = with(config, &json!({"name": "other"}));
            world.call(&other, 1).container("new").run("DEL").ok();
            new.check(&new_result).ok();
            new.del(&new_result).ok();
            assert_gone(&world, "own interface");
        }
    });
}
