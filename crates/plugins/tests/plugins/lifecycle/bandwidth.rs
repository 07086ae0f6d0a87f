// SPDX-License-Identifier: Apache-2.0
//! `bandwidth` behind a pair that stands for what another plugin made, looked at with `tc` and `ip`.

mod damage;
mod rates;

use serde_json::{Value, json};
use testkit::in_netns;

use crate::call::Call;
use crate::conf::{network, with};
use crate::world::{Plugins, World};

/// A container's pair: `vhost1` and `eth0` for the first pod.
fn pair(world: &World, pod: usize, ifname: &str, host: &str) {
    world.on_host(&format!("link add {host} type veth peer name {ifname} netns pod{pod}"));
    world.on_host(&format!("link set {host} up"));
    world.in_pod(pod, &format!("link set {ifname} up"));
}

fn prev_result(pod: usize, ifname: &str, host: &str) -> Value {
    json!({"cniVersion": "1.1.0", "ips": [], "interfaces": [
        {"name": "cni0"}, {"name": host},
        {"name": ifname, "sandbox": format!("/run/netns/pod{pod}")}]})
}

fn both() -> Value {
    json!({"ingressRate": 20_000_000, "ingressBurst": 1_000_000,
        "egressRate": 20_000_000, "egressBurst": 1_000_000})
}

fn config(more: &Value) -> Value {
    with(network("bandwidth", &both()), more)
}

/// A call for a pod's `eth0` whose pair is made.
fn call(world: &World, pod: usize, more: &Value) -> Call {
    let host = format!("vhost{pod}");
    pair(world, pod, "eth0", &host);
    world.call(&config(more), pod).with_prev_result(&prev_result(pod, "eth0", &host))
}

fn ifbs(world: &World) -> Vec<String> {
    let found = world.host.ip_json(&["link", "show", "type", "ifb"]);
    let names = found.as_array().expect("ip prints a list").iter();
    names.map(|link| link["ifname"].as_str().unwrap_or_default().to_owned()).collect()
}

fn tc(world: &World, line: &str) -> String {
    world.host.exec("tc", &line.split_whitespace().collect::<Vec<_>>())
}

#[test]
fn del_works_whatever_is_missing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = call(&world, 1, &json!({}));
        call.add().ok();
        let result = call.add().result();
        assert_eq!(ifbs(&world).len(), 1, "a second ADD makes no second ifb");
        call.check(&result).ok();
        let bare = world.call(&config(&json!({})), 1);
        bare.netns("").run("DEL").ok();
        assert_eq!(ifbs(&world), Vec::<String>::new());
        bare.netns("").run("DEL").ok();
        bare.netns("/run/netns/nowhere").del(&result).ok();
        call.add().ok();
        let broken = world.call(&config(&json!({"egressRate": "x", "latency": []})), 1);
        broken.run("DEL").ok();
        assert_eq!(ifbs(&world), Vec::<String>::new(), "DEL needs no valid configuration");
    });
}

#[test]
fn failing_add_leaves_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = call(&world, 1, &json!({}));
        // Another's filter has the priority that ours needs, for another protocol.
        tc(&world, "qdisc add dev vhost1 clsact");
        tc(
            &world,
            "filter add dev vhost1 ingress prio 45825 protocol ip u32 match u32 0 0 flowid 1:7",
        );
        let before = world.snapshot();
        let filters = tc(&world, "filter show dev vhost1 ingress");
        call.add().fails_with(999, "limit the container's bandwidth");
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
        assert_eq!(
            tc(&world, "qdisc show dev vhost1 root").trim().split(' ').nth(1),
            Some("noqueue")
        );
        assert_eq!(tc(&world, "filter show dev vhost1 ingress"), filters);

        // An interface of the name that is not an ifb of ours.
        tc(&world, "qdisc del dev vhost1 clsact");
        let name = "bwp623e1c388032";
        world.on_host(&format!("link add {name} type veth peer name other"));
        call.add().fails_with(999, "exists already and belongs to");
        call.run("DEL").ok();
        world.on_host(&format!("link show {name}"));
        assert_eq!(tc(&world, "qdisc show dev vhost1 ingress"), "");
    });
}

