// SPDX-License-Identifier: Apache-2.0
//! CHECK of bandwidth detects every change since the ADD.

use serde_json::{Value, json};
use testkit::in_netns;

use super::{call, tc};
use crate::world::{Plugins, World};

/// A damaging `ip` or `tc` command, and the text expected from CHECK.
type Damage = (&'static str, &'static str);

const IFB: &str = "bwp623e1c388032";

const PLAIN: &[Damage] = &[
    ("tc qdisc del dev vhost1 root", "vhost1 has no tbf at its root"),
    ("tc qdisc change dev vhost1 root tbf rate 19mbit burst 125000 limit 187500", "rate 2375000"),
    ("tc qdisc change dev vhost1 root tbf rate 20mbit burst 99000 limit 187500", "another burst"),
    ("tc qdisc change dev vhost1 root tbf rate 20mbit burst 125000 limit 9999", "queue of 9999"),
    ("ip link del bwp623e1c388032", "bwp623e1c388032 does not exist"),
    ("ip link set bwp623e1c388032 down", "bwp623e1c388032 is down"),
    ("tc qdisc del dev bwp623e1c388032 root", "bwp623e1c388032 has no tbf"),
    ("tc qdisc del dev vhost1 ingress", "no filter for all packets at ffff:"),
    ("tc filter del dev vhost1 ingress prio 1", "no filter for all packets"),
    ("ip link del vhost1", "eth0 is not in the container"),
];

const WITH_SUBNETS: &[Damage] = &[
    ("tc qdisc del dev vhost1 root", "no htb"),
    ("tc class change dev vhost1 classid 2:1 htb rate 21mbit burst 125000", "rate 2625000"),
    ("tc qdisc del dev vhost1 parent 2:1", "has a queue"),
    ("tc filter del dev vhost1 parent 2: prio 1", "no filter for packets from 10.9.0.0/16"),
    ("tc filter del dev vhost1 parent 2: prio 2", "no filter for packets from fd00:9::/32"),
    ("tc filter del dev vhost1 ingress prio 2", "no filter for packets to fd00:9::/32"),
    ("tc filter del dev vhost1 ingress prio 3", "no filter for all packets"),
];

fn assert_check_detects(more: &Value, damages: &[Damage]) {
    let plugins = Plugins::ours();
    for (line, words) in damages {
        println!("{line}");
        let world = World::new(&plugins, 1);
        let call = call(&world, 1, more);
        let result = call.add().result();
        call.check(&result).ok();
        match line.split_once(' ') {
            Some(("tc", rest)) => drop(tc(&world, rest)),
            Some((_, rest)) => drop(world.on_host(rest)),
            None => panic!("{line}"),
        }
        call.check(&result).fails_with(999, words);
        call.del(&result).ok();
    }
}

#[test]
fn check_of_damaged_limits_fails() {
    in_netns(|| assert_check_detects(&json!({}), PLAIN));
}

#[test]
fn check_of_damaged_subnet_filters_fails() {
    let more = json!({"unshapedSubnets": ["10.9.0.0/16", "fd00:9::/32"]});
    in_netns(|| assert_check_detects(&more, WITH_SUBNETS));
}

/// The configuration has changed since the ADD.
#[test]
fn check_with_changed_limits_fails() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = call(&world, 1, &json!({}));
        let result = call.add().result();
        assert!(result["interfaces"].to_string().contains(IFB), "{result}");
        let with = |more: Value| call.config(&crate::conf::with(call.config.clone(), &more));
        with(json!({"latency": "5ms"})).check(&result).fails_with(999, "queue");
        with(json!({"egressBurst": 2_000_000})).check(&result).fails_with(999, "burst");
        let none = with(json!({"ingressRate": 0, "ingressBurst": 0, "egressRate": 0,
            "egressBurst": 0}));
        none.check(&result).ok();
    });
}
