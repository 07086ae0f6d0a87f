// SPDX-License-Identifier: Apache-2.0
//! MTU, subnets of the node, routes, bandwidth and host ports, and the flags of the programs.

use std::fs;

use serde_json::{Value, json};
use testkit::{in_netns, require};

use super::life::own_var_lib;
use super::{NAMES, calico, host_ends, pod_call};
use crate::call::{Answer, command};
use crate::conf::{dual, network, with, without};
use crate::world::{DATA, Plugins, World};

/// MTU of the pod's interface and of the host end.
fn mtus(world: &World, more: &Value) -> (u64, u64) {
    let call = pod_call(world, &calico(more), 1);
    let result = call.add().result();
    let mtu = |link: &Value| link["mtu"].as_u64().expect("a number");
    let found =
        (mtu(&world.pod(1).ip_json(&["link", "show", "eth0"])[0]), mtu(&world.host_link(NAMES[0])));
    call.check(&result).ok();
    call.del(&result).ok();
    found
}

#[test]
fn calico_mtu_comes_from_key_file_or_default_route() {
    in_netns(|| {
        own_var_lib();
        let world = World::new(&Plugins::ours(), 1);
        assert_eq!(mtus(&world, &json!({})), (1500, 1500));
        world.on_host("link add uplink mtu 1460 type veth peer name far");
        world.on_host("link set uplink up");
        world.on_host("route add default dev uplink");
        assert_eq!(mtus(&world, &json!({})), (1460, 1460));
        world.on_host("link set uplink mtu 9000");
        assert_eq!(mtus(&world, &json!({})), (1500, 1500));
        let required = json!({"require_mtu_file": true});
        let call = pod_call(&world, &calico(&required), 1);
        call.add().fails_with(11, "read /var/lib/calico/mtu");
        call.status().fails_with(50, "read /var/lib/calico/mtu");
        fs::write("/var/lib/calico/mtu", "1430\n").unwrap();
        assert_eq!(mtus(&world, &required), (1430, 1430));
        assert_eq!(mtus(&world, &json!({"mtu": 1420})), (1420, 1420));
        fs::write("/var/lib/calico/mtu", "many").unwrap();
        call.add().fails_with(999, "/var/lib/calico/mtu has \"many\"");
        let result = pod_call(&world, &calico(&json!({"mtu": 1420})), 1).add().result();
        assert_eq!(result["interfaces"][1]["mtu"], 1420);
    });
}

#[test]
fn calico_num_queues_sets_queues() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        pod_call(&world, &calico(&json!({"num_queues": 3, "device_type": "netkit"})), 1).add().ok();
        for link in
            [world.host_link(NAMES[0]), world.pod(1).ip_json(&["link", "show", "eth0"])[0].clone()]
        {
            assert_eq!((&link["num_tx_queues"], &link["num_rx_queues"]), (&json!(3), &json!(3)));
        }
    });
}

#[test]
fn calico_use_pod_cidr_takes_the_nodes_subnets() {
    in_netns(|| {
        fs::create_dir_all("/run/flannel").unwrap();
        let env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\n\
            FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:7::1/64\n\
            FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        let world = World::new(&Plugins::ours(), 1);
        let single = json!({"type": "host-local", "dataDir": DATA, "subnet": "usePodCIDR"});
        let both = json!({"type": "host-local", "dataDir": DATA,
            "ranges": [[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]]});
        let call = |ipam: &Value| pod_call(&world, &calico(&json!({"ipam": ipam})), 1);
        call(&single).add().fails_with(11, "/run/flannel/subnet.env does not exist");
        fs::write("/run/flannel/subnet.env", env).unwrap();
        for (ipam, addresses) in [
            (single, json!(["10.244.7.2/32"])),
            (both.clone(), json!(["10.244.7.3/32", "fd00:244:0:7::2/128"])),
        ] {
            let call = call(&ipam);
            call.status().ok();
            let result = call.add().result();
            let found: Vec<&Value> =
                result["ips"].as_array().unwrap().iter().map(|ip| &ip["address"]).collect();
            assert_eq!(json!(found), addresses);
            call.check(&result).ok();
            call.gc(&[("c1", "eth0")]).ok();
            call.check(&result).ok();
            call.del(&result).ok();
        }
        // DEL and GC need no subnets.
        call(&both).add().ok();
        fs::remove_file("/run/flannel/subnet.env").unwrap();
        call(&both).run("DEL").ok();
        call(&both).gc(&[]).ok();
        assert_eq!(world.disk().without_bookkeeping().0.len(), 0);
        fs::write("/run/other.env", env.replace("FLANNEL_IPV6", "OTHER")).unwrap();
        let config = calico(&json!({"ipam": both, "subnet_file": "/run/other.env"}));
        let missing = "\"ipam.subnet\" is \"usePodCidrIPv6\": /run/other.env has no IPv6";
        pod_call(&world, &config, 1).add().fails_with(7, missing);
    });
}

