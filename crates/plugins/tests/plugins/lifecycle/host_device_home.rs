// SPDX-License-Identifier: Apache-2.0
//! A device comes home whatever is missing: result, namespace, its name. The kernel moves hardware home
//! by itself when a namespace goes; here `ip` does the same with a veth end.

use serde_json::{Value, json};
use testkit::{in_netns, require, run};

use super::host_device::{assert_untouched, at_home, world};
use crate::call::Answer;
use crate::compare::host_device::make_bus;
use crate::conf::{host_device, v4, with, without};
use crate::world::{Plugins, World};

fn assert_free(world: &World) {
    let disk = world.disk().without_bookkeeping().0;
    assert!(disk.is_empty(), "{disk:?}");
}

#[test]
fn del_is_quiet_and_needs_no_result() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&host_device(&json!({"ipam": v4()})), 1);
        call.add().ok();
        for _ in 0..2 {
            let answer = call.run("DEL");
            answer.ok();
            assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("", ""));
            assert_untouched(&world);
            assert_free(&world);
        }
        call.add().ok();
        call.del(&json!({"ips": "junk", "cniVersion": 7})).ok();
        call.config(&host_device(&json!({"device": [], "useInterfaceNetwork": 9}))).run("DEL").ok();
        assert_untouched(&world);
    });
}

#[test]
fn del_needs_no_namespace() {
    in_netns(|| {
        for netns in ["", "/run/netns/gone", "/etc/hostname"] {
            let world = world(1);
            let call = world.call(&host_device(&json!({"ipam": v4()})), 1);
            let result = call.add().result();
            call.netns(netns).del(&result).ok();
            assert_free(&world);
            // The namespace is alive, and its path is not told: the device stays until it goes.
            call.run("DEL").ok();
            assert_untouched(&world);
        }
        let world = world(1);
        let call = world.call(&host_device(&json!({"ipam": v4()})), 1);
        let result = call.add().result();
        run("ip", &["netns", "del", "pod1"]);
        call.del(&result).ok();
        assert_free(&world);
    });
}

/// As the kernel does it with hardware: under the name in the pod if that is free, or another.
fn fall_back(world: &World, name: &str) {
    world.in_pod(1, "link set eth0 down");
    world.in_pod(1, &format!("link set eth0 name {name}"));
    world.in_pod(1, &format!("link set {name} netns host"));
}

#[test]
fn device_gets_its_name_back_after_its_namespace_has_gone() {
    in_netns(|| {
        let by_mac = json!({"hwaddr": "02:00:00:00:00:11"});
        let by_mac = with(without(host_device(&json!({})), &["device"]), &by_mac);
        for config in [host_device(&json!({})), by_mac] {
            for name in ["eth0", "dev7", "ens1"] {
                let world = world(1);
                let call = world.call(&config, 1);
                call.add().ok();
                fall_back(&world, name);
                call.status().ok();
                call.netns("").run("DEL").ok();
                assert_untouched(&world);

                call.add().ok();
                fall_back(&world, name);
                call.gc(&[]).ok();
                assert_untouched(&world);

                // Without either, the next ADD knows it still.
                call.add().ok();
                fall_back(&world, name);
                let result = call.add().result();
                call.del(&result).ok();
                assert_untouched(&world);
            }
        }
    });
}

/// Where the kernel refuses a device its name, this is told to whoever it concerns, and the others get
/// theirs.
#[test]
fn one_that_cannot_be_renamed_keeps_no_other_from_it() {
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
            let nobody = json!({"cni.dev/valid-attachments": []});
            let call = world.call(&host_device(&nobody), 1).container(container).netns("");
            // The first message lists the interfaces, and the next renames the first of them.
            let wrapper = ["strace", "-qq", "-o", "/dev/null", "-e"];
            let wrapper = [&wrapper[..], &["inject=sendto:error=EBUSY:when=2"]].concat();
            let stdin = call.config.to_string();
            let plugin = call.start_under(&wrapper, verb, stdin.as_bytes());
            let answer = Answer::of(&plugin.wait_with_output().expect("strace can be waited for"));
            assert_eq!(answer.success, !fails, "{verb} of {container}: {}", answer.stdout);
            let has = |name: &str| at_home(&world, name).is_some();
            let names = ["ens1", "ens2", "dev7", "dev8"].map(has);
            assert_eq!(names, [false, true, true, false], "{verb} of {container}");
        }
    });
}

