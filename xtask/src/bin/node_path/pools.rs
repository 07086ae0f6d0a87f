// SPDX-License-Identifier: Apache-2.0
//! Address pools: one assignment beside many others, and many blocks of other nodes.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agent_client::ipam::{self as wire, AssignRequest, AssignResponse, ReleaseRequest};
use ipnet::{IpNet, Ipv4Net};
use kernel::events::{Events, Object, Topic};
use serde::Serialize;
use store::Store;
use store::embedded::Embedded;

use super::agent::{Agent, embedded};
use super::node;
use super::peers::{self, Measured};
use super::process::run;
use super::{Outcome, wait};

const TIMEOUT: Duration = Duration::from_secs(10);
const CONFIG: (&str, &str) =
    ("/calico/ipam/v2/config", r#"{"auto_allocate_blocks":true,"maxBlocksPerHost":2000}"#);
/// Routes besides those to blocks: the blackhole of the own block, and the address of the tunnel.
const OWN_ROUTES: usize = 2;

/// Durations of assignments in microseconds, with no other address and with many.
#[derive(Debug, Serialize)]
pub(crate) struct Assignments {
    empty: Vec<f64>,
    full: Vec<f64>,
}

fn flags(file: &Path, more: &[&str]) -> Vec<String> {
    let pools = ["--pods", "routed", "--pool-cidr", "10.0.0.0/8"];
    let more = pools.iter().chain(more).map(|&word| word.to_owned());
    embedded(file).into_iter().chain(more).collect()
}

/// Measures `calls` assignments with no assigned address and with `taken`.
pub(crate) fn assign(
    program: &Path,
    dir: &Path,
    taken: usize,
    calls: usize,
) -> Outcome<Assignments> {
    let [node, _other] = node::two()?;
    let file = dir.join("store.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = runtime.block_on(Embedded::open(&file))?;
    runtime.block_on(store.create(CONFIG.0, CONFIG.1.as_bytes(), None))?;
    let flags = flags(&file, &["--pool-encapsulation", "none"]);
    let mut agent = Agent::start(program, &node, dir, &flags)?;
    let socket = agent.socket();
    wait::until("the pools", Duration::from_millis(5), || {
        agent.check()?;
        Ok(agent_client::get(&socket, wire::STATUS, TIMEOUT)
            .is_ok_and(|answer| answer.status == 200)
            .then_some(()))
    })?;
    let empty = calls_of(&socket, calls)?;
    for number in 0..taken {
        assign_one(&socket, &format!("filler-{number}"))?;
    }
    let full = calls_of(&socket, calls)?;
    Ok(Assignments { empty, full })
}

fn calls_of(socket: &Path, calls: usize) -> Outcome<Vec<f64>> {
    let mut micros = Vec::with_capacity(calls);
    for number in 0..calls {
        let container = format!("bench-{number}");
        let start = Instant::now();
        assign_one(socket, &container)?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
        let request = ReleaseRequest {
            network: "net".to_owned(),
            handle: wire::handle("net", &container),
            container_id: container,
            ifname: "eth0".to_owned(),
            ..ReleaseRequest::default()
        };
        let _: wire::ReleaseResponse = wire::post(socket, wire::RELEASE, &request, TIMEOUT)
            .map_err(|error| format!("{error:?}"))?;
        peers::pause(Duration::from_millis(2));
    }
    Ok(micros)
}

fn assign_one(socket: &Path, container: &str) -> Outcome<IpAddr> {
    let request = AssignRequest {
        network: "net".to_owned(),
        container_id: container.to_owned(),
        ifname: "eth0".to_owned(),
        netns: "/proc/self/ns/net".to_owned(),
        handle: wire::handle("net", container),
        ipv4: true,
        ..AssignRequest::default()
    };
    let response: AssignResponse = wire::post(socket, wire::ASSIGN, &request, TIMEOUT)
        .map_err(|error| format!("{error:?}"))?;
    Ok(*response.addresses.first().ok_or("no address")?)
}

/// A node with one block, as Calico's objects.
struct Owner {
    number: u32,
    block: Ipv4Net,
}

impl Owner {
    fn new(number: usize) -> Outcome<Owner> {
        let number = u32::try_from(number)?;
        let first = u32::from(Ipv4Addr::new(10, 1, 0, 0)) + (number << 6);
        Ok(Owner { number, block: Ipv4Net::new(first.into(), 26)? })
    }

    /// Keys and values of the node and of its block.
    fn objects(&self) -> [(String, String); 2] {
        let Owner { number, block } = self;
        let (name, first) = (format!("peer-{number}"), block.network());
        let public = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 1)) + number);
        let [_, x, y, z] = number.to_be_bytes();
        let node = serde_json::json!({"kind": "Node", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": name}, "spec": {"bgp": {"ipv4Address": format!("{public}/32")},
            "ipv4VXLANTunnelAddr": first,
            "vxlanTunnelMACAddr": format!("02:00:00:{x:02x}:{y:02x}:{z:02x}")}});
        let mut allocations = vec![serde_json::json!(0)];
        allocations.resize(64, serde_json::Value::Null);
        let handle = format!("vxlan-tunnel-addr-{name}");
        let stored = serde_json::json!({"cidr": block, "affinity": format!("host:{name}"),
            "allocations": allocations, "unallocated": (1..64).collect::<Vec<u8>>(),
            "attributes": [{"handle_id": handle,
                "secondary": {"node": name, "type": "vxlanTunnelAddress"}}],
            "sequenceNumber": 1, "sequenceNumberForAllocation": {"0": 1}, "deleted": false});
        [
            (format!("/calico/resources/v3/projectcalico.org/nodes/{name}"), node.to_string()),
            (format!("/calico/ipam/v2/assignment/ipv4/block/{first}-26"), stored.to_string()),
        ]
    }
}