/// Destinations and gateways of the pod's routes, without the route to the gateway.
fn pod_routes(world: &World) -> Vec<String> {
    let found = world.pod(1).ip_json(&["route", "show"]);
    let routes = found
        .as_array()
        .expect("ip prints a list")
        .iter()
        .filter(|route| route["gateway"].is_string());
    let mut shown: Vec<String> = routes
        .map(|route| format!("{} {} {}", route["dst"], route["gateway"], route["metrics"]))
        .map(|shown| shown.replace('"', ""))
        .collect();
    shown.sort();
    shown
}

#[test]
fn calico_routes_of_host_local_replace_default_route() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let routes = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.1.0.9", "mtu": 1400},
            {"dst": "fd00:9::/64"}]});
        let ipam = with(super::v4(), &routes);
        let check = |more: Value, is_pod: bool, expected: &[&str]| {
            let config = calico(&with(json!({"ipam": ipam}), &more));
            let call = pod_call(&world, &config, 1);
            let call = if is_pod { call } else { call.args("") };
            let result = call.add().result();
            assert_eq!(pod_routes(&world), expected, "{more}");
            call.check(&result).ok();
            call.del(&result).ok();
        };
        let other = "192.0.2.0/24 169.254.1.1 [{mtu:1400}]";
        let default = "default 169.254.1.1 null";
        check(json!({}), true, &[other]);
        check(json!({"include_default_routes": true}), true, &[other, default]);
        // Outside Kubernetes Calico ignores the routes.
        check(json!({}), false, &[default]);
    });
}

fn tc(world: &World, line: &str) -> String {
    world.host.exec("tc", &line.split_whitespace().collect::<Vec<_>>())
}

#[test]
fn calico_limits_bandwidth_and_maps_ports_itself() {
    in_netns(|| {
        require!(Program("socat"));
        let world = World::new(&Plugins::ours(), 1);
        let runtime = json!({
            "bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 800_000,
                "egressRate": 8_000_000, "egressBurst": 800_000},
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
        let config = calico(&json!({"runtimeConfig": runtime}));
        let call = pod_call(&world, &config, 1);
        let result = call.add().result();
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 3, "{result}");
        assert!(tc(&world, &format!("qdisc show dev {} root", NAMES[0])).contains("tbf"));
        call.check(&result).ok();
        call.status().ok();
        world.in_pod(1, "link set lo up");
        let listen = "TCP4-LISTEN:80,reuseaddr,fork";
        let _server = world.pod(1).start("socat", &[listen, "SYSTEM:echo hello"]);
        world.on_host("addr add 192.0.2.7/32 dev lo");
        let connect = "TCP4:192.0.2.7:8080,connect-timeout=2";
        testkit::wait_for("a reply over TCP", std::time::Duration::from_secs(60), || {
            let received = world.host.try_exec("socat", &["-u", connect, "-"]);
            received.is_ok_and(|received| received.contains("hello"))
        });
        // Without the runtime's arguments, the capabilities tell DEL and GC what to look for.
        let capabilities = json!({"capabilities": {"bandwidth": true, "portMappings": true}});
        let bare = with(without(config.clone(), &["runtimeConfig"]), &capabilities);
        for remove in ["DEL", "GC"] {
            let call = pod_call(&world, &bare, 1);
            match remove {
                "DEL" => call.run("DEL").ok(),
                _ => call.gc(&[]).ok(),
            }
            assert_eq!(host_ends(&world), Vec::<String>::new());
            let ifbs = world.host.ip_json(&["link", "show", "type", "ifb"]);
            assert_eq!(ifbs, json!([]), "{remove}");
            let rules = world.host.exec("nft", &["list", "ruleset"]);
            assert!(!rules.contains("8080"), "{remove}: {rules}");
            pod_call(&world, &config, 1).add().ok();
        }
    });
}