/// A policy agent's programs stay, and ours come beside them.
#[test]
fn clsact_of_others_is_shared() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = call(&world, 1, &json!({"unshapedSubnets": ["10.9.0.0/16", "fd00:9::/32"]}));
        tc(&world, "qdisc add dev vhost1 clsact");
        let theirs =
            "filter add dev vhost1 ingress prio 9 protocol all u32 match u32 0 0 flowid 1:7";
        tc(&world, theirs);
        let result = call.add().result();
        call.check(&result).ok();
        let filters = tc(&world, "filter show dev vhost1 ingress");
        assert!(filters.contains("pref 9 u32") && filters.contains("pref 45827 u32"), "{filters}");
        // Once more, as after an ADD that was killed: no filter comes twice.
        call.add().ok();
        assert_eq!(tc(&world, "filter show dev vhost1 ingress").matches("match").count(), 4);
        call.del(&result).ok();
    });
}

#[test]
fn two_interfaces_of_a_container_do_not_meet() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let first = call(&world, 1, &json!({}));
        pair(&world, 1, "net1", "vhost2");
        let second = first.ifname("net1").with_prev_result(&prev_result(1, "net1", "vhost2"));
        let results = [first.add().result(), second.add().result()];
        assert_eq!(ifbs(&world).len(), 2);
        second.del(&results[1]).ok();
        second.run("DEL").ok();
        world.call(&config(&json!({})), 1).ifname("net1").run("DEL").ok();
        first.check(&results[0]).ok();
        second.check(&results[1]).fails_with(999, "does not exist");
        first.del(&results[0]).ok();
        assert_eq!(ifbs(&world), Vec::<String>::new());
    });
}

/// A node that is switched over, in either direction, with pods running.
#[test]
fn each_takes_over_from_the_go_plugin() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        for ifname in ["eth0", "net1"] {
            let world = World::new(&ours, 2);
            let of = |plugins: &Plugins, pod: usize| {
                let call = world.call_of(plugins, &config(&json!({})), pod);
                call.ifname(ifname).with_prev_result(&prev_result(
                    pod,
                    ifname,
                    &format!("vhost{pod}"),
                ))
            };
            (1..=2).for_each(|pod| pair(&world, pod, ifname, &format!("vhost{pod}")));
            let by_go = of(&go, 1).add().result();
            of(&ours, 1).check(&by_go).ok();
            of(&ours, 1).gc(&[]).ok();
            assert_eq!(ifbs(&world).len(), 1, "nothing tells which network the Go plugin's is of");
            of(&ours, 1).del(&by_go).ok();
            assert_eq!(ifbs(&world), Vec::<String>::new());
            let by_ours = of(&ours, 2).add().result();
            of(&go, 2).check(&by_ours).ok();
            of(&go, 2).del(&by_ours).ok();
            assert_eq!(ifbs(&world), Vec::<String>::new());
        }
    });
}

/// The interface that comes first gets the Go plugin's name, whatever it is called. A second one of the same
/// container gets a name of its own, and CHECK, DEL and GC keep the two apart.
#[test]
fn first_interface_has_the_ifb_name_of_the_go_plugin() {
    in_netns(|| {
        const GO_NAME: &str = "bwp623e1c388032";
        let ours = Plugins::ours();
        for (first, second) in [("net1", "eth0"), ("eth0", "net1"), ("net1", "net2")] {
            let world = World::new(&ours, 1);
            let of = |ifname: &str, host: &str| {
                pair(&world, 1, ifname, host);
                let call = world.call(&config(&json!({})), 1).ifname(ifname);
                call.with_prev_result(&prev_result(1, ifname, host))
            };
            let calls = [of(first, "vhost1"), of(second, "vhost2")];
            let add = || calls.each_ref().map(|call| call.add().result());
            let results = add();
            let names = results.each_ref().map(|result| result["interfaces"][3]["name"].clone());
            assert_eq!(names[0], GO_NAME);
            let other = names[1].as_str().expect("a name").to_owned();
            assert_ne!(other, GO_NAME);
            for (call, result) in calls.iter().zip(&results) {
                call.check(result).ok();
                // What an ADD left that was killed after it made the ifb is replaced.
                call.add().ok();
            }
            assert_eq!(ifbs(&world).len(), 2);
            calls[0].run("DEL").ok();
            assert_eq!(ifbs(&world), [other.as_str()]);
            calls[1].check(&results[1]).ok();
            calls[0].add().ok();
            calls[1].del(&results[1]).ok();
            assert_eq!(ifbs(&world), [GO_NAME]);
            calls[0].check(&results[0]).ok();
            calls[0].gc(&[("c1", first)]).ok();
            assert_eq!(ifbs(&world), [GO_NAME]);
            calls[0].gc(&[("c1", second)]).ok();
            assert_eq!(ifbs(&world), Vec::<String>::new(), "GC goes by the owner, not by the name");
        }
    });
}

