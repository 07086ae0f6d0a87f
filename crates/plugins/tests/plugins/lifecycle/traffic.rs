// SPDX-License-Identifier: Apache-2.0
//! Traffic: the addresses returned by ADD are usable immediately.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Ns, answers, can_ping, in_netns, require, wait_for};

use crate::conf::{bridge, dual, ptp, ranges, v6, with};
use crate::world::{Plugins, World};

fn address(result: &Value, at: usize) -> IpAddr {
    let text = result["ips"][at]["address"].as_str().expect("an address");
    let (ip, _) = text.split_once('/').expect("a prefix length");
    ip.parse().expect("an address")
}

/// Addresses of all interfaces for which duplicate address detection is running.
fn tentative(ns: &Ns) -> Vec<Value> {
    let links = ns.ip_json(&["-6", "addr", "show", "scope", "global", "tentative"]);
    links.as_array().expect("a list of links").clone()
}

/// Sends one packet only: an address that is not ready would lose it.
#[test]
fn ipv6_addresses_are_usable_after_add() {
    in_netns(|| {
        let plugins = Plugins::ours();
        for config in
            [bridge(&json!({"isGateway": true, "ipam": v6()})), ptp(&json!({"ipam": v6()}))]
        {
            let world = World::new(&plugins, 2);
            for pod in 1..=2 {
                let result = world.call(&config, pod).add().result();
                assert_eq!(tentative(world.pod(pod)), Vec::<Value>::new(), "{result}");
                assert_eq!(tentative(&world.host), Vec::<Value>::new(), "{result}");
                assert!(answers(world.pod(pod), "fd00:1::1".parse().unwrap()), "{result}");
                assert!(answers(&world.host, address(&result, 0)), "{result}");
            }
        }
    });
}

#[test]
fn add_with_enabledad_waits_for_detection() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let config = bridge(&json!({"enabledad": true, "ipam": v6()}));
        let result = world.call(&config, 1).add().result();
        assert_eq!(tentative(world.pod(1)), Vec::<Value>::new());
        world.call(&config, 1).check(&result).ok();
    });
}

#[test]
fn pods_connect_over_tcp() {
    in_netns(|| {
        require!(Program("socat"));
        let plugins = Plugins::ours();
        let routes = json!({"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
        let ipam = with(dual(), &routes);
        for config in
            [bridge(&json!({"isGateway": true, "ipam": ipam})), ptp(&json!({"ipam": ipam}))]
        {
            let world = World::new(&plugins, 2);
            world.call(&config, 1).add().ok();
            let result = world.call(&config, 2).add().result();
            for (at, family) in [(0, "TCP4"), (1, "TCP6")] {
                assert_connects(&world, family, &shown(address(&result, at)));
            }
        }
    });
}

fn shown(ip: IpAddr) -> String {
    if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() }
}

fn assert_connects(world: &World, family: &str, address: &str) {
    let listen = format!("{family}-LISTEN:7000,reuseaddr,fork");
    let _server = world.pod(2).start("socat", &[&listen, "SYSTEM:echo hello from pod two"]);
    let connect = format!("{family}:{address}:7000,connect-timeout=2");
    let mut received = String::new();
    wait_for("a reply over TCP", Duration::from_secs(60), || {
        received = world.pod(1).try_exec("socat", &["-u", &connect, "-"]).unwrap_or_default();
        received.contains("hello from pod two")
    });
}

#[test]
fn isolated_ports_reach_host_only() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        let config = bridge(&json!({"isGateway": true, "portIsolation": true}));
        let first = world.call(&config, 1).add().result();
        let second = world.call(&config, 2).add().result();
        let gateway = "10.1.0.1".parse().unwrap();
        assert!(answers(world.pod(1), gateway) && answers(world.pod(2), gateway));
        assert!(!can_ping(world.pod(1), address(&second, 0)));
        assert!(!can_ping(world.pod(2), address(&first, 0)));
    });
}

#[test]
fn pods_on_one_bridge_reach_each_other() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        let config = bridge(&json!({"ipam": dual()}));
        world.call(&config, 1).add().ok();
        let second = world.call(&config, 2).add().result();
        assert!(answers(world.pod(1), address(&second, 0)));
        assert!(answers(world.pod(1), address(&second, 1)));
    });
}

/// The first addresses of two networks have the same host part, from which the MAC address must not
/// be derived: both networks share a bridge.
#[test]
fn networks_on_one_bridge_use_distinct_macs() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        let other = ranges(&json!([[{"subnet": "fd00:2::/64"}]]));
        let configs =
            [bridge(&json!({"ipam": v6()})), bridge(&json!({"name": "other", "ipam": other}))];
        let macs = [1, 2].map(|pod| {
            let result = world.call(&configs[pod - 1], pod).add().result();
            result["interfaces"][2]["mac"].as_str().expect("a MAC address").to_owned()
        });
        assert_ne!(macs[0], macs[1]);
    });
}
