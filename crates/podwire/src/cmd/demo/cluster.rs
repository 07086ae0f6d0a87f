// SPDX-License-Identifier: Apache-2.0
//! Several nodes on one underlay, each with an agent and with pods.

mod agent;
mod backend;
mod build;
mod dir_watch;
mod faults;
mod network;
mod node;
mod show;
mod underlay;

use std::time::{Duration, Instant};

use agent_client::pools::View;
use anyhow::Result;

pub(crate) use self::backend::Backend;
use self::faults::RouteWatch;
use self::network::Network;
pub(crate) use self::network::{Encapsulation, Mode};
use self::node::Node;
use self::underlay::Underlay;
use super::lab::Pod;
use super::probe::{self, Fetched};
use super::progress::Progress;
use super::run::Run;
use super::{Demo, Ending};
use crate::output::{self, Format};
use crate::signals::StopSignal;

/// Maximum wait for the store to learn the users of addresses.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// The underlay and the nodes on it.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) network: Network,
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
    network: Network,
}

/// Builds the cluster, tests the network, prints the result, then plays the faults.
pub(crate) fn build_and_show(
    args: Demo,
    pods: u16,
    run: &Run,
    stop: &StopSignal,
    progress: &mut Progress,
) -> Result<Ending> {
    let network = match args.mode.unwrap_or_default() {
        Mode::Bridged => Network::Bridged(args.backend.unwrap_or_default()),
        Mode::Routed => Network::Routed(args.encapsulation.unwrap_or_default()),
    };
    let context = BuildContext { run, stop, pods, network };
    let mut cluster = build::cluster(context, args.nodes, progress)?;
    let pods = cluster.pods();
    let echoes = probe::ping_all(&pods, stop)?;
    let pings = show::Pings::new(&cluster, echoes);
    progress.text(&pings.lines())?;
    let fetched = fetch(&cluster, stop, progress)?;
    let pools = cluster.pools(stop)?;
    let tables = show::nodes(&cluster, &pings) + &show::pools(pools.as_ref());
    let picture = format!("\n{}\n{tables}\n", show::picture(&cluster));
    progress.text(&picture)?;
    let mut json = show::json(&cluster, &pings, &fetched);
    if let Some(pools) = &pools {
        json["pools"] = serde_json::to_value(&pools.pools)?;
    }
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

    /// Pools and blocks as the first agent shows them; `None` with bridged pods. The store learns the user of an
    /// address a moment after the pod has it.
    fn pools(&self, stop: &StopSignal) -> Result<Option<View>> {
        let Some(node) = self.nodes.first().filter(|_| self.network.is_routed()) else {
            return Ok(None);
        };
        let pods = self.pods().len() as u64;
        let (deadline, mut routes) = (Instant::now() + STORE_TIMEOUT, RouteWatch::new(node)?);
        loop {
            stop.check()?;
            let view = node.agent.pools()?;
            let used: u64 = view.blocks.iter().map(|block| block.used).sum();
            if used >= pods || Instant::now() > deadline {
                return Ok(Some(view));
            }
            routes.wait()?;
        }
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
