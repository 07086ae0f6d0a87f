// SPDX-License-Identifier: Apache-2.0
//! Building all nodes at once: none waits for another.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use kernel::Netns;

use super::node::{self, Machine, Node, Starting};
use super::underlay::{self, Underlay};
use super::{Cluster, FirstPing, Site};
use crate::demo::lab::Pod;
use crate::demo::probe;
use crate::demo::progress::Progress;
use crate::interrupt::Stop;
use crate::output;

/// For an answer from another node.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Something is built.
struct News {
    what: String,
    text: String,
    pod: Option<FirstPod>,
}

/// The first pod of a node.
struct FirstPod {
    name: String,
    netns: Netns,
    address: IpAddr,
}

impl FirstPod {
    /// None where it has no address.
    fn of(pod: &Pod) -> Option<Result<FirstPod>> {
        let address = pod.ips().next()?;
        let netns = Netns::open(&pod.path).map_err(Into::into);
        Some(netns.map(|netns| FirstPod { name: pod.name.clone(), netns, address }))
    }
}

/// Underlay, nodes and pods; the first echo is sent as soon as two nodes have a pod.
pub fn cluster(site: Site<'_>, nodes: u16, progress: &mut Progress) -> Result<Cluster> {
    let Site { run, stop, pods, backend } = site;
    stop.check()?;
    let underlay = Underlay::new(run)?;
    backend.require(&underlay.netns)?;
    progress.begin(1 + usize::from(nodes) + usize::from(nodes * pods))?;
    let text = format!("bridge {} in namespace {}", underlay::BRIDGE, underlay.path.display());
    progress.built("underlay", &text)?;
    let machines = machines(site, &underlay, 1..=nodes)?;
    let (nodes, first) = populate(machines, 0, Vec::new(), site, progress)?;
    progress.end()?;
    let text = format!(
        "{} reached {} on another node {} after the agents' start",
        first.from,
        first.to,
        output::duration(first.after)
    );
    progress.step("first", &text)?;
    Ok(Cluster { backend, underlay, nodes, first })
}

/// A node that comes when `others` are there, and the first answer that one of those has from it.
pub fn one_more(
    cluster: &Cluster,
    others: usize,
    site: Site<'_>,
    progress: &mut Progress,
) -> Result<(Node, FirstPing)> {
    let number = u16::try_from(others + 1)?;
    let machines = machines(site, &cluster.underlay, number..=number)?;
    let known = cluster.nodes.iter().filter_map(|node| FirstPod::of(node.lab.pods.first()?));
    let known = known.take(1).collect::<Result<Vec<_>>>()?;
    let (mut nodes, first) = populate(machines, others, known, site, progress)?;
    Ok((nodes.pop().context("no node has joined")?, first))
}

fn machines(
    site: Site<'_>,
    underlay: &Underlay,
    numbers: RangeInclusive<u16>,
) -> Result<Vec<Machine>> {
    let machines = numbers.map(|number| Machine::new(site.run, underlay, number));
    let machines = machines.collect::<Result<Vec<_>>>()?;
    for machine in &machines {
        underlay.wait_until_open(&machine.name, &machine.netns)?;
    }
    Ok(machines)
}

/// Starts the agents of nodes that come after so many others, and connects pods. Those that are known have
/// the first pods of other nodes.
fn populate(
    machines: Vec<Machine>,
    others: usize,
    known: Vec<FirstPod>,
    site: Site<'_>,
    progress: &mut Progress,
) -> Result<(Vec<Node>, FirstPing)> {
    let (net_config, store) = (site.backend.net_config(), node::store(site.run));
    let started = Instant::now();
    let starting = machines.into_iter().map(|machine| machine.start(&net_config, &store));
    let starting = starting.collect::<Result<Vec<_>>>()?;
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let mut threads = Vec::new();
        for (at, one) in starting.into_iter().enumerate() {
            let tell = tell.clone();
            threads.push(scope.spawn(move || join(one, others + at, site, &tell)));
        }
        drop(tell);
        let listened = listen(&told, known, started, site.stop, progress);
        let joined = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a node's thread panicked")))
        });
        // A node's own error is the one to tell.
        let nodes: Result<Vec<Node>> = joined.collect();
        Ok((nodes?, listened?.context("no two nodes have pods")?))
    })
}

/// Waits for a node's agent, and connects the node's pods.
fn join(starting: Starting, at: usize, site: Site<'_>, tell: &Sender<News>) -> Result<Node> {
    let mut node = starting.wait(site.stop)?;
    let took = output::duration(node.ready_after);
    // Who listened may have failed, and says so.
    let say = |what: &str, text: String, pod| {
        let _ = tell.send(News { what: what.to_owned(), text, pod });
    };
    say(&node.name, format!("{} leased, ready after {took}", node.subnet), None);
    for number in 0..usize::from(site.pods) {
        site.stop.check()?;
        let name = format!("pod{}", at * usize::from(site.pods) + number + 1);
        let pod = node.lab.add_pod(site.run, &name)?;
        let first = if number == 0 { FirstPod::of(&pod).transpose()? } else { None };
        say(&pod.name, format!("{} on {}", pod.attached(), node.name), first);
        node.lab.pods.push(pod);
    }
    Ok(node)
}

fn listen(
    told: &Receiver<News>,
    mut pods: Vec<FirstPod>,
    started: Instant,
    stop: &Stop,
    progress: &mut Progress,
) -> Result<Option<FirstPing>> {
    let mut first = None;
    for news in told {
        progress.built(&news.what, &news.text)?;
        pods.extend(news.pod);
        if let ([from, to, ..], None) = (pods.as_slice(), &first) {
            let deadline = Instant::now() + PATIENCE;
            let answer = from.netns.enter(|| probe::ping_until(to.address, deadline, stop))?;
            answer.with_context(|| format!("ping {} from {}", to.name, from.name))?;
            let after = started.elapsed();
            first = Some(FirstPing { from: from.name.clone(), to: to.name.clone(), after });
        }
    }
    Ok(first)
}