async fn write(store: &Embedded, (key, value): &(String, String)) -> Outcome {
    match store.create(key, value.as_bytes(), None).await?.is_done() {
        true => Ok(()),
        false => Err(format!("{key} already exists").into()),
    }
}

/// Starts an agent with this number of blocks of other nodes in the store.
pub(crate) fn blocks(
    program: &Path,
    dir: &Path,
    count: usize,
    changes: usize,
    idle: Duration,
) -> Outcome<Measured> {
    let [node, other] = node::two()?;
    run(&node, &format!("ip route add 198.18.0.0/15 via {}", other.underlay()))?;
    let file: PathBuf = dir.join("store.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = runtime.block_on(Embedded::open(&file))?;
    for number in 0..count {
        for object in &Owner::new(number)?.objects() {
            runtime.block_on(write(&store, object))?;
        }
    }
    let before = peers::prefixes(&node)?;
    let start = Instant::now();
    let mut agent = Agent::start(program, &node, dir, &flags(&file, &[]))?;
    wait::until("all routes", Duration::from_micros(500), || {
        agent.check()?;
        Ok((peers::prefixes(&node)? >= before + OWN_ROUTES + count).then_some(()))
    })?;
    let started = start.elapsed().as_secs_f64() * 1e3;
    peers::check(&node, "vxlan.calico", count)?;
    peers::pause(peers::SETTLE);
    let listed = agent.status()?["compare"]["seconds"].as_f64().ok_or("no comparison")? * 1e3;
    let memory = peers::resident(agent.id())?;
    let mut events = node.netns.enter(|| Events::listen(&[Topic::Routes]))??;
    let changes = (count..count + changes)
        .map(|number| change(&runtime, &store, &mut events, number))
        .collect::<Outcome<_>>()?;
    peers::pause(peers::SETTLE);
    let idle = peers::used_while(agent.id(), idle)?;
    Ok(Measured { started, listed, memory, changes, idle, bare: Vec::new() })
}

/// Adds a block of one more node and returns the microseconds until its route exists.
fn change(
    runtime: &tokio::runtime::Runtime,
    store: &Embedded,
    events: &mut Events,
    number: usize,
) -> Outcome<f64> {
    let owner = Owner::new(number)?;
    let [node, block] = owner.objects();
    runtime.block_on(write(store, &node))?;
    peers::pause(peers::PAUSE);
    let start = Instant::now();
    runtime.block_on(write(store, &block))?;
    let mut is_there = false;
    while !is_there {
        let deadline = start + TIMEOUT;
        if Instant::now() > deadline {
            return Err(format!("no route to {}", owner.block).into());
        }
        events.receive(deadline, |event| {
            let to = |dst: IpNet| dst == IpNet::V4(owner.block);
            is_there |= matches!(event.object, Object::Route(route) if to(route.dst));
        })?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6)
}
