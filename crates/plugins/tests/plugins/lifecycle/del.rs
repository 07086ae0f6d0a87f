// SPDX-License-Identifier: Apache-2.0
//! DEL, whatever is missing or has changed since the ADD.

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

/// The names of the host's veths.
fn veths(world: &World) -> Vec<String> {
    let links = world.host.ip_json(&["link", "show", "type", "veth"]);
    let links = links.as_array().expect("a list of links");
    links.iter().map(|link| link["ifname"].to_string()).collect()
}

fn addresses() -> Vec<String> {
    let entries = fs::read_dir(Path::new(DATA).join("net")).expect("host-local's directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
    let names = names.map(|name| name.expect("names are text"));
    names.filter(|name| name != "lock" && !name.starts_with("last_reserved_ip")).collect()
}

#[track_caller]
fn assert_gone(world: &World, what: &str) {
    assert_eq!(veths(world), Vec::<String>::new(), "{what}: interface");
    assert_eq!(addresses(), Vec::<String>::new(), "{what}: addresses");
}

/// An ADD, then a DEL in some way, which must take all away, and another, which must not mind.
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
fn del_twice_is_quiet() {
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
fn del_needs_no_result() {
    in_netns(|| {
        del_in_every_network("no prevResult", |_, call, _| call.run("DEL").ok());
        del_in_every_network("junk as prevResult", |_, call, _| {
            call.del(&json!({"ips": "junk", "cniVersion": 7})).ok();
        });
    });
}

#[test]
fn del_needs_no_namespace() {
    in_netns(|| {
        del_in_every_network("CNI_NETNS is empty", |_, call, result| {
            call.netns("").del(result).ok();
        });
        del_in_every_network("path is gone", |_, call, result| {
            call.netns("/run/netns/gone").del(result).ok();
        });
        del_in_every_network("path is a plain file", |world, call, result| {
            // A process keeps the namespace, and with it the interface, alive.
            let keeper = world.pod(1).start("sleep", &["1000"]);
            let inside = format!("/proc/{}/ns/net", keeper.id());
            let is_same = || same_file(&inside, "/run/netns/pod1");
            wait_for("a process in the pod", Duration::from_secs(30), is_same);
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
fn del_works_after_the_namespace_is_removed() {
    in_netns(|| {
        del_in_every_network("namespace is removed", |_, call, result| {
            run("ip", &["netns", "del", "pod1"]);
            call.del(result).ok();
        });
    });
}

#[test]
fn del_works_when_the_configuration_has_changed() {
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

/// Nobody is there then to give the address back to, which is told; but the interface goes. The address
/// follows with the next one that finds somebody.
#[test]
fn an_ipam_that_cannot_be_asked_keeps_no_interface() {
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
fn del_takes_one_interface_of_several() {
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

/// Another container's namespace at the same path is not this one's to clean.
#[test]
fn a_name_taken_by_others_is_left_alone() {
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
        assert_eq!(veths(&world).len(), 2, "the foreign pair stays");
    });
}

#[test]
fn del_leaves_the_interface_of_another_attachment_alone() {
    in_netns(|| {
        for config in configs() {
            let world = World::new(&Plugins::ours(), 1);
            let old = world.call(&config, 1).container("old");
            let old_result = old.add().result();
            // As if its namespace were gone and a new one had the same path.
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
