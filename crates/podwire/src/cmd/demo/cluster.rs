// SPDX-License-Identifier: Apache-2.0
//! Several nodes on one underlay, each with an agent and with pods.

mod agent;
mod backend;
mod build;
mod dir_watch;
mod faults;
mod node;
mod show;
mod underlay;

use std::time::{Duration, Instant};

use anyhow::Result;

pub(crate) use self::backend::Backend;
use self::node::Node;
use self::underlay::Underlay;
use super::lab::Pod;
use super::probe::{self, Fetched};
use super::progress::Progress;
use super::run::Run;
use super::{Demo, Ending};
use crate::output::{self, Format};
use crate::signals::StopSignal;

/// The underlay and the nodes on it.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) backend: Backend,
    pub(crate) underlay: Underlay,
    pub(crate) nodes: Vec<Node>,
    pub(crate) first_ping: FirstPing,
}

/// The first echo that a pod on another node answered.
#[derive(Debug)]
pub(crate) struct FirstPing {
    pub(crate) from: String,
    pub(crate) to: String,
    /// Time since the start of the agents.
    pub(crate) after: Duration,
}

/// Parameters for building nodes.
#[derive(Debug, Clone, Copy)]
struct BuildContext<'a> {
    run: &'a Run,
    stop: &'a StopSignal,
    /// Pods per node.
    pods: u16,
    backend: Backend,
}

/// Builds the cluster, tests the network, prints the result, then plays the faults.
pub(crate) fn build_and_show(
    args: Demo,
    pods: u16,
    run: &Run,
    stop: &StopSignal,
    progress: &mut Progress,
) -> Result<Ending> {
    let backend = args.backend.unwrap_or_default();
    let context = BuildContext { run, stop, pods, backend };
    let mut cluster = build::cluster(context, args.nodes, progress)?;
    let pods = cluster.pods();
    let echoes = probe::ping_all(&pods, stop)?;
    let pings = show::Pings::new(&cluster, echoes);
    progress.text(&pings.lines())?;
    let fetched = fetch(&cluster, stop, progress)?;
    let picture = format!("\n{}\n{}\n", show::picture(&cluster), show::nodes(&cluster, &pings));
    progress.text(&picture)?;
    let mut json = show::json(&cluster, &pings, &fetched);
    if !args.keep {
        json["events"] = faults::play(&mut cluster, context, progress)?;
    }
    if progress.format == Format::Json {
        output::print_json(&json)?;
    }
    stop.check()?;
    if args.keep {
        progress.text(&show::how_to_inspect(&cluster))?;
        return Ok(Ending::Keep);
    }
    let started = Instant::now();
    progress.step("detached", &probe::detached(&cluster.detach_pods()?))?;
    // Stop the agents before the run removes their namespaces.
    drop(cluster);
    Ok(Ending::Remove(started))
}

impl Cluster {
    /// Pods of all nodes, in the order of the nodes.
    pub(crate) fn pods(&self) -> Vec<&Pod> {
        self.nodes.iter().flat_map(|node| &node.lab.pods).collect()
    }

    /// Index of the node of each pod.
    pub(crate) fn node_of_pods(&self) -> Vec<usize> {
        let same_node = |(at, node): (usize, &Node)| vec![at; node.lab.pods.len()];
        self.nodes.iter().enumerate().flat_map(same_node).collect()
    }

    fn detach_pods(&self) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        for node in &self.nodes {
            times.extend(node.lab.detach_pods()?);
        }
        Ok(times)
    }
}

/// Fetches a page from the last pod of the last node in the first pod of the first node.
fn fetch(cluster: &Cluster, stop: &StopSignal, progress: &mut Progress) -> Result<Vec<Fetched>> {
    let pods = cluster.pods();
    let [client, .., server] = pods.as_slice() else { return Ok(Vec::new()) };
    let fetched = probe::fetch_page(client, server, stop)?;
    for page in &fetched {
        progress.step("page", &page.describe(&client.name))?;
    }
    Ok(fetched)
}