/// Names and aliases that people gave are theirs, and so are other networks' devices.
#[test]
fn devices_of_others_are_left_alone() {
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
        fall_back(&world, "eth0");
        call.container("c9").netns("").run("DEL").ok();
        call.gc(&[]).ok();
        assert!(at_home(&world, "eth0").is_some(), "another network's");
        world.call(&other, 1).gc(&[]).ok();
        assert!(at_home(&world, "ens1").is_some());
    });
}

#[test]
fn device_comes_home_under_another_name_if_its_own_is_taken() {
    in_netns(|| {
        for eth0_is_taken in [false, true] {
            let world = world(1);
            let call = world.call(&host_device(&json!({"ipam": v4()})), 1);
            let result = call.add().result();
            world.on_host("link add ens1 type veth peer name other");
            if eth0_is_taken {
                world.on_host("link add eth0 type veth peer name other0");
            }
            let answer = call.del(&result);
            answer.ok();
            assert!(answer.stderr.contains("ens1 is taken"), "{}", answer.stderr);
            assert_free(&world);
            let links = world.host.ip_json(&["link"]);
            let links = links.as_array().expect("a list of links");
            let found = links.iter().find(|link| link["ifalias"] == "ens1").expect("it is home");
            assert_eq!(found["address"], "02:00:00:00:00:11");
            assert!(answer.stderr.contains(found["ifname"].as_str().expect("a name")));
            call.del(&result).ok();
            // When the name is free, it gets it.
            world.on_host("link del ens1");
            call.gc(&[]).ok();
            assert_untouched(&world);
        }
    });
}

#[test]
fn del_leaves_the_device_of_another_attachment_alone() {
    in_netns(|| {
        let world = world(1);
        let new = world.call(&host_device(&json!({})), 1).container("new");
        let result = new.add().result();
        new.container("old").run("DEL").ok();
        new.container("old").config(&host_device(&json!({"name": "other"}))).run("DEL").ok();
        // Another network, whose ADD failed because the interface is there.
        let other = host_device(&json!({"name": "other", "device": "far1"}));
        new.config(&other).run("DEL").ok();
        new.check(&result).ok();
        new.del(&result).ok();
        assert_untouched(&world);
        // An interface that is no device of ours.
        world.in_pod(1, "link add eth0 type veth peer name other");
        new.run("DEL").ok();
        assert!(world.in_pod(1, "link").contains("eth0"));
    });
}

/// A DEL that comes after the network was renamed has no result, because runtimes keep results by network.
#[test]
fn device_comes_home_after_its_network_was_renamed() {
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
            // The namespace was gone before the DEL.
            call.add().ok();
            fall_back(&world, "dev7");
            call.config(&renamed).netns("").run("DEL").ok();
            assert_untouched(&world);
        }
    });
}

/// Devices that are in containers when the plugins are updated bear the mark of the version before.
#[test]
fn device_with_the_mark_of_an_earlier_version_comes_home() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&host_device(&json!({})), 1);
        let result = call.add().result();
        let mark = plugins::attach::names::attachment_group(
            "net",
            &cni::Attachment { container_id: "c1".into(), ifname: "eth0".into() },
        );
        world.in_pod(1, &format!("link set eth0 group {mark}"));
        call.check(&result).ok();
        call.run("DEL").ok();
        assert_untouched(&world);
    });
}

/// Without its alias the device has lost its name, but not its home.
#[test]
fn device_without_alias_comes_home() {
    in_netns(|| {
        let world = world(1);
        let call = world.call(&host_device(&json!({})), 1);
        let result = call.add().result();
        world.pod(1).ip(&["link", "set", "eth0", "alias", ""]);
        call.del(&result).ok();
        assert_eq!(at_home(&world, "eth0").expect("it is home")["address"], "02:00:00:00:00:11");
    });
}

#[test]
fn each_set_takes_over_the_devices_of_the_other() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let config = host_device(&json!({"ipam": v4()}));
        for (before, after) in [(&go, &ours), (&ours, &go)] {
            let world = world(1);
            let result = world.call_of(before, &config, 1).add().result();
            world.call_of(after, &config, 1).check(&result).ok();
            world.call_of(after, &config, 1).del(&result).ok();
            assert_free(&world);
            let link: Value = at_home(&world, "ens1").expect("it is home");
            assert_eq!(link["ifalias"], json!(null));
            // A mark that the Go plugin left does not matter.
            let call = world.call_of(&ours, &config, 1);
            let result = call.add().result();
            call.del(&result).ok();
            assert_untouched(&world);
        }
    });
}
