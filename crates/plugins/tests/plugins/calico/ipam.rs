// SPDX-License-Identifier: Apache-2.0
//! `calico-ipam`, without an agent and with a stand-in.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{answers, in_netns};

use super::agent::{Agent, STATE};
use super::{address, calico, host_ends, pod_args, pod_call};
use crate::conf::{bridge, macvlan, network, ptp, with};
use crate::world::{Plugins, World};

const SOCKET: &str = "/run/agent.sock";

/// A network whose addresses come from the agent.
fn pools(config: Value, ipam: &Value) -> Value {
    let ipam = with(json!({"type": "calico-ipam"}), ipam);
    with(config, &json!({"ipam": ipam, "agent_socket": SOCKET, "agent_state_dir": STATE}))
}

fn both() -> Value {
    json!({"assign_ipv4": "true", "assign_ipv6": "true"})
}

#[test]
fn calico_ipam_without_agent_fails_and_releases() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let config = pools(calico(&json!({})), &json!({}));
        let call = pod_call(&world, &config, 1);
        let before = world.snapshot();
        call.add().fails_with(11, "no node agent listens on /run/agent.sock");
        call.status().fails_with(50, "no node agent listens on /run/agent.sock");
        call.gc(&[]).fails_with(11, "no node agent listens on /run/agent.sock");
        call.run("DEL").ok();
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
        // The journal shows the agent what was released meanwhile.
        let file = |name: &str| format!("{STATE}/ipam/{name}");
        fs::create_dir_all(format!("{STATE}/ipam")).unwrap();
        for name in ["net.c1:eth0", "net.c1:eth1", "net.c2:eth0"] {
            fs::write(file(name), "{}").unwrap();
        }
        call.run("DEL").ok();
        assert!(!Path::new(&file("net.c1:eth0")).exists());
        assert!(Path::new(&file("net.c1:eth1")).exists());
        assert!(Path::new(&file("net.c2:eth0")).exists());
    });
}

#[test]
fn calico_pod_with_pools_has_life_cycle() {
    in_netns(|| {
        let agent = Agent::start(SOCKET);
        let world = World::new(&Plugins::ours(), 2);
        let ipam = with(both(), &json!({"ipv4_pools": ["blue", "10.5.0.0/16"]}));
        let config = pools(calico(&json!({})), &ipam);
        let call = pod_call(&world, &config, 1);
        call.status().ok();
        let result = call.add().result();
        let expected = json!({"network": "net", "container_id": "c1", "ifname": "eth0",
            "netns": "/run/netns/pod1", "handle": "net.c1", "ipv4": true, "ipv6": true,
            "ipv4_pools": ["blue", "10.5.0.0/16"],
            "pod": {"namespace": "default", "name": "web1", "uid": "u-web1"}});
        assert_eq!(agent.last("/ipam/assign"), expected);
        let ips: Vec<&Value> =
            result["ips"].as_array().unwrap().iter().map(|ip| &ip["address"]).collect();
        assert_eq!(json!(ips), json!(["10.5.0.1/32", "fd00:5::1/128"]));
        assert_eq!(
            result["routes"],
            json!([{"dst": "10.5.0.1/32"}, {"dst": "fd00:5::1/128"}]),
            "Calico's result has these routes"
        );
        call.check(&result).ok();
        pod_call(&world, &config, 2).add().ok();
        assert!(answers(world.pod(2), "10.5.0.1".parse().unwrap()));
        assert!(answers(world.pod(2), "fd00:5::1".parse().unwrap()));
        // A second ADD must not release the addresses of the first.
        call.add().fails_with(999, "already exists");
        assert_eq!(agent.assigned().len(), 4);
        call.check(&result).ok();
        call.gc(&[("c1", "eth0")]).ok();
        assert_eq!(agent.assigned(), ["10.5.0.1", "fd00:5::1"]);
        let release = json!({"network": "net", "container_id": "c1", "ifname": "eth0",
            "handle": "net.c1",
            "pod": {"namespace": "default", "name": "web1", "uid": "u-web1"}});
        call.del(&result).ok();
        assert_eq!(agent.last("/ipam/release"), release);
        assert_eq!(agent.assigned(), Vec::<String>::new());
        call.check(&result).fails_with(999, "no address is assigned to container c1");
        call.del(&result).ok();
    });
}

