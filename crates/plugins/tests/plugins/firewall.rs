// SPDX-License-Identifier: Apache-2.0
//! The firewall plugin: traffic on hosts that drop forwarded packets, ingress policies, the
//! iptables backend, and the lifecycle of its elements.

mod backend;
mod firewalld;
mod forward;
mod life;
mod policy;
mod traffic;

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Ns, answers, can_ping, wait_for};

use crate::call::Call;
use crate::conf::{bridge, network, ranges, with};
use crate::world::{Plugins, World};

/// A bridge that is the gateway of its containers, with addresses of both families.
fn routed(name: &str, number: u8) -> Value {
    let ranges = ranges(&json!([
        [{"subnet": format!("10.{number}.0.0/24")}],
        [{"subnet": format!("fd00:{number}::/64")}]
    ]));
    let ipam = with(ranges, &json!({"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}));
    let keys =
        json!({"name": name, "bridge": format!("br{number}"), "isGateway": true, "ipam": ipam});
    bridge(&keys)
}

/// firewall with these keys, for a network of this name.
fn firewall(name: &str, more: &Value) -> Value {
    with(network("firewall", &json!({"name": name})), more)
}

/// A network of bridge and firewall, called like by a runtime.
struct Chain<'a> {
    world: &'a World,
    bridge: Value,
    firewall: Value,
}

impl<'a> Chain<'a> {
    fn new(world: &'a World, number: u8, keys: &Value) -> Self {
        let name = format!("net{number}");
        Chain { world, bridge: routed(&name, number), firewall: firewall(&name, keys) }
    }

    fn call(&self, pod: usize) -> Call {
        self.world.call(&self.firewall, pod)
    }

    fn add(&self, pod: usize) -> Value {
        let result = self.world.call(&self.bridge, pod).add().result();
        let passed = self.call(pod).with_prev_result(&result).add().result();
        assert_eq!(passed, result);
        result
    }

    fn del(&self, pod: usize, result: &Value) {
        self.call(pod).del(result).ok();
        self.world.call(&self.bridge, pod).del(result).ok();
    }
}

/// Creates a namespace outside the host.
fn outside(world: &World) -> Ns {
    let outside = Ns::new("outside");
    world.host.connect("up0", &outside, "eth0");
    for line in ["addr add 10.99.0.1/24 dev up0", "-6 addr add fd00:99::1/64 dev up0 nodad"] {
        world.on_host(line);
    }
    for line in [
        "addr add 10.99.0.2/24 dev eth0",
        "-6 addr add fd00:99::2/64 dev eth0 nodad",
        "route add default via 10.99.0.1",
        "-6 route add default via fd00:99::1",
    ] {
        outside.ip(&line.split_whitespace().collect::<Vec<_>>());
    }
    outside
}

const OUTSIDE: [&str; 2] = ["10.99.0.2", "fd00:99::2"];

/// Panics unless the pod assert_reaches exactly the addresses marked true in `expected`. Waits for
/// duplicate address detection first, because the host needs a link-local address to resolve IPv6
/// neighbours.
#[track_caller]
fn assert_reaches(world: &World, pod: usize, addresses: &[&str], expected: &[bool]) {
    wait_for("duplicate address detection on the host", Duration::from_secs(30), || {
        let links = world.host.ip_json(&["-6", "addr", "show", "tentative"]);
        let mut links = links.as_array().expect("a list of links").iter();
        links.all(|link| link["addr_info"].as_array().is_none_or(Vec::is_empty))
    });
    let ask = |one: &str, expected| match expected {
        true => answers(world.pod(pod), one.parse().expect("an address")),
        false => can_ping(world.pod(pod), one.parse().expect("an address")),
    };
    let found = addresses.iter().zip(expected).map(|(one, expected)| ask(one, *expected));
    assert_eq!(found.collect::<Vec<_>>(), expected, "from pod {pod} to {addresses:?}");
}

fn address(result: &Value, at: usize) -> String {
    let text = result["ips"][at]["address"].as_str().expect("an address");
    text.split_once('/').expect("a prefix length").0.to_owned()
}

/// Sets up the chain FORWARD like Docker does.
fn like_docker(ns: &Ns, program: &str) {
    for line in [
        "-P FORWARD DROP",
        "-N DOCKER-USER",
        "-N DOCKER-ISOLATION-STAGE-1",
        "-N DOCKER-ISOLATION-STAGE-2",
        "-A DOCKER-USER -j RETURN",
        "-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2",
        "-A DOCKER-ISOLATION-STAGE-1 -j RETURN",
        "-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP",
        "-I FORWARD -j DOCKER-ISOLATION-STAGE-1",
        "-I FORWARD -j DOCKER-USER",
    ] {
        ns.exec(program, &line.split_whitespace().collect::<Vec<_>>());
    }
}

fn ours(pods: usize) -> World {
    World::new(&Plugins::ours(), pods)
}
