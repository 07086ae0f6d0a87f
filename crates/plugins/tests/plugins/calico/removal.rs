// SPDX-License-Identifier: Apache-2.0
//! DEL, GC and the replacement of earlier interfaces: nothing of another sandbox is removed.

use serde_json::{Value, json};
use testkit::{Ns, in_netns};

use super::{NAMES, calico, host_ends, pod_args, pod_call};
use crate::conf::{dual, ptp, with};
use crate::world::{DATA, Plugins, World};

/// Number of reserved addresses.
fn reserved(world: &World) -> usize {
    world.disk().without_bookkeeping().0.len()
}

#[track_caller]
fn assert_clean(world: &World) {
    assert_eq!(host_ends(world), Vec::<String>::new());
    assert_eq!(reserved(world), 0);
    for family in ["-4", "-6"] {
        let routes = world.host.ip_json(&[family, "route", "show"]);
        assert_eq!(routes, json!([]), "{routes}");
    }
}

#[test]
fn calico_del_with_or_without_netns_leaves_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let config = calico(&json!({"ipam": dual()}));
        let call = pod_call(&world, &config, 1);
        let calls = [
            call.clone(),
            call.netns(""),
            call.netns("/run/netns/nowhere"),
            // Neither a namespace nor a nodename file is needed.
            call.netns("").config(&calico(&json!({"ipam": dual(), "nodename_file": "/nowhere",
                "nodename_file_optional": false, "mtu": "x"}))),
        ];
        for del in calls {
            call.add().ok();
            assert_eq!((host_ends(&world), reserved(&world)), (vec![NAMES[0].to_owned()], 2));
            del.run("DEL").ok();
            assert_clean(&world);
            del.run("DEL").ok();
        }
    });
}

#[test]
fn calico_del_without_pod_name_finds_interface() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = pod_call(&world, &calico(&json!({"ipam": dual()})), 1);
        let result = call.add().result();
        call.args("").netns("").del(&result).ok();
        assert_clean(&world);
        call.add().ok();
        call.args("").run("DEL").ok();
        assert_clean(&world);
        call.add().ok();
        call.args("invalid").run("DEL").ok();
        assert_clean(&world);
    });
}

#[test]
fn calico_del_of_old_sandbox_keeps_newer_one() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        let config = calico(&json!({"ipam": dual()}));
        let old = world.call(&config, 1).args(&pod_args("web1"));
        let new = world.call(&config, 2).args(&pod_args("web1"));
        let old_result = old.add().result();
        // The runtime lost the old sandbox and starts another one for the pod.
        let result = new.add().result();
        assert_eq!(host_ends(&world), [NAMES[0]]);
        assert_eq!(world.host_link(NAMES[0])["ifalias"], "podwire calico net c2 eth0");
        assert_eq!(reserved(&world), 4);
        for del in [old.clone(), old.netns(""), old.netns("/run/netns/pod2")] {
            del.del(&old_result).ok();
            assert_eq!((host_ends(&world), reserved(&world)), (vec![NAMES[0].to_owned()], 2));
            new.check(&result).ok();
        }
        new.del(&result).ok();
        assert_clean(&world);
    });
}

#[test]
fn calico_second_add_fails_and_keeps_the_first() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = pod_call(&world, &calico(&json!({"ipam": dual()})), 1);
        let result = call.add().result();
        let before = world.snapshot().without_bookkeeping();
        call.add().fails_with(999, "");
        // Another interface of the same container would have the same host end.
        call.ifname("net1").add().fails_with(999, "calico connects a container once");
        let changes = before.changes_to(&world.snapshot().without_bookkeeping());
        assert_eq!(changes, Vec::<String>::new());
        call.check(&result).ok();
    });
}

/// Outside Kubernetes the name has only 11 characters of the container's ID.
#[test]
fn calico_refuses_containers_with_equal_names() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        let config = calico(&json!({}));
        let first = world.call(&config, 1).container("container-01");
        let result = first.add().result();
        let second = world.call(&config, 2).container("container-02");
        second.add().fails_with(999, "calicontainer-0");
        first.check(&result).ok();
        assert_eq!(reserved(&world), 1);
    });
}

/// A pod as Calico leaves it: without tag.
fn calicos_pod(world: &World, pod: &Ns, host_end: &str) {
    let namespace = pod.name();
    world.on_host(&format!(
        "link add {host_end} address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns {namespace}"
    ));
    world.on_host(&format!("link set {host_end} up"));
    pod.ip(&["link", "set", "eth0", "up"]);
}

