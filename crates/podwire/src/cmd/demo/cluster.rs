// SPDX-License-Identifier: Apache-2.0
//! Several nodes on one underlay, an agent in each, pods on all of them: one network.

mod agent;
mod backend;
mod build;
mod node;
mod show;
mod story;
mod underlay;
mod watch;

use std::time::{Duration, Instant};

use anyhow::Result;

pub use self::backend::Backend;
use self::node::Node;
use self::underlay::Underlay;
use super::Ending;
use super::lab::Pod;
use super::probe::{self, Fetched};
use super::progress::Progress;
use super::run::Run;
use crate::cli::Demo;
use crate::interrupt::Stop;
use crate::output::{self, Format};

/// The nodes that take part.
#[derive(Debug)]
pub struct Cluster {
    pub backend: Backend,
    pub underlay: Underlay,
    pub nodes: Vec<Node>,
    pub first: FirstPing,
}

/// The first answer that came from another node.
#[derive(Debug)]
pub struct FirstPing {
    pub from: String,
    pub to: String,
    /// From the start of the agents.
    pub after: Duration,
}

/// What all of it is built with.
#[derive(Debug, Clone, Copy)]
struct Site<'a> {
    run: &'a Run,
    stop: &'a Stop,
    /// On each node.
    pods: u16,
    backend: Backend,
}

/// Builds it, tries it out, shows it, and shows what happens when something breaks.
pub fn build_and_show(
    asked: Demo,
    pods: u16,
    run: &Run,
    stop: &Stop,
    progress: &mut Progress,
) -> Result<Ending> {
    let backend = asked.backend.unwrap_or_default();
    let site = Site { run, stop, pods, backend };
    let mut cluster = build::cluster(site, asked.nodes, progress)?;
    let pods = cluster.pods();
    let echoes = probe::ping_all(&pods, stop)?;
    let pings = show::Pings::new(&cluster, echoes);
    progress.text(&pings.lines())?;
    let fetched = fetch(&cluster, stop, progress)?;
    let drawn = format!("\n{}\n{}\n", show::picture(&cluster), show::nodes(&cluster, &pings));
    progress.text(&drawn)?;
    let mut told = show::json(&cluster, &pings, &fetched);
    if !asked.keep {
        told["events"] = story::play(&mut cluster, site, progress)?;
    }
    if progress.format == Format::Json {
        output::print_json(&told)?;
    }
    stop.check()?;
    if asked.keep {
        progress.text(&show::how_to_look(&cluster))?;
        return Ok(Ending::Keep);
    }
    let started = Instant::now();
    progress.step("detached", &probe::detached(&cluster.detach_pods()?))?;
    // The agents end before what they look after.
    drop(cluster);
    Ok(Ending::Remove(started))
}

impl Cluster {
    /// Of all nodes, in their order.
    pub fn pods(&self) -> Vec<&Pod> {
        self.nodes.iter().flat_map(|node| &node.lab.pods).collect()
    }

    /// Which node each of them is on.
    pub fn places(&self) -> Vec<usize> {
        let of_node = |(at, node): (usize, &Node)| vec![at; node.lab.pods.len()];
        self.nodes.iter().enumerate().flat_map(of_node).collect()
    }

    fn detach_pods(&self) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        for node in &self.nodes {
            times.extend(node.lab.detach_pods()?);
        }
        Ok(times)
    }
}

/// A page of the last node's last pod, fetched from the first node's first.
fn fetch(cluster: &Cluster, stop: &Stop, progress: &mut Progress) -> Result<Vec<Fetched>> {
    let pods = cluster.pods();
    let [client, .., server] = pods.as_slice() else { return Ok(Vec::new()) };
    let fetched = probe::fetch_page(client, server, stop)?;
    for page in &fetched {
        progress.step("page", &page.told(&client.name))?;
    }
    Ok(fetched)
}
