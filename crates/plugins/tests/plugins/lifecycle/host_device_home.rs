// SPDX-License-Identifier: Apache-2.0
//! A device returns to the host even if the result, the namespace or the device's name is missing.
//! The kernel moves hardware back when a namespace is deleted; here `ip` does the same with a veth.

use serde_json::{Value, json};
use testkit::{in_netns, require, run};

use super::host_device::{assert_untouched, find_on_host, world};
use crate::call::Answer;
use crate::compare::host_device::make_bus;
use crate::conf::{host_device, v4, with, without};
use crate::world::{Plugins, World};

fn assert_no_address_reserved(world: &World) {
    let disk = world.disk().without_bookkeeping().0;
    assert!(disk.is_empty(), "{disk:?}");
}

#[test]
fn del_without_result_returns_device() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&host_device(&json!({"ipam": v4()})), 1);
        call.add().ok();
        for _ in 0..2 {
            let answer = call.run("DEL");
            answer.ok();
            assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("", ""));
            assert_untouched(&world);
            assert_no_address_reserved(&world);
        }
        call.add().ok();
        call.del(&json!({"ips": "junk", "cniVersion": 7})).ok();
        call.config(&host_device(&json!({"device": [], "useInterfaceNetwork": 9}))).run("DEL").ok();
        assert_untouched(&world);
    });
}

#[test]
fn del_without_namespace_releases_address() {
    in_netns(|| {
        for netns in ["", "/run/netns/gone", "/etc/hostname"] {
            let world = world(1);
            let call = world.call(&host_device(&json!({"ipam": v4()})), 1);
            let result = call.add().result();
            call.netns(netns).del(&result).ok();
            assert_no_address_reserved(&world);
            // The namespace exists but its path is not passed, so the device stays in it.
            call.run("DEL").ok();
            assert_untouched(&world);
        }
        let world = world(1);
        let call = world.call(&host_device(&json!({"ipam": v4()})), 1);
        let result = call.add().result();
        run("ip", &["netns", "del", "pod1"]);
        call.del(&result).ok();
        assert_no_address_reserved(&world);
    });
}

/// Moves the device to the host like the kernel does with hardware: under its name in the pod, or
/// under another name if that is in use.
fn move_like_kernel(world: &World, name: &str) {
    world.in_pod(1, "link set eth0 down");
    world.in_pod(1, &format!("link set eth0 name {name}"));
    world.in_pod(1, &format!("link set {name} netns host"));
}

#[test]
fn device_after_namespace_removal_gets_name_back() {
    in_netns(|| {
        let by_mac = json!({"hwaddr": "02:00:00:00:00:11"});
        let by_mac = with(without(host_device(&json!({})), &["device"]), &by_mac);
        for config in [host_device(&json!({})), by_mac] {
            for name in ["eth0", "dev7", "ens1"] {
                let world = world(1);
                let call = world.call(&config, 1);
                call.add().ok();
                move_like_kernel(&world, name);
                call.status().ok();
                call.netns("").run("DEL").ok();
                assert_untouched(&world);

                call.add().ok();
                move_like_kernel(&world, name);
                call.gc(&[]).ok();
                assert_untouched(&world);

                // Without DEL and GC, the next ADD still identifies the device.
                call.add().ok();
                move_like_kernel(&world, name);
                let result = call.add().result();
                call.del(&result).ok();
                assert_untouched(&world);
            }
        }
    });
}

/// If the kernel rejects the rename of one device, only its own DEL and GC report that, and other
/// devices are still renamed.
#[test]
fn failed_rename_does_not_block_other_devices() {
    in_netns(|| {
        require!(Program("strace"));
        for (verb, container, fails) in
            [("DEL", "c9", false), ("DEL", "c1", true), ("DEL", "c2", false), ("GC", "c9", true)]
        {
            let world = world(2);
            world.on_host("link add ens2 address 02:00:00:00:00:12 type veth peer name far2");
            for (pod, name) in [(1, "dev7"), (2, "dev8")] {
                let config = host_device(&json!({"device": format!("ens{pod}")}));
                world.call(&config, pod).add().ok();
                world.in_pod(pod, &format!("link set eth0 down name {name} netns host"));
            }
            let no_attachments = json!({"cni.dev/valid-attachments": []});
            let call = world.call(&host_device(&no_attachments), 1).container(container).netns("");
            // The first message lists the links; the second renames the first device.
            let wrapper = ["strace", "-qq", "-o", "/dev/null", "-e"];
            let wrapper = [&wrapper[..], &["inject=sendto:error=EBUSY:when=2"]].concat();
            let stdin = call.config.to_string();
            let plugin = call.start_under(&wrapper, verb, stdin.as_bytes());
            let answer = Answer::of(&plugin.wait_with_output().expect("wait for strace"));
            assert_eq!(answer.success, !fails, "{verb} of {container}: {}", answer.stdout);
            let has = |name: &str| find_on_host(&world, name).is_some();
            let names = ["ens1", "ens2", "dev7", "dev8"].map(has);
            assert_eq!(names, [false, true, true, false], "{verb} of {container}");
        }
    });
}