#[test]
fn calico_del_removes_interface_of_calico() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        let config = calico(&json!({}));
        calicos_pod(&world, world.pod(1), NAMES[0]);
        let call = pod_call(&world, &config, 1);
        // Without a namespace, nothing shows which sandbox the interface belongs to.
        call.netns("").run("DEL").ok();
        assert_eq!(host_ends(&world), [NAMES[0]]);
        call.run("DEL").ok();
        assert_eq!(host_ends(&world), Vec::<String>::new());
        // A newer sandbox of the pod, created by Calico.
        calicos_pod(&world, world.pod(2), NAMES[0]);
        call.run("DEL").ok();
        assert_eq!(host_ends(&world), [NAMES[0]]);
        // ADD replaces it, as Calico does.
        call.add().ok();
        assert_eq!(world.host_link(NAMES[0])["ifalias"], "podwire calico net c1 eth0");
    });
}

#[test]
fn calico_del_keeps_interfaces_of_others() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let other = ptp(&json!({"name": "other"}));
        let result = world.call(&other, 1).add().result();
        pod_call(&world, &calico(&json!({})), 1).run("DEL").ok();
        world.call(&other, 1).check(&result).ok();
        world.call(&other, 1).del(&result).ok();
        world.on_host("link add vhost1 type veth peer name eth0 netns pod1");
        pod_call(&world, &calico(&json!({})), 1).run("DEL").ok();
        assert_eq!(host_ends(&world), ["vhost1"]);
    });
}

#[test]
fn calico_add_refuses_name_of_other_program() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        world.on_host(&format!("link add {} type bridge", NAMES[0]));
        let call = pod_call(&world, &calico(&json!({})), 1);
        call.add().fails_with(999, "not a veth pair");
        world.on_host(&format!("link show {}", NAMES[0]));
        assert_eq!(reserved(&world), 0);
    });
}

#[test]
fn calico_route_of_other_interface_is_an_error() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        world.on_host("link add other type veth peer name peer0");
        world.on_host("link set other up");
        let call = pod_call(&world, &calico(&json!({"ipam": dual()})), 1);
        for route in ["route add 10.1.0.2 dev other", "-6 route add fd00:1::2 dev other"] {
            world.on_host(route);
            let before = world.snapshot().without_bookkeeping();
            call.add().fails_with(999, "to interface other, not to cali");
            let changes = before.changes_to(&world.snapshot().without_bookkeeping());
            assert_eq!(changes, Vec::<String>::new());
            world.on_host(&route.replace("add", "del"));
            // The next ADD would get the next address.
            std::fs::remove_dir_all(DATA).unwrap();
        }
        call.add().ok();
    });
}

#[test]
fn calico_gc_removes_unlisted_attachments_only() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 3);
        let config = calico(&json!({"ipam": dual()}));
        let results: Vec<Value> =
            (1..=2).map(|pod| pod_call(&world, &config, pod).add().result()).collect();
        let ranges = crate::conf::ranges(&json!([[{"subnet": "10.2.0.0/24"}]]));
        let other = with(config.clone(), &json!({"name": "other", "ipam": ranges}));
        let third = pod_call(&world, &other, 3);
        let other_result = third.add().result();
        // An interface of ptp on the same network, and one of Calico.
        let neighbour = Ns::new("pod4");
        world.call(&ptp(&json!({})), 4).add().ok();
        let fifth = Ns::new("pod5");
        calicos_pod(&world, &fifth, "cali0000000000f");
        let before = world.snapshot().without_bookkeeping();
        let call = pod_call(&world, &config, 1);
        call.run("GC").ok();
        call.gc(&[("c1", "eth0"), ("c2", "eth0"), ("c4", "eth0")]).ok();
        let changes = before.changes_to(&world.snapshot().without_bookkeeping());
        assert_eq!(changes, Vec::<String>::new());
        call.gc(&[("c1", "eth0"), ("c2", "eth1"), ("c4", "eth0")]).ok();
        call.check(&results[0]).ok();
        third.check(&other_result).ok();
        pod_call(&world, &config, 2).check(&results[1]).fails_with(999, "");
        assert_eq!(host_ends(&world).len(), 4, "{:?}", host_ends(&world));
        assert!(host_ends(&world).contains(&"cali0000000000f".to_owned()));
        drop((neighbour, fifth));
    });
}