/// An ifb without an alias is what an ADD left that was killed, or one that is being made just now for another
/// interface: the hardware address tells them apart.
#[test]
fn ifb_without_alias_is_known_by_its_hardware_address() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let first = call(&world, 1, &json!({}));
        pair(&world, 1, "net1", "vhost2");
        let second = first.ifname("net1").with_prev_result(&prev_result(1, "net1", "vhost2"));
        let result = first.add().result();
        let name = ifbs(&world).remove(0);
        world.host.ip(&["link", "set", &name, "alias", ""]);
        second.run("DEL").ok();
        second.add().ok();
        assert_eq!(ifbs(&world).len(), 2);
        first.check(&result).ok();
        first.add().ok();
        assert_eq!(ifbs(&world).len(), 2);
        world.host.ip(&["link", "set", &name, "alias", ""]);
        first.gc(&[("c1", "eth0")]).ok();
        assert_eq!(ifbs(&world), [name]);
        first.run("DEL").ok();
        assert_eq!(ifbs(&world), Vec::<String>::new());
    });
}

/// The Go plugin's ifb of a container's first interface is not the second one's to replace or remove.
#[test]
fn ifb_of_the_go_plugin_is_removed_with_its_own_interface() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&ours, 1);
        let ours = call(&world, 1, &json!({}));
        let by_go =
            Call { plugin: go.directory().join("bandwidth"), ..ours.clone() }.add().result();
        ours.ifname("net1").del(&prev_result(1, "net1", "vhost2")).ok();
        assert_eq!(ifbs(&world).len(), 1);
        pair(&world, 1, "net1", "vhost2");
        let second = ours.ifname("net1").with_prev_result(&prev_result(1, "net1", "vhost2"));
        let result = second.add().result();
        assert_eq!(ifbs(&world).len(), 2);
        ours.check(&by_go).ok();
        second.check(&result).ok();
        second.run("DEL").ok();
        ours.check(&by_go).ok();
        ours.del(&by_go).ok();
        assert_eq!(ifbs(&world), Vec::<String>::new());
    });
}

/// What container runtimes for Kubernetes ask for: cri-dockerd, containerd and CRI-O, whatever the rate.
/// `tc` shows bytes.
#[test]
fn bursts_of_kubernetes_are_set_as_asked_for() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = call(&world, 1, &json!({}));
        let bursts = [(1 << 31) - 1, (1 << 32) - 1, 8 * (u64::from(u32::MAX)) - 1];
        let shown = |device: &str| {
            let text = tc(&world, &format!("-j qdisc show dev {device} root"));
            let found: Value = serde_json::from_str(&text).expect("tc prints JSON");
            found[0]["options"]["burst"].as_u64().expect("a number of bytes")
        };
        for burst in bursts {
            let rates = json!({"ingressRate": 1_000_000_000, "ingressBurst": burst,
                "egressRate": 1_000_000_000, "egressBurst": burst});
            let call = call.config(&with(call.config.clone(), &rates));
            let result = call.add().result();
            for device in ["vhost1", "bwp623e1c388032"] {
                // The kernel tells whole ticks of 64 ns.
                let (found, wanted) = (shown(device), burst / 8);
                assert!(wanted - found < 1000, "{device}: {found} bytes, asked for {wanted}");
            }
            call.check(&result).ok();
            call.del(&result).ok();
        }
        // The time to fill, 429 s, is beyond the 274 s that the field in the kernel's answer holds: `tc` shows
        // the remainder, and CHECK knows that.
        let rates = json!({"ingressRate": 10_000_000, "ingressBurst": u32::MAX});
        let call = call.config(&with(call.config.clone(), &rates));
        let result = call.add().result();
        assert_eq!(shown("vhost1"), 193_273_526);
        call.check(&result).ok();
    });
}

