// SPDX-License-Identifier: Apache-2.0
//! Building all nodes at once: none waits for another.

use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use kernel::Netns;

use super::node::{self, Machine, Node, Starting};
use super::underlay::{self, Underlay};
use super::{Cluster, FirstPing, Site};
use crate::demo::probe;
use crate::demo::progress::Progress;
use crate::interrupt::Stop;
use crate::output;

/// For an answer from another node.
pub const PATIENCE: Duration = Duration::from_secs(10);

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

/// Underlay, nodes and pods; the first echo is sent as soon as two nodes have a pod.
pub fn cluster(site: Site<'_>, nodes: u16, progress: &mut Progress) -> Result<Cluster> {
    let Site { run, stop, pods, backend } = site;
    stop.check()?;
    let underlay = Underlay::new(run)?;
    backend.require(&underlay.netns)?;
    progress.begin(1 + usize::from(nodes) + usize::from(nodes * pods))?;
    let text = format!("bridge {} in namespace {}", underlay::BRIDGE, underlay.path.display());
    progress.built("underlay", &text)?;
    let machines: Result<Vec<Machine>> =
        (1..=nodes).map(|number| Machine::new(run, &underlay, number)).collect();
    let started = Instant::now();
    let starting: Result<Vec<Starting>> =
        machines?.into_iter().map(|machine| start(machine, site)).collect();
    let (nodes, first) = populate(starting?, site, started, progress)?;
    progress.end()?;
    let first = first.context("no two nodes have pods")?;
    let text = format!(
        "{} reached {} on another node {} after the agents' start",
        first.from,
        first.to,
        output::duration(first.after)
    );
    progress.step("first", &text)?;
    Ok(Cluster { backend, underlay, nodes, first })
}

/// Starts a node's agent.
pub fn start(machine: Machine, site: Site<'_>) -> Result<Starting> {
    machine.start(&site.backend.net_config(), &node::store(site.run))
}

fn populate(
    starting: Vec<Starting>,
    site: Site<'_>,
    started: Instant,
    progress: &mut Progress,
) -> Result<(Vec<Node>, Option<FirstPing>)> {
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let mut threads = Vec::new();
        for (at, one) in starting.into_iter().enumerate() {
            let tell = tell.clone();
            threads.push(scope.spawn(move || join(one, at, site, &tell)));
        }
        drop(tell);
        let listened = listen(&told, started, site.stop, progress);
        let joined = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a node's thread panicked")))
        });
        // A node's own error is the one to tell.
        let nodes: Result<Vec<Node>> = joined.collect();
        Ok((nodes?, listened?))
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
        let first = match pod.ips().next() {
            Some(address) if number == 0 => {
                let netns = Netns::open(&pod.path)?;
                Some(FirstPod { name: pod.name.clone(), netns, address })
            }
            _ => None,
        };
        say(&pod.name, format!("{} on {}", pod.attached(), node.name), first);
        node.lab.pods.push(pod);
    }
    Ok(node)
}

fn listen(
    told: &Receiver<News>,
    started: Instant,
    stop: &Stop,
    progress: &mut Progress,
) -> Result<Option<FirstPing>> {
    let (mut pods, mut first) = (Vec::new(), None);
    for news in told {
        progress.built(&news.what, &news.text)?;
        pods.extend(news.pod);
        if let ([from, to], None) = (pods.as_slice(), &first) {
            let deadline = Instant::now() + PATIENCE;
            let answer = from.netns.enter(|| probe::ping_until(to.address, deadline, stop))?;
            answer.with_context(|| format!("ping {} from {}", to.name, from.name))?;
            let after = started.elapsed();
            first = Some(FirstPing { from: from.name.clone(), to: to.name.clone(), after });
        }
    }
    Ok(first)
}

/// A node that comes later, as the `at`th.
pub fn one_more(site: Site<'_>, underlay: &Underlay, at: usize) -> Result<(Node, Instant)> {
    let number = u16::try_from(at + 1)?;
    let machine = Machine::new(site.run, underlay, number)?;
    let started = Instant::now();
    // Its news are told all together.
    let (tell, _) = mpsc::channel();
    Ok((join(start(machine, site)?, at, site, &tell)?, started))
}
