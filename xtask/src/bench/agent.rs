// SPDX-License-Identifier: Apache-2.0
//! The node agent: how soon nodes reach each other, what many peers cost, and how fast TCP is between
//! nodes that it has set up. Another program does it, in namespaces that stand for nodes.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::lab::place;
use super::latency::in_turn;
use super::plan::Plan;
use super::results::{Results, Throughput, Who, grouped};
use super::say;
use super::stats::summary;
use crate::cmd;

/// Each turn of a connection, and how many it has.
const SECONDS: &str = "0.5";
const TURNS: &str = "4";
/// At real-time priority the ends of a connection would keep the kernel's own threads, which carry its packets,
/// from the processors.
const ORDINARY: [&str; 2] = ["--other", "0"];

pub const BACKENDS: [&str; 2] = ["vxlan", "host-gw"];

/// How many there are when one more comes: few, and as many as was promised.
pub const PEERS: [usize; 3] = [10, 1_000, 5_000];

/// What was measured of agents.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Agents {
    pub starts: Vec<Start>,
    pub crowds: Vec<Crowd>,
    pub tcp: Vec<Tcp>,
}

/// From the start of an agent to the first ping that the other node answers, in milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Start {
    pub store: String,
    /// Both agents are started at once; else the other is there before.
    pub together: bool,
    pub millis: Vec<f64>,
}

/// Agents that start where this many peers are, one after the other.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Crowd {
    pub peers: usize,
    pub agents: Vec<Agent>,
}

/// One of them, as `node-path` prints it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Agent {
    /// From the start of the process until the last route is there, in milliseconds.
    pub started: f64,
    /// From the list until all is in the kernel, as the agent itself says.
    pub listed: f64,
    /// Resident, in KiB.
    pub memory: u64,
    /// From the write of one more peer until its route is there, in microseconds.
    pub changes: Vec<f64>,
    /// Of one processor, in percent, while nothing happens.
    pub idle: f64,
    /// What the kernel alone takes for one more peer, in microseconds.
    pub bare: Vec<f64>,
}

/// Through nodes of one backend.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tcp {
    pub backend: String,
    pub through: Throughput,
}

pub fn measure(plan: &Plan, results: &mut Results) -> Result<()> {
    starts(plan, &mut results.agents)?;
    crowds(plan, &mut results.agents)?;
    tcp(plan, &mut results.agents)
}

fn starts(plan: &Plan, agents: &mut Agents) -> Result<()> {
    let stores: &[&str] =
        if cmd::find("etcd").is_some() { &["embedded", "etcd"] } else { &["embedded"] };
    for store in stores {
        for together in [true, false] {
            let millis = Vec::new();
            agents.starts.push(Start { store: (*store).to_owned(), together, millis });
        }
    }
    let order: Vec<usize> = (0..agents.starts.len()).collect();
    for round in 0..plan.effort.starts {
        say("agents that start");
        for &at in in_turn(&order, round) {
            let start = &mut agents.starts[at];
            let how = if start.together { "together" } else { "alone" };
            // On a disk, as on a node: every write of a store waits for it.
            start.millis.push(ask(plan, "start", &plan.disk, &[&start.store, how])?);
        }
    }
    Ok(())
}

fn crowds(plan: &Plan, agents: &mut Agents) -> Result<()> {
    agents.crowds = PEERS.map(|peers| Crowd { peers, agents: Vec::new() }).into();
    let (changes, idle) = (plan.effort.changes.to_string(), plan.effort.idle.to_string());
    for round in 0..plan.effort.crowds {
        for &at in in_turn(&[0, 1, 2], round) {
            let crowd = &mut agents.crowds[at];
            say(&format!("an agent with {} peers", grouped(crowd.peers as u64)));
            let peers = crowd.peers.to_string();
            let agent = ask(plan, "peers", &place("agents"), &[&peers, &changes, &idle])?;
            crowd.agents.push(agent);
        }
    }
    Ok(())
}

fn tcp(plan: &Plan, agents: &mut Agents) -> Result<()> {
    for backend in BACKENDS {
        for who in [Who::ByHand, Who::Ours] {
            let through = Throughput { who, bits: Vec::new() };
            agents.tcp.push(Tcp { backend: backend.to_owned(), through });
        }
    }
    for round in 0..plan.effort.tcp {
        say("TCP between nodes");
        for &at in in_turn(&[0, 1], round) {
            let args = [BACKENDS[at], SECONDS, TURNS];
            let mut command = cmd::command("chrt");
            command.args(ORDINARY).arg(&plan.node_path);
            let turns: Vec<[f64; 2]> = answer(command, plan, "tcp", &place("agents"), &args)?;
            for (at, tcp) in agents.tcp.iter_mut().filter(|tcp| tcp.backend == args[0]).enumerate()
            {
                tcp.through.bits.extend(turns.iter().map(|turn| turn[at]));
            }
        }
    }
    Ok(())
}

/// With an empty directory for its files, which it is rid of afterwards.
fn ask<T: DeserializeOwned>(plan: &Plan, verb: &str, dir: &Path, args: &[&str]) -> Result<T> {
    answer(cmd::command(&plan.node_path), plan, verb, dir, args)
}

fn answer<T: DeserializeOwned>(
    mut command: Command,
    plan: &Plan,
    verb: &str,
    dir: &Path,
    args: &[&str],
) -> Result<T> {
    fs::create_dir_all(dir)?;
    let dir = tempfile::tempdir_in(dir)?;
    command.arg(verb).arg(&plan.podwire).arg(dir.path()).args(args);
    let text = cmd::read(&mut command)?;
    serde_json::from_str(&text).with_context(|| format!("what node-path {verb} printed: {text:?}"))
}

impl Agents {
    /// The median, in milliseconds.
    pub fn start(&self, store: &str, together: bool) -> Option<f64> {
        let is_it = |start: &&Start| start.store == store && start.together == together;
        Some(summary(&self.starts.iter().find(is_it)?.millis)?.median)
    }

    /// The median of something of agents with this many peers.
    pub fn crowd(&self, peers: usize, what: impl Fn(&Agent) -> f64) -> Option<f64> {
        let crowd = self.crowds.iter().find(|crowd| crowd.peers == peers)?;
        let all: Vec<f64> = crowd.agents.iter().map(what).collect();
        Some(summary(&all)?.median)
    }

    /// Resident megabytes.
    pub fn memory(&self, peers: usize) -> Option<f64> {
        // Far below 2^52.
        Some(self.crowd(peers, |agent| agent.memory as f64)? * 1024.0 / 1e6)
    }

    /// The median of all changes of one more peer, in milliseconds.
    pub fn change(&self, peers: usize) -> Option<f64> {
        self.each(peers, |agent| &agent.changes)
    }

    /// The same of the kernel's part alone.
    pub fn bare(&self, peers: usize) -> Option<f64> {
        self.each(peers, |agent| &agent.bare)
    }

    fn each(&self, peers: usize, what: impl Fn(&Agent) -> &Vec<f64>) -> Option<f64> {
        let crowd = self.crowds.iter().find(|crowd| crowd.peers == peers)?;
        let all: Vec<f64> = crowd.agents.iter().flat_map(|agent| what(agent).clone()).collect();
        Some(summary(&all)?.median / 1e3)
    }

    /// Gigabits a second: least, median and most of all connections.
    pub fn tcp(&self, backend: &str, who: Who) -> Option<[f64; 3]> {
        let is_it = |tcp: &&Tcp| tcp.backend == backend && tcp.through.who == who;
        self.tcp.iter().find(is_it)?.through.gigabits()
    }
}