#[test]
fn gc_removes_what_is_not_listed_and_nothing_else() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 3);
        let calls: Vec<Call> = (1..=3).map(|pod| call(&world, pod, &json!({}))).collect();
        let results: Vec<Value> = calls.iter().map(|call| call.add().result()).collect();
        world.on_host("link add foreign type ifb");
        let other = with(calls[0].config.clone(), &json!({"name": "two"}));
        pair(&world, 1, "net1", "vhost9");
        let other = calls[0].ifname("net1").config(&other);
        let other = other.with_prev_result(&prev_result(1, "net1", "vhost9"));
        other.add().ok();
        assert_eq!(ifbs(&world).len(), 5);
        calls[0].run("GC").ok();
        assert_eq!(ifbs(&world).len(), 5, "without a list nothing may be removed");
        calls[0].gc(&[("c1", "eth0"), ("c2", "eth0"), ("c3", "eth0")]).ok();
        assert_eq!(ifbs(&world).len(), 5);
        calls[0].gc(&[("c1", "eth0"), ("c2", "net1")]).ok();
        assert_eq!(ifbs(&world).len(), 3);
        calls[0].check(&results[0]).ok();
        calls[0].gc(&[]).ok();
        assert_eq!(ifbs(&world).len(), 2);
        other.gc(&[]).ok();
        assert_eq!(ifbs(&world), ["foreign"]);
    });
}

#[test]
fn status_tries_it_out_and_changes_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 0);
        let before = world.snapshot();
        for more in [json!({}), json!({"unshapedSubnets": ["10.0.0.0/8", "fd00::/8"]})] {
            world.call(&config(&more), 1).status().ok();
        }
        let bad = world.call(&config(&json!({"latency": "long"})), 1);
        bad.status().fails_with(7, "\"latency\" is \"long\"");
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
    });
}

/// Where nothing may be done to the network, ADD could do nothing either.
#[test]
fn status_tells_that_the_kernel_cannot() {
    in_netns(|| {
        testkit::require!(Program("setpriv"));
        let world = World::new(&Plugins::ours(), 0);
        let call = world.call(&config(&json!({})), 1);
        let powerless = ["setpriv", "--bounding-set=-sys_admin,-net_admin"];
        let child = call.start_under(&powerless, "STATUS", call.config.to_string().as_bytes());
        let output = child.wait_with_output().expect("the plugin's output can be read");
        crate::call::Answer::of(&output).fails_with(50, "cannot limit bandwidth");
        // A network whose limits come from the runtime serves containers without any.
        let call = world.call(&network("bandwidth", &json!({})), 1);
        let child = call.start_under(&powerless, "STATUS", call.config.to_string().as_bytes());
        let output = child.wait_with_output().expect("the plugin's output can be read");
        crate::call::Answer::of(&output).ok();
    });
}

/// Without a limit for what the container sends no ifb is needed.
#[test]
fn status_tries_only_what_the_configuration_asks_for() {
    in_netns(|| {
        testkit::require!(Program("strace"));
        let world = World::new(&Plugins::ours(), 0);
        let messages = |more: &Value| {
            let call = world.call(&network("bandwidth", more), 1);
            let strace = ["strace", "-qq", "-xx", "-s4096", "-o", "/run/status.log"];
            let strace = [&strace[..], &["-e", "trace=%network"]].concat();
            let child = call.start_under(&strace, "STATUS", call.config.to_string().as_bytes());
            let output = child.wait_with_output().expect("strace can be waited for");
            crate::call::Answer::of(&output).ok();
            std::fs::read_to_string("/run/status.log").expect("strace has written its log")
        };
        let ingress = json!({"ingressRate": 20_000_000, "ingressBurst": 1_000_000});
        let egress = json!({"egressRate": 20_000_000, "egressBurst": 1_000_000});
        // Kinds of links and queues are texts in the messages, of which strace shows each byte.
        let shown =
            |kind: &str| -> String { kind.bytes().map(|byte| format!("\\x{byte:02x}")).collect() };
        let has = |more: &Value| {
            let log = messages(more);
            ["ifb", "tbf"].map(|kind| log.contains(&shown(kind)))
        };
        assert_eq!(has(&ingress), [false, true]);
        assert_eq!(has(&egress), [true, true]);
    });
}