/// Names and aliases set by administrators stay, and so do devices of other networks.
#[test]
fn del_and_gc_keep_foreign_devices() {
    in_netns(|| {
        let world = world(1);
        world.on_host("link set ens1 alias ens7");
        world.on_host("link set far1 alias ens1 group 70000");
        let other = host_device(&json!({"name": "other"}));
        let call = world.call(&host_device(&json!({})), 1);
        let before = world.snapshot();
        for netns in ["", "/run/netns/pod1"] {
            call.netns(netns).run("DEL").ok();
            call.gc(&[]).ok();
        }
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
        world.call(&other, 1).add().ok();
        move_like_kernel(&world, "eth0");
        call.container("c9").netns("").run("DEL").ok();
        call.gc(&[]).ok();
        assert!(find_on_host(&world, "eth0").is_some(), "GC renamed a device of another network");
        world.call(&other, 1).gc(&[]).ok();
        assert!(find_on_host(&world, "ens1").is_some());
    });
}

#[test]
fn device_with_name_in_use_returns_under_another() {
    in_netns(|| {
        for eth0_in_use in [false, true] {
            let world = world(1);
            let call = world.call(&host_device(&json!({"ipam": v4()})), 1);
            let result = call.add().result();
            world.on_host("link add ens1 type veth peer name other");
            if eth0_in_use {
                world.on_host("link add eth0 type veth peer name other0");
            }
            let answer = call.del(&result);
            answer.ok();
            assert!(answer.stderr.contains("ens1 is taken"), "{}", answer.stderr);
            assert_no_address_reserved(&world);
            let links = world.host.ip_json(&["link"]);
            let links = links.as_array().expect("a list of links");
            let found = links
                .iter()
                .find(|link| link["ifalias"] == "ens1")
                .expect("the device is on the host");
            assert_eq!(found["address"], "02:00:00:00:00:11");
            assert!(answer.stderr.contains(found["ifname"].as_str().expect("a name")));
            call.del(&result).ok();
            // GC renames the device once the name is free.
            world.on_host("link del ens1");
            call.gc(&[]).ok();
            assert_untouched(&world);
        }
    });
}

#[test]
fn del_keeps_device_of_another_attachment() {
    in_netns(|| {
        let world = world(1);
        let new = world.call(&host_device(&json!({})), 1).container("new");
        let result = new.add().result();
        new.container("old").run("DEL").ok();
        new.container("old").config(&host_device(&json!({"name": "other"}))).run("DEL").ok();
        // A second network, whose ADD failed because the interface exists.
        let other = host_device(&json!({"name": "other", "device": "far1"}));
        new.config(&other).run("DEL").ok();
        new.check(&result).ok();
        new.del(&result).ok();
        assert_untouched(&world);
        // An interface that host-device did not move.
        world.in_pod(1, "link add eth0 type veth peer name other");
        new.run("DEL").ok();
        assert!(world.in_pod(1, "link").contains("eth0"));
    });
}

/// A DEL after a rename of the network has no result, because runtimes store results by network
/// name.
#[test]
fn device_after_network_rename_returns_to_host() {
    in_netns(|| {
        make_bus();
        let selectors = [
            json!({"device": "ens1"}),
            json!({"hwaddr": "02:00:00:00:00:11"}),
            json!({"pciBusID": "0000:aa:00.2"}),
        ];
        for selector in selectors {
            let renamed = without(host_device(&json!({"name": "renamed"})), &["device"]);
            let renamed = with(renamed, &selector);
            let world = world(1);
            let call = world.call(&host_device(&json!({})), 1);
            call.add().ok();
            call.config(&renamed).run("DEL").ok();
            assert_untouched(&world);
            // DEL after the namespace was deleted.
            call.add().ok();
            move_like_kernel(&world, "dev7");
            call.config(&renamed).netns("").run("DEL").ok();
            assert_untouched(&world);
        }
    });
}

/// Devices that are in containers during an update have the link group of the previous version.
#[test]
fn device_with_old_link_group_returns_to_host() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&host_device(&json!({})), 1);
        let result = call.add().result();
        let old_group = plugins::attach::names::attachment_group(
            "net",
            &cni::Attachment { container_id: "c1".into(), ifname: "eth0".into() },
        );
        world.in_pod(1, &format!("link set eth0 group {old_group}"));
        call.check(&result).ok();
        call.run("DEL").ok();
        assert_untouched(&world);
    });
}

/// Without its alias the device keeps its name from the pod but still returns to the host.
#[test]
fn device_without_alias_returns_to_host() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&host_device(&json!({})), 1);
        let result = call.add().result();
        world.pod(1).ip(&["link", "set", "eth0", "alias", ""]);
        call.del(&result).ok();
        assert_eq!(
            find_on_host(&world, "eth0").expect("the device is on the host")["address"],
            "02:00:00:00:00:11"
        );
    });
}

#[test]
fn devices_are_taken_over_between_go_and_podwire() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let config = host_device(&json!({"ipam": v4()}));
        for (before, after) in [(&go, &ours), (&ours, &go)] {
            let world = world(1);
            let result = world.call_of(before, &config, 1).add().result();
            world.call_of(after, &config, 1).check(&result).ok();
            world.call_of(after, &config, 1).del(&result).ok();
            assert_no_address_reserved(&world);
            let link: Value = find_on_host(&world, "ens1").expect("the device is on the host");
            assert_eq!(link["ifalias"], json!(null));
            // A link group left by the Go plugin does not matter.
            let call = world.call_of(&ours, &config, 1);
            let result = call.add().result();
            call.del(&result).ok();
            assert_untouched(&world);
        }
    });
}