#[test]
fn calico_ipam_forwards_errors_of_the_agent() {
    in_netns(|| {
        let agent = Agent::start(SOCKET);
        let world = World::new(&Plugins::ours(), 1);
        let call = pod_call(&world, &pools(calico(&json!({})), &json!({})), 1);
        let before = world.snapshot();
        agent.refuse(11, "all blocks are full");
        call.add().fails_with(11, "all blocks are full");
        call.status().fails_with(50, "all blocks are full");
        agent.refuse(7, "no pool \"blue\"");
        call.add().fails_with(7, "no pool \"blue\"");
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
        agent.accept();
        call.add().ok();
        // A failure after the assignment releases the addresses.
        call.run("DEL").ok();
        let failing = with(
            call.config.clone(),
            &json!({"runtimeConfig": {
            "portMappings": [{"hostPort": 0, "containerPort": 80, "protocol": "none"}]}}),
        );
        call.config(&failing).add().fails_with(7, "portmap: ");
        assert_eq!(agent.assigned(), Vec::<String>::new());
        assert_eq!(host_ends(&world), Vec::<String>::new());
    });
}

/// An agent in flannel's mode answers these paths with 404.
#[test]
fn calico_ipam_with_agent_without_pools_fails() {
    in_netns(|| {
        let listener = std::os::unix::net::UnixListener::bind(SOCKET).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                use std::io::{Read, Write};
                let mut stream = stream.unwrap();
                let mut received = [0; 4096];
                let _ = stream.read(&mut received);
                let _ = stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\nno page\n");
            }
        });
        let world = World::new(&Plugins::ours(), 1);
        let call = pod_call(&world, &pools(calico(&json!({})), &json!({})), 1);
        call.add().fails_with(11, "has no address pools");
        call.status().fails_with(50, "has no address pools");
        call.run("DEL").ok();
    });
}

#[test]
fn calico_ipam_requests_address_of_the_runtime() {
    in_netns(|| {
        let agent = Agent::start(SOCKET);
        let world = World::new(&Plugins::ours(), 3);
        let config = pools(calico(&json!({})), &json!({}));
        let call = world.call(&config, 1).args(&format!("{};IP=10.5.0.77", pod_args("web1")));
        call.add().ok();
        assert_eq!(agent.last("/ipam/assign")["addresses"], json!(["10.5.0.77"]));
        let ips = json!({"runtimeConfig": {"ips": ["10.5.0.78/24", "fd00:5::78"]}});
        let call = pod_call(&world, &with(config, &ips), 2);
        call.add().ok();
        assert_eq!(agent.last("/ipam/assign")["addresses"], json!(["10.5.0.78", "fd00:5::78"]));
        let call = pod_call(&world, &call.config, 3);
        call.args("IP=10.5.0.300").add().fails_with(4, "10.5.0.300");
        call.args("IP=10.5.0.3").add().fails_with(7, "more than one address");
    });
}

#[test]
fn calico_ipam_serves_other_plugins() {
    in_netns(|| {
        let agent = Agent::start(SOCKET);
        let world = World::new(&Plugins::ours(), 2);
        world.on_host("link add m0 type bridge");
        world.on_host("link set m0 up");
        for config in [bridge(&json!({})), ptp(&json!({})), macvlan(&json!({}))] {
            let config = pools(config, &both());
            let results = [1, 2].map(|pod| {
                let call = world.call(&config, pod);
                let result = call.add().result();
                call.check(&result).ok();
                result
            });
            if config["type"] == "ptp" {
                assert!(answers(world.pod(1), address(&results[1], 0)));
                assert!(answers(world.pod(1), address(&results[1], 1)));
            }
            for pod in 1..=2 {
                world.call(&config, pod).del(&results[pod - 1]).ok();
            }
            assert_eq!(agent.assigned(), Vec::<String>::new(), "{}", config["type"]);
        }
    });
}

/// Called directly, as by a plugin of another project.
#[test]
fn calico_ipam_runs_as_a_process() {
    in_netns(|| {
        let agent = Agent::start(SOCKET);
        let world = World::new(&Plugins::ours(), 1);
        let config = pools(network("calico-ipam", &json!({})), &json!({}));
        let call = world.call(&config, 1);
        let result = call.add().result();
        let expected = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.5.0.1/32"}],
            "routes": [{"dst": "10.5.0.1/32"}]});
        assert_eq!(result, expected);
        assert_eq!(call.add().result(), result, "a repeated request gets the same address");
        call.check(&result).ok();
        call.del(&result).ok();
        assert_eq!(agent.assigned(), Vec::<String>::new());
        let calico = pools(calico(&json!({})), &json!({}));
        let call = pod_call(&world, &calico, 1).always_exec();
        let result = call.add().result();
        call.check(&result).ok();
        call.del(&result).ok();
        assert_eq!(agent.assigned(), Vec::<String>::new());
    });
}
