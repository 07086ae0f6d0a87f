// SPDX-License-Identifier: Apache-2.0
//! Builds all nodes in parallel.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use kernel::Netns;

use super::node::{self, Machine, Node, Starting};
use super::underlay::{self, Underlay};
use super::{BuildContext, Cluster, FirstPing};
use crate::cmd::demo::lab::Pod;
use crate::cmd::demo::probe;
use crate::cmd::demo::progress::Progress;
use crate::output;
use crate::signals::StopSignal;

/// Maximum wait for a reply from another node.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(30);

/// Message of a building thread: a node or a pod is ready.
struct Built {
    label: String,
    text: String,
    first_pod: Option<FirstPod>,
}

/// The first pod of a node, as target and source of the first echo.
struct FirstPod {
    name: String,
    netns: Netns,
    address: IpAddr,
}

impl FirstPod {
    /// `None` if the pod has no address.
    fn of(pod: &Pod) -> Option<Result<FirstPod>> {
        let address = pod.ips().next()?;
        let netns = Netns::open(&pod.path).map_err(Into::into);
        Some(netns.map(|netns| FirstPod { name: pod.name.clone(), netns, address }))
    }
}

/// Builds underlay, nodes and pods. Sends the first echo as soon as two nodes have a pod.
pub(crate) fn cluster(
    context: BuildContext<'_>,
    nodes: u16,
    progress: &mut Progress,
) -> Result<Cluster> {
    let BuildContext { run, stop, pods, network } = context;
    stop.check()?;
    let underlay = Underlay::new(run)?;
    network.require(&underlay.netns)?;
    progress.begin(1 + usize::from(nodes) + usize::from(nodes * pods))?;
    let text = format!("bridge {} in namespace {}", underlay::BRIDGE, underlay.path.display());
    progress.built("underlay", &text)?;
    let machines = machines(context, &underlay, 1..=nodes)?;
    let (nodes, first_ping) = populate(machines, 0, Vec::new(), context, progress)?;
    progress.end()?;
    let text = format!(
        "{} reached {} on another node {} after the start of the agents",
        first_ping.from,
        first_ping.to,
        output::duration(first_ping.after)
    );
    progress.step("first", &text)?;
    Ok(Cluster { network, underlay, nodes, first_ping })
}

/// Adds a node to `others` existing ones, and measures the first echo from one of them.
pub(crate) fn add_node(
    cluster: &Cluster,
    others: usize,
    context: BuildContext<'_>,
    progress: &mut Progress,
) -> Result<(Node, FirstPing)> {
    let number = u16::try_from(others + 1)?;
    let machines = machines(context, &cluster.underlay, number..=number)?;
    let known = cluster.nodes.iter().filter_map(|node| FirstPod::of(node.lab.pods.first()?));
    let known = known.take(1).collect::<Result<Vec<_>>>()?;
    let (mut nodes, first) = populate(machines, others, known, context, progress)?;
    Ok((nodes.pop().context("no node joined")?, first))
}

fn machines(
    context: BuildContext<'_>,
    underlay: &Underlay,
    numbers: RangeInclusive<u16>,
) -> Result<Vec<Machine>> {
    let machines = numbers.map(|number| Machine::new(context.run, underlay, number));
    let machines = machines.collect::<Result<Vec<_>>>()?;
    for machine in &machines {
        underlay.wait_for_carrier(&machine.name, &machine.netns)?;
    }
    Ok(machines)
}

/// Starts the agents of new nodes and connects their pods. `others` is the number of existing nodes;
/// `known` are first pods on them.
fn populate(
    machines: Vec<Machine>,
    others: usize,
    known: Vec<FirstPod>,
    context: BuildContext<'_>,
    progress: &mut Progress,
) -> Result<(Vec<Node>, FirstPing)> {
    let store = node::store_path(context.run);
    let started = Instant::now();
    let starting = machines.into_iter().map(|machine| machine.start(context.network, &store));
    let starting = starting.collect::<Result<Vec<_>>>()?;
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let mut threads = Vec::new();
        for (at, one) in starting.into_iter().enumerate() {
            let sender = sender.clone();
            threads.push(scope.spawn(move || join(one, others + at, context, &sender)));
        }
        drop(sender);
        let first_ping = first_ping(&receiver, known, started, context.stop, progress);
        let joined = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("the thread of a node panicked")))
        });
        // The error of a node explains a missing echo.
        let nodes: Result<Vec<Node>> = joined.collect();
        Ok((nodes?, first_ping?.context("fewer than two nodes have pods")?))
    })
}

/// Waits until the agent of a node is ready, and connects the pods of the node.
fn join(
    starting: Starting,
    at: usize,
    context: BuildContext<'_>,
    sender: &Sender<Built>,
) -> Result<Node> {
    let mut node = starting.wait(context)?;
    let took = output::duration(node.ready_after);
    // Sending fails if the receiver has failed, which reports its own error.
    let send = |label: &str, text: String, first_pod| {
        let _ = sender.send(Built { label: label.to_owned(), text, first_pod });
    };
    let leased = match node.subnet {
        Some(subnet) if !context.network.is_routed() => format!("{subnet} leased, "),
        _ => String::new(),
    };
    send(&node.name, format!("{leased}ready after {took}"), None);
    for number in 0..usize::from(context.pods) {
        context.stop.check()?;
        let name = format!("pod{}", at * usize::from(context.pods) + number + 1);
        let pod = node.lab.add_pod(context.run, &name)?;
        let first = if number == 0 { FirstPod::of(&pod).transpose()? } else { None };
        send(&pod.name, format!("{} on {}", pod.describe_add(), node.name), first);
        node.lab.pods.push(pod);
    }
    if context.network.is_routed() {
        node.find_block()?;
    }
    Ok(node)
}

/// Prints progress, and pings between the first two nodes that have a pod.
fn first_ping(
    receiver: &Receiver<Built>,
    mut pods: Vec<FirstPod>,
    started: Instant,
    stop: &StopSignal,
    progress: &mut Progress,
) -> Result<Option<FirstPing>> {
    let mut first = None;
    for built in receiver {
        progress.built(&built.label, &built.text)?;
        pods.extend(built.first_pod);
        if let ([from, to, ..], None) = (pods.as_slice(), &first) {
            let deadline = Instant::now() + PING_TIMEOUT;
            let answer = from.netns.enter(|| probe::ping_until(to.address, deadline, stop))?;
            answer.with_context(|| format!("ping {} from {}", to.name, from.name))?;
            let after = started.elapsed();
            first = Some(FirstPing { from: from.name.clone(), to: to.name.clone(), after });
        }
    }
    Ok(first)
}
