// SPDX-License-Identifier: Apache-2.0
//! `bandwidth` after a veth pair that stands for the result of a previous plugin, verified with
//! `tc` and `ip`.

mod damage;
mod rates;

use serde_json::{Value, json};
use testkit::in_netns;

use crate::call::Call;
use crate::conf::{network, with};
use crate::world::{Plugins, World};

/// Creates a container's veth pair, for example `vhost1` and `eth0` for the first pod.
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

/// Creates the veth pair of a pod's `eth0` and returns a call for it.
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
fn del_with_missing_state_removes_ifb() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = call(&world, 1, &json!({}));
        call.add().ok();
        let result = call.add().result();
        assert_eq!(ifbs(&world).len(), 1, "second ADD created another ifb");
        call.check(&result).ok();
        let bare = world.call(&config(&json!({})), 1);
        bare.netns("").run("DEL").ok();
        assert_eq!(ifbs(&world), Vec::<String>::new());
        bare.netns("").run("DEL").ok();
        bare.netns("/run/netns/nowhere").del(&result).ok();
        call.add().ok();
        let broken = world.call(&config(&json!({"egressRate": "x", "latency": []})), 1);
        broken.run("DEL").ok();
        assert_eq!(
            ifbs(&world),
            Vec::<String>::new(),
            "DEL with an invalid configuration left the ifb"
        );
    });
}

#[test]
fn failed_add_leaves_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = call(&world, 1, &json!({}));
        // A foreign filter uses podwire's filter priority for another protocol.
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

        // An interface with the ifb's name that was not created by podwire.
        tc(&world, "qdisc del dev vhost1 clsact");
        let name = "bwp623e1c388032";
        world.on_host(&format!("link add {name} type veth peer name other"));
        call.add().fails_with(999, "exists already and belongs to");
        call.run("DEL").ok();
        world.on_host(&format!("link show {name}"));
        assert_eq!(tc(&world, "qdisc show dev vhost1 ingress"), "");
    });
}

/// Filters of another program, for example a policy agent, stay next to podwire's filters.
#[test]
fn add_with_foreign_clsact_shares_it() {
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
        // A second ADD, as after a killed ADD, adds no duplicate filter.
        call.add().ok();
        assert_eq!(tc(&world, "filter show dev vhost1 ingress").matches("match").count(), 4);
        call.del(&result).ok();
    });
}

#[test]
fn two_interfaces_of_container_are_independent() {
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

/// Switching a node in either direction while pods run.
#[test]
fn bandwidth_of_go_and_podwire_is_taken_over() {
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
            assert_eq!(
                ifbs(&world).len(),
                1,
                "GC removed an ifb of the Go plugin, whose network is unknown"
            );
            of(&ours, 1).del(&by_go).ok();
            assert_eq!(ifbs(&world), Vec::<String>::new());
            let by_ours = of(&ours, 2).add().result();
            of(&go, 2).check(&by_ours).ok();
            of(&go, 2).del(&by_ours).ok();
            assert_eq!(ifbs(&world), Vec::<String>::new());
        }
    });
}

/// The first interface of a container gets the Go plugin's ifb name, whatever the interface's name.
/// The second interface gets a different ifb name, and CHECK, DEL and GC tell the two apart.
#[test]
fn first_interface_gets_ifb_name_of_go_plugin() {
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
                // Replaces the ifb, as after an ADD that was killed when it had created the ifb.
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
            assert_eq!(ifbs(&world), Vec::<String>::new(), "GC must use the owner, not the name");
        }
    });
}

/// An ifb without an alias is either stale or just being created for another interface. The MAC
/// address tells which interface it belongs to.
#[test]
fn ifb_without_alias_is_identified_by_mac() {
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

/// Calls for the second interface must not replace or remove the Go plugin's ifb of the first
/// interface.
#[test]
fn go_ifb_is_removed_only_with_its_interface() {
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

/// Bursts that cri-dockerd, containerd and CRI-O request for any rate. `tc` prints bytes.
#[test]
fn bursts_of_kubernetes_runtimes_are_applied() {
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
                // The kernel reports multiples of 64 ns.
                let (found, wanted) = (shown(device), burst / 8);
                assert!(wanted - found < 1000, "{device}: {found} bytes, configured {wanted}");
            }
            call.check(&result).ok();
            call.del(&result).ok();
        }
        // The burst's duration, 429 s, exceeds the 274 s that the kernel's answer can hold: `tc`
        // prints the remainder, and CHECK accepts it.
        let rates = json!({"ingressRate": 10_000_000, "ingressBurst": u32::MAX});
        let call = call.config(&with(call.config.clone(), &rates));
        let result = call.add().result();
        assert_eq!(shown("vhost1"), 193_273_526);
        call.check(&result).ok();
    });
}

#[test]
fn gc_removes_only_unlisted_ifbs_of_its_network() {
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
        assert_eq!(ifbs(&world).len(), 5, "GC without a list removed an ifb");
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
fn status_probes_kernel_and_changes_nothing() {
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

/// Without CAP_NET_ADMIN an ADD would fail, so STATUS fails.
#[test]
fn status_without_privileges_fails() {
    in_netns(|| {
        testkit::require!(Program("setpriv"));
        let world = World::new(&Plugins::ours(), 0);
        let call = world.call(&config(&json!({})), 1);
        let unprivileged = ["setpriv", "--bounding-set=-sys_admin,-net_admin"];
        let child = call.start_under(&unprivileged, "STATUS", call.config.to_string().as_bytes());
        let output = child.wait_with_output().expect("read the plugin's output");
        crate::call::Answer::of(&output).fails_with(50, "cannot limit bandwidth");
        // Without configured limits the network can serve containers without limits.
        let call = world.call(&network("bandwidth", &json!({})), 1);
        let child = call.start_under(&unprivileged, "STATUS", call.config.to_string().as_bytes());
        let output = child.wait_with_output().expect("read the plugin's output");
        crate::call::Answer::of(&output).ok();
    });
}

/// Without an egress limit no ifb is needed.
#[test]
fn status_probes_only_configured_directions() {
    in_netns(|| {
        testkit::require!(Program("strace"));
        let world = World::new(&Plugins::ours(), 0);
        let messages = |more: &Value| {
            let call = world.call(&network("bandwidth", more), 1);
            let strace = ["strace", "-qq", "-xx", "-s4096", "-o", "/run/status.log"];
            let strace = [&strace[..], &["-e", "trace=%network"]].concat();
            let child = call.start_under(&strace, "STATUS", call.config.to_string().as_bytes());
            let output = child.wait_with_output().expect("wait for strace");
            crate::call::Answer::of(&output).ok();
            std::fs::read_to_string("/run/status.log").expect("read strace's log")
        };
        let ingress = json!({"ingressRate": 20_000_000, "ingressBurst": 1_000_000});
        let egress = json!({"egressRate": 20_000_000, "egressBurst": 1_000_000});
        // Link and qdisc kinds are strings in the netlink messages; strace prints each byte in hex.
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
