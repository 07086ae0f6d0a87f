// SPDX-License-Identifier: Apache-2.0
//! Real traffic through the limits. The upper bounds hold on any machine; the lower bounds are far
//! below what any machine achieves.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use kernel::Netns;
use serde_json::{Value, json};
use testkit::in_netns;

use super::call;
use crate::world::{Plugins, World};

const TIME: Duration = Duration::from_millis(1500);
/// Bytes per second: the limit of 20 Mbit/s, and twice the limit.
const LIMIT: u64 = 2_500_000;
const BOUND: u64 = 2 * LIMIT;
/// Bytes that must arrive without a limit in the time that twice the limit would need, 8 s.
const AMOUNT: u64 = 40_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToPod,
    FromPod,
}

/// Creates a pod and a host with addresses in two networks of each family.
fn lab(world: &World, more: &Value) {
    let call = call(world, 1, more);
    for (net, net6) in [("10.1.0", "fd00:1::"), ("10.9.0", "fd00:9::")] {
        world.on_host(&format!("addr add {net}.1/24 dev vhost1"));
        world.in_pod(1, &format!("addr add {net}.2/24 dev eth0"));
        world.on_host(&format!("addr add {net6}1/64 dev vhost1 nodad"));
        world.in_pod(1, &format!("addr add {net6}2/64 dev eth0 nodad"));
    }
    call.add().ok();
}

/// Connects the pod to an address of the host. Returns the sender and the receiver.
fn connect(world: &World, partner: IpAddr, direction: Direction) -> (TcpStream, TcpStream) {
    let listen = || TcpListener::bind((partner, 0)).expect("bind an address of the host");
    let listener = Netns::open(world.host.path()).unwrap().enter(listen).unwrap();
    let at: SocketAddr = listener.local_addr().unwrap();
    let dial = || TcpStream::connect(at).expect("connect to the host");
    let pod = Netns::open(world.pod(1).path()).unwrap().enter(dial).unwrap();
    let (host, _) = listener.accept().unwrap();
    match direction {
        Direction::ToPod => (host, pod),
        Direction::FromPod => (pod, host),
    }
}

/// Receives until `time` or `amount` is reached. Returns the number of bytes and the elapsed time.
fn transfer(streams: (TcpStream, TcpStream), time: Duration, amount: u64) -> (u64, Duration) {
    let (mut sender, mut receiver) = streams;
    receiver.set_read_timeout(Some(time)).unwrap();
    let block = vec![0; 1 << 16];
    // Ends with an error when the receiver is closed.
    let sending = thread::spawn(move || while sender.write_all(&block).is_ok() {});
    let start = Instant::now();
    let mut buffer = vec![0; 1 << 16];
    let mut arrived = 0;
    while start.elapsed() < time && arrived < amount {
        let Ok(count) = receiver.read(&mut buffer) else { break };
        arrived += count as u64;
    }
    let took = start.elapsed();
    drop(receiver);
    sending.join().expect("join the sender");
    (arrived, took)
}

#[track_caller]
fn assert_limited(world: &World, partner: &str, direction: Direction) {
    let streams = connect(world, partner.parse().unwrap(), direction);
    let (arrived, took) = transfer(streams, TIME, u64::MAX);
    let bound = BOUND * u64::try_from(took.as_millis()).unwrap() / 1000;
    assert!(arrived < bound, "{partner} {direction:?}: {arrived} bytes in {took:?}");
    assert!(arrived > 100_000, "{partner} {direction:?}: only {arrived} bytes in {took:?}");
}

#[track_caller]
fn assert_unlimited(world: &World, partner: &str, direction: Direction) {
    let streams = connect(world, partner.parse().unwrap(), direction);
    let time = Duration::from_millis(AMOUNT * 1000 / BOUND);
    let (arrived, took) = transfer(streams, time, AMOUNT);
    assert!(arrived >= AMOUNT, "{partner} {direction:?}: only {arrived} bytes in {took:?}");
}

const DIRECTIONS: [Direction; 2] = [Direction::ToPod, Direction::FromPod];

#[test]
fn rates_limit_both_directions() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        lab(&world, &json!({}));
        for direction in DIRECTIONS {
            assert_limited(&world, "10.1.0.1", direction);
            assert_limited(&world, "fd00:9::1", direction);
        }
    });
}

#[test]
fn egress_limit_alone_leaves_ingress_unlimited() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        lab(&world, &json!({"ingressRate": 0, "ingressBurst": 0}));
        assert_unlimited(&world, "10.1.0.1", Direction::ToPod);
        assert_limited(&world, "10.1.0.1", Direction::FromPod);
    });
}

#[test]
fn unshaped_subnets_are_not_limited() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        lab(&world, &json!({"unshapedSubnets": ["10.9.0.0/16", "fd00:9::/32"]}));
        for direction in DIRECTIONS {
            assert_unlimited(&world, "10.9.0.1", direction);
            assert_unlimited(&world, "fd00:9::1", direction);
            assert_limited(&world, "10.1.0.1", direction);
            assert_limited(&world, "fd00:1::1", direction);
        }
    });
}

#[test]
fn shaped_subnets_limit_only_those_subnets() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        lab(&world, &json!({"shapedSubnets": ["10.9.0.0/16", "fd00:9::/32"]}));
        for direction in DIRECTIONS {
            assert_limited(&world, "10.9.0.1", direction);
            assert_limited(&world, "fd00:9::1", direction);
            assert_unlimited(&world, "10.1.0.1", direction);
            assert_unlimited(&world, "fd00:1::1", direction);
        }
    });
}
