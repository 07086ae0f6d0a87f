// SPDX-License-Identifier: Apache-2.0
//! Measures the cost of many peers: time until all are in the kernel, memory, one more peer, idle CPU.

use std::collections::HashMap;
use std::ffi::OsString;
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
/// Time after a start until the agent has written its log and started its periodic tasks.
pub(crate) const SETTLE: Duration = Duration::from_secs(2);
/// Maximum wait for the route of a new peer.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two changes.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// Number of routes of the agent's own address.
const OWN_ROUTES: usize = 1;

/// Measurements of one agent.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    /// Time from the start of the process to the last route, in milliseconds.
    pub(crate) started: f64,
    /// Time from the list of leases to the last kernel change, reported by the agent, in milliseconds.
    pub(crate) listed: f64,
    /// Resident memory in KiB.
    pub(crate) memory: u64,
    /// Time from writing one more peer to its route, in microseconds.
    pub(crate) changes: Vec<f64>,
    /// CPU usage when idle, in percent of one CPU.
    pub(crate) idle: f64,
    /// Time of the kernel changes for one more peer without an agent, in microseconds.
    pub(crate) bare: Vec<f64>,
}

/// Starts an agent with this number of peers in the store.
pub(crate) fn measure(
    program: &Path,
    dir: &Path,
    count: usize,
    changes: usize,
    idle: Duration,
) -> Outcome<Measured> {
    let [node, other] = node::two()?;
    // Packets to peers leave the node and are not answered.
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
        Ok((prefixes(&node)? >= before + OWN_ROUTES + count).then_some(()))
    })?;
    let started = start.elapsed().as_secs_f64() * 1e3;
    agent.wait_subnet()?;
    check(&node, "flannel.1", count)?;
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
    // The kernel state stays.
    drop(agent);
    let bare = new.map(|number| add_bare(&node, number + changed)).collect::<Outcome<_>>()?;
    Ok(Measured { started, listed, memory, changes, idle, bare })
}

async fn write(store: &Embedded, peer: &Peer) -> Outcome {
    let key = peer.key();
    let written = store.create(&key, peer.value().as_bytes(), None).await?;
    if written.is_done() { Ok(()) } else { Err(format!("{key} already exists").into()) }
}

/// Adds one more peer and returns the microseconds until its route exists.
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
        let deadline = start + ROUTE_TIMEOUT;
        if Instant::now() > deadline {
            return Err(format!("no route to {subnet}").into());
        }
        events.receive(deadline, |event| {
            let to = |dst: IpNet| dst == IpNet::V4(subnet);
            is_there |= matches!(event.object, Object::Route(route) if to(route.dst));
        })?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

/// Applies the kernel changes for one more peer and returns the microseconds.
fn add_bare(node: &Node, number: usize) -> Outcome<f64> {
    let nl = node.netns.netlink()?;
    let requests = Peer::new(number)?.requests(link::index_of(&nl, "flannel.1".parse()?)?);
    pause(PAUSE);
    let start = Instant::now();
    nl.apply(requests)?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

/// Number of prefixes in the main table. The kernel keeps this count, so that reading it is fast.
pub(crate) fn prefixes(node: &Node) -> Outcome<usize> {
    let text = node.netns.enter(|| fs::read_to_string("/proc/thread-self/net/fib_triestat"))??;
    let count = text.lines().find_map(|line| line.trim().strip_prefix("Prefixes:"));
    Ok(count.ok_or("fib_triestat has no prefixes")?.trim().parse()?)
}

/// Checks with `ip` and `bridge` that all objects of each peer exist.
pub(crate) fn check(node: &Node, device: &str, count: usize) -> Outcome {
    for line in [
        format!("ip -4 route show dev {device}"),
        format!("ip -4 neighbour show dev {device} nud permanent"),
        format!("bridge fdb show dev {device}"),
    ] {
        let lines = run(node, &line)?.lines().count();
        if lines != count {
            return Err(format!("`{line}` prints {lines} lines for {count} peers").into());
        }
    }
    Ok(())
}

pub(crate) fn resident(process: u32) -> Outcome<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let amount = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let amount = amount.and_then(|amount| amount.trim().strip_suffix(" kB"));
    Ok(amount.ok_or("no VmRSS")?.parse()?)
}

/// CPU usage of all threads of a process during `time`, in percent of one CPU.
pub(crate) fn used_while(process: u32, time: Duration) -> Outcome<f64> {
    let (before, start) = (used(process)?, Instant::now());
    pause(time);
    let after = used(process)?;
    // A thread may have ended meanwhile: those of the agent's blocking pool do so after 10 s without work.
    let nanos = after.iter().map(|(task, nanos)| nanos - before.get(task).unwrap_or(&0));
    let used = Duration::from_nanos(nanos.sum());
    Ok(used.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0)
}

/// CPU time of each thread in nanoseconds, from schedstat; /proc/*/stat has a resolution of 10 ms only.
fn used(process: u32) -> Outcome<HashMap<OsString, u64>> {
    let mut used = HashMap::new();
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?;
        // A thread that ends has no file any more.
        let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
        let nanos = text.split(' ').next().ok_or("schedstat is empty")?.parse()?;
        used.insert(task.file_name(), nanos);
    }
    Ok(used)
}

#[expect(clippy::disallowed_methods, reason = "measures an idle agent")]
pub(crate) fn pause(time: Duration) {
    thread::sleep(time);
}