#[test]
fn calico_failed_port_mapping_leaves_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        let runtime = json!({
            "bandwidth": {"egressRate": 8_000_000, "egressBurst": 800_000},
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
        let config = calico(&json!({"runtimeConfig": runtime}));
        pod_call(&world, &config, 1).add().ok();
        let before = world.snapshot().without_bookkeeping();
        pod_call(&world, &config, 2).add().fails_with(11, "portmap: ");
        let changes = before.changes_to(&world.snapshot().without_bookkeeping());
        assert_eq!(changes, Vec::<String>::new());
    });
}

#[test]
fn podwire_plugin_with_calico_runs_one_process() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let runtime = json!({
            "bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 800_000,
                "egressRate": 8_000_000, "egressBurst": 800_000},
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
        let main = without(calico(&json!({"ipam": dual()})), &["name", "cniVersion"]);
        let capable = |kind: &str, capability: &str| json!({"type": kind, "capabilities": {capability: true}});
        let plugins =
            json!([main, capable("bandwidth", "bandwidth"), capable("portmap", "portMappings")]);
        let capabilities = json!({"bandwidth": true, "portMappings": true});
        let config = network(
            "podwire",
            &json!({"plugins": plugins, "capabilities": capabilities, "runtimeConfig": runtime}),
        );
        let call = pod_call(&world, &config, 1);
        let before = world.snapshot().without_bookkeeping();
        assert_eq!(crate::process::count_programs(&call, "ADD"), 1);
        call.run("DEL").ok();
        let result = call.add().result();
        let names: Vec<&Value> =
            result["interfaces"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names[..2], [NAMES[0], "eth0"], "{result}");
        assert_eq!(names.len(), 3, "{result}");
        assert!(tc(&world, &format!("qdisc show dev {} root", NAMES[0])).contains("tbf"));
        assert!(world.host.exec("nft", &["list", "ruleset"]).contains("8080"));
        assert_eq!(world.host_link(NAMES[0])["operstate"], "UP");
        call.check(&result).ok();
        call.del(&result).ok();
        call.gc(&[]).ok();
        let left = before.changes_to(&world.snapshot().without_bookkeeping());
        let left: Vec<&String> = left
            .iter()
            .filter(|change| !change.contains("nft") && !change.contains("forward"))
            .collect();
        assert_eq!(left, Vec::<&String>::new());
    });
}

fn run_with(program: &std::path::Path, args: &[&str], stdin: &str) -> Answer {
    use std::io::Write;
    use std::process::Stdio;
    let mut child = command(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start the plugin");
    let mut pipe = child.stdin.take().expect("stdin is piped");
    // A program that does not read its input closes the pipe.
    let _ = pipe.write_all(stdin.as_bytes());
    drop(pipe);
    Answer::of(&child.wait_with_output().expect("read the plugin's output"))
}

#[test]
fn calico_flags_print_version_and_test_connection() {
    in_netns(|| {
        let plugins = Plugins::ours();
        let [calico_program, ipam_program] =
            ["calico", "calico-ipam"].map(|name| plugins.directory().join(name));
        for program in [&calico_program, &ipam_program] {
            let answer = run_with(program, &["-v"], "");
            answer.ok();
            assert_eq!(answer.stdout, concat!(env!("CARGO_PKG_VERSION"), "\n"));
            let answer = run_with(program, &["--bogus"], "");
            assert!(!answer.success && answer.stderr.contains("--bogus"), "{}", answer.stderr);
        }
        let config =
            calico(&json!({"ipam": {"type": "calico-ipam"}, "agent_socket": "/run/a.sock"}));
        let test = || run_with(&calico_program, &["-t"], &config.to_string());
        test().fails_with(100, "/run/a.sock");
        let agent = super::agent::Agent::start("/run/a.sock");
        test().ok();
        agent.refuse(50, "no store");
        test().fails_with(100, "no store");
        run_with(&calico_program, &["-t"], "{").fails_with(100, "EOF");
    });
}
