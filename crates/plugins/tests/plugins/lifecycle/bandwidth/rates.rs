// SPDX-License-Identifier: Apache-2.0
//! Real traffic through the limits. What may pass is bounded whatever the machine does; what must pass is
//! compared with far less than any machine does.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

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
/// Bytes in a second: the limit of 20 Mbit/s, and twice as much.
const LIMIT: u64 = 2_500_000;
const BOUND: u64 = 2 * LIMIT;
/// What passes without a limit, in time and against twice the limit: 40 Mbyte take 8 s then.
const AMOUNT: u64 = 40_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToPod,
    FromPod,
}

/// A pod with addresses of two networks of each family, and the host with those of the partners.
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

/// A connection from the pod to an address of the host: who sends, and who receives.
fn connect(world: &World, partner: IpAddr, direction: Direction) -> (TcpStream, TcpStream) {
    let listen = || TcpListener::bind((partner, 0)).expect("an address of the host");
    let listener = Netns::open(world.host.path()).unwrap().enter(listen).unwrap();
    let at: SocketAddr = listener.local_addr().unwrap();
    let dial = || TcpStream::connect(at).expect("the host answers");
    let pod = Netns::open(world.pod(1).path()).unwrap().enter(dial).unwrap();
    let (host, _) = listener.accept().unwrap();
    match direction {
        Direction::ToPod => (host, pod),
        Direction::FromPod => (pod, host),
    }
}

/// How much arrives until time or amount is reached, and in what time.
fn transfer(streams: (TcpStream, TcpStream), time: Duration, amount: u64) -> (u64, Duration) {
    let (mut sender, mut receiver) = streams;
    receiver.set_read_timeout(Some(time)).unwrap();
    let block = vec![0; 1 << 16];
    // It ends with an error when the receiver is gone.
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
    sending.join().expect("the sender ends");
    (arrived, took)
}

#[track_caller]
fn is_limited(world: &World, partner: &str, direction: Direction) {
    let streams = connect(world, partner.parse().unwrap(), direction);
    let (arrived, took) = transfer(streams, TIME, u64::MAX);
    let bound = BOUND * u64::try_from(took.as_millis()).unwrap() / 1000;
    assert!(arrived < bound, "{partner} {direction:?}: {arrived} bytes in {took:?}");
    assert!(arrived > 100_000, "{partner} {direction:?}: only {arrived} bytes in {took:?}");
}

#[track_caller]
fn is_free(world: &World, partner: &str, direction: Direction) {
    let streams = connect(world, partner.parse().unwrap(), direction);
    let time = Duration::from_millis(AMOUNT * 1000 / BOUND);
    let (arrived, took) = transfer(streams, time, AMOUNT);
    assert!(arrived >= AMOUNT, "{partner} {direction:?}: only {arrived} bytes in {took:?}");
}

const DIRECTIONS: [Direction; 2] = [Direction::ToPod, Direction::FromPod];

#[test]
fn rates_are_kept_in_both_directions() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        lab(&world, &json!({}));
        for direction in DIRECTIONS {
            is_limited(&world, "10.1.0.1", direction);
            is_limited(&world, "fd00:9::1", direction);
        }
    });
}

#[test]
fn one_direction_alone_is_limited() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        lab(&world, &json!({"ingressRate": 0, "ingressBurst": 0}));
        is_free(&world, "10.1.0.1", Direction::ToPod);
        is_limited(&world, "10.1.0.1", Direction::FromPod);
    });
}

#[test]
fn unshaped_subnets_are_free() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        lab(&world, &json!({"unshapedSubnets": ["10.9.0.0/16", "fd00:9::/32"]}));
        for direction in DIRECTIONS {
            is_free(&world, "10.9.0.1", direction);
            is_free(&world, "fd00:9::1", direction);
            is_limited(&world, "10.1.0.1", direction);
            is_limited(&world, "fd00:1::1", direction);
        }
    });
}

#[test]
fn shaped_subnets_alone_are_limited() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        lab(&world, &json!({"shapedSubnets": ["10.9.0.0/16", "fd00:9::/32"]}));
        for direction in DIRECTIONS {
            is_limited(&world, "10.9.0.1", direction);
            is_limited(&world, "fd00:9::1", direction);
            is_free(&world, "10.1.0.1", direction);
            is_free(&world, "fd00:1::1", direction);
        }
    });
}
