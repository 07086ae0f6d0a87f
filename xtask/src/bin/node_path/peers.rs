// SPDX-License-Identifier: Apache-2.0
//! What many peers cost: until all are in the kernel, memory, the change of one more, and doing nothing.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use kernel::events::{Events, Object, Topic};
use kernel::link;
use serde::Serialize;
use store::Store;
use store::embedded::Embedded;

use super::agent::{Agent, embedded, flags_of};
use super::node::{self, Node};
use super::peer::Peer;
use super::process::run;
use super::{Outcome, wait};

const CONF: &str = r#"{"Network": "10.0.0.0/8", "Backend": {"Type": "vxlan"}}"#;
/// After a start, until the agent has written its log and has begun with what it does now and then.
const SETTLE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two changes.
const PAUSE: Duration = Duration::from_millis(20);

/// Prefixes that follow from the agent's own address.
const OWN: usize = 1;

/// Of one agent.
#[derive(Debug, Serialize)]
pub struct Found {
    /// From the start of the process until the last route is there, in milliseconds.
    started: f64,
    /// From the list until all is in the kernel, as the agent itself says.
    listed: f64,
    /// Resident, in KiB.
    memory: u64,
    /// From the write of one more peer until its route is there, in microseconds.
    changes: Vec<f64>,
    /// Of one processor, in percent, while nothing happens.
    idle: f64,
    /// From sending the kernel what one more peer needs until its answer, without an agent, in microseconds.
    bare: Vec<f64>,
}

/// An agent that starts where this many peers are.
pub fn measure(
    program: &Path,
    dir: &Path,
    count: usize,
    changes: usize,
    idle: Duration,
) -> Outcome<Found> {
    let [node, other] = node::two()?;
    // What is sent to peers leaves the node, and nobody answers.
    run(&node, &format!("ip route add 198.18.0.0/15 via {}", other.underlay()))?;
    let file = dir.join("store.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = runtime.block_on(Embedded::open(&file))?;
    for number in 0..count {
        runtime.block_on(write(&store, &Peer::new(number)?))?;
    }
    let before = prefixes(&node)?;
    let start = Instant::now();
    let mut agent = Agent::start(program, &node, dir, &flags_of(&embedded(&file), CONF))?;
    wait::until("all routes", Duration::from_micros(500), || {
        agent.check()?;
        Ok((prefixes(&node)? >= before + OWN + count).then_some(()))
    })?;
    let started = start.elapsed().as_secs_f64() * 1e3;
    agent.settled()?;
    check(&node, count)?;
    pause(SETTLE);
    let listed = agent.status()?["compare"]["seconds"].as_f64().ok_or("no comparison")? * 1e3;
    let memory = resident(agent.id())?;
    let mut events = node.netns.enter(|| Events::listen(&[Topic::Routes]))??;
    let (changed, new) = (changes, count..count + changes);
    let changes = new
        .clone()
        .map(|number| change(&runtime, &store, &mut events, number))
        .collect::<Outcome<_>>()?;
    pause(SETTLE);
    let idle = used_while(agent.id(), idle)?;
    // What it has made stays.
    drop(agent);
    let bare = new.map(|number| add_bare(&node, number + changed)).collect::<Outcome<_>>()?;
    Ok(Found { started, listed, memory, changes, idle, bare })
}

async fn write(store: &Embedded, peer: &Peer) -> Outcome {
    let key = peer.key();
    let written = store.create(&key, peer.value().as_bytes(), None).await?;
    if written.is_done() { Ok(()) } else { Err(format!("{key} is there").into()) }
}

/// Microseconds until the route of one more peer is there.
fn change(
    runtime: &tokio::runtime::Runtime,
    store: &Embedded,
    events: &mut Events,
    number: usize,
) -> Outcome<f64> {
    let peer = Peer::new(number)?;
    let subnet = peer.subnet;
    pause(PAUSE);
    let start = Instant::now();
    runtime.block_on(write(store, &peer))?;
    let mut is_there = false;
    while !is_there {
        let deadline = start + PATIENCE;
        if Instant::now() > deadline {
            return Err(format!("there is no route to {subnet}").into());
        }
        events.receive(deadline, |event| {
            let to = |dst: IpNet| dst == IpNet::V4(subnet);
            is_there |= matches!(event.object, Object::Route(route) if to(route.dst));
        })?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

/// Microseconds that the kernel takes for one more peer, whoever asks.
fn add_bare(node: &Node, number: usize) -> Outcome<f64> {
    let nl = node.netns.netlink()?;
    let requests = Peer::new(number)?.requests(link::index_of(&nl, "flannel.1".parse()?)?);
    pause(PAUSE);
    let start = Instant::now();
    nl.apply(requests)?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

/// In the main table; counted by the kernel, in microseconds.
fn prefixes(node: &Node) -> Outcome<usize> {
    let text = node.netns.enter(|| fs::read_to_string("/proc/thread-self/net/fib_triestat"))??;
    let count = text.lines().find_map(|line| line.trim().strip_prefix("Prefixes:"));
    Ok(count.ok_or("fib_triestat has no prefixes")?.trim().parse()?)
}

/// All that each peer needs is there, as other programs see it.
fn check(node: &Node, count: usize) -> Outcome {
    for line in [
        "ip -4 route show dev flannel.1",
        "ip -4 neighbour show dev flannel.1 nud permanent",
        "bridge fdb show dev flannel.1",
    ] {
        let found = run(node, line)?.lines().count();
        if found != count {
            return Err(format!("`{line}` has {found} lines where there are {count} peers").into());
        }
    }
    Ok(())
}

fn resident(process: u32) -> Outcome<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let amount = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let amount = amount.and_then(|amount| amount.trim().strip_suffix(" kB"));
    Ok(amount.ok_or("no VmRSS")?.parse()?)
}

/// Percent of a processor that all threads of a process use meanwhile.
fn used_while(process: u32, time: Duration) -> Outcome<f64> {
    let (before, start) = (used(process)?, Instant::now());
    pause(time);
    Ok((used(process)? - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0)
}

/// The scheduler's own count: that of /proc/*/stat is in ticks of 10 ms.
fn used(process: u32) -> Outcome<Duration> {
    let mut nanos = 0;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        nanos += text.split(' ').next().ok_or("schedstat is empty")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}

#[expect(clippy::disallowed_methods, reason = "nothing happens, and that is what is measured")]
fn pause(time: Duration) {
    thread::sleep(time);
}
