// SPDX-License-Identifier: Apache-2.0
//! Measures the node agent with the program `node-path`: time until nodes reach each other, cost of many
//! peers, and TCP throughput between nodes. Namespaces act as nodes.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::lab::place;
use super::latency::in_turn;
use super::plan::Plan;
use super::print_step;
use super::results::{Results, Throughput, Who, grouped};
use super::stats::summary;
use crate::cmd;

/// Seconds per turn of a connection, and number of turns.
const SECONDS: &str = "0.5";
const TURNS: &str = "4";
/// Normal priority: at real-time priority both ends of a connection would block the kernel threads that
/// carry the packets.
const NORMAL_PRIORITY: [&str; 2] = ["--other", "0"];

pub(crate) const BACKENDS: [&str; 2] = ["vxlan", "host-gw"];

/// Numbers of existing peers.
pub(crate) const PEERS: [usize; 3] = [10, 1_000, 5_000];

/// Measurements of agents.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Agents {
    pub(crate) starts: Vec<Start>,
    pub(crate) crowds: Vec<Crowd>,
    pub(crate) tcp: Vec<Tcp>,
    /// Agents with blocks of other nodes in place of flannel's peers.
    #[serde(default)]
    pub(crate) blocks: Vec<Agent>,
    #[serde(default)]
    pub(crate) assignments: Vec<Assignments>,
}

/// Number of blocks of other nodes.
pub(crate) const BLOCKS: usize = 1_000;

/// Number of assigned addresses beside the measured one.
pub(crate) const ASSIGNED: usize = 50_000;

/// Durations of assignments through the agent's socket in microseconds, without other addresses and with
/// [`ASSIGNED`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Assignments {
    pub(crate) empty: Vec<f64>,
    pub(crate) full: Vec<f64>,
}

/// Time from the start of an agent to the first ping answered by the other node, in milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) store: String,
    /// Both agents start at the same time; otherwise the other agent runs already.
    pub(crate) together: bool,
    pub(crate) millis: Vec<f64>,
}

/// Agents that start with this number of peers in the store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Crowd {
    pub(crate) peers: usize,
    pub(crate) agents: Vec<Agent>,
}

/// Measurements of one agent, printed by `node-path`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Agent {
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

/// Throughput with one backend.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Tcp {
    pub(crate) backend: String,
    pub(crate) through: Throughput,
}

pub(crate) fn measure(plan: &Plan, results: &mut Results) -> Result<()> {
    starts(plan, &mut results.agents)?;
    crowds(plan, &mut results.agents)?;
    pools(plan, &mut results.agents)?;
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
        print_step("start of agents");
        for &at in in_turn(&order, round) {
            let start = &mut agents.starts[at];
            let how = if start.together { "together" } else { "alone" };
            // On a disk, as on a node: every write of a store waits for the disk.
            start.millis.push(node_path(plan, "start", &plan.disk, &[&start.store, how])?);
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
            print_step(&format!("an agent with {} peers", grouped(crowd.peers as u64)));
            let peers = crowd.peers.to_string();
            let agent = node_path(plan, "peers", &place("agents"), &[&peers, &changes, &idle])?;
            crowd.agents.push(agent);
        }
    }
    Ok(())
}

fn pools(plan: &Plan, agents: &mut Agents) -> Result<()> {
    let (changes, idle) = (plan.effort.changes.to_string(), plan.effort.idle.to_string());
    let place = place("agents");
    for _ in 0..plan.effort.crowds {
        print_step(&format!("an agent with {} blocks of other nodes", grouped(BLOCKS as u64)));
        let args = [&*BLOCKS.to_string(), &changes, &idle];
        agents.blocks.push(node_path(plan, "blocks", &place, &args)?);
    }
    print_step("assignments");
    let args = [ASSIGNED.to_string(), plan.effort.assignments.to_string()];
    agents.assignments.push(node_path(plan, "assign", &place, &[&args[0], &args[1]])?);
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
        print_step("TCP between nodes");
        for &at in in_turn(&[0, 1], round) {
            let args = [BACKENDS[at], SECONDS, TURNS];
            let mut command = cmd::command("chrt");
            command.args(NORMAL_PRIORITY).arg(&plan.node_path);
            let turns: Vec<[f64; 2]> = run_json(command, plan, "tcp", &place("agents"), &args)?;
            for (at, tcp) in agents.tcp.iter_mut().filter(|tcp| tcp.backend == args[0]).enumerate()
            {
                tcp.through.bits.extend(turns.iter().map(|turn| turn[at]));
            }
        }
    }
    Ok(())
}

/// Runs `node-path` with an empty directory that is removed afterwards.
fn node_path<T: DeserializeOwned>(plan: &Plan, verb: &str, dir: &Path, args: &[&str]) -> Result<T> {
    run_json(cmd::command(&plan.node_path), plan, verb, dir, args)
}

fn run_json<T: DeserializeOwned>(
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
    serde_json::from_str(&text)
        .with_context(|| format!("parse the output of node-path {verb}: {text:?}"))
}

impl Agents {
    /// Median start time in milliseconds.
    pub(crate) fn start(&self, store: &str, together: bool) -> Option<f64> {
        let matches = |start: &&Start| start.store == store && start.together == together;
        Some(summary(&self.starts.iter().find(matches)?.millis)?.median)
    }

    /// Median of a value of all agents with this number of peers.
    pub(crate) fn crowd(&self, peers: usize, what: impl Fn(&Agent) -> f64) -> Option<f64> {
        let crowd = self.crowds.iter().find(|crowd| crowd.peers == peers)?;
        let all: Vec<f64> = crowd.agents.iter().map(what).collect();
        Some(summary(&all)?.median)
    }

    /// Median of a value of all agents with blocks of other nodes.
    pub(crate) fn block(&self, what: impl Fn(&Agent) -> f64) -> Option<f64> {
        let all: Vec<f64> = self.blocks.iter().map(what).collect();
        Some(summary(&all)?.median)
    }

    /// Median time of one more block in milliseconds.
    pub(crate) fn block_change(&self) -> Option<f64> {
        let all: Vec<f64> =
            self.blocks.iter().flat_map(|agent| agent.changes.iter().copied()).collect();
        Some(summary(&all)?.median / 1e3)
    }

    /// Median time of one assignment in microseconds.
    pub(crate) fn assignment(&self, is_full: bool) -> Option<f64> {
        let times = |one: &Assignments| if is_full { one.full.clone() } else { one.empty.clone() };
        let all: Vec<f64> = self.assignments.iter().flat_map(times).collect();
        Some(summary(&all)?.median)
    }

    /// Median resident memory in megabytes.
    pub(crate) fn memory(&self, peers: usize) -> Option<f64> {
        // Far below 2^52.
        Some(self.crowd(peers, |agent| agent.memory as f64)? * 1024.0 / 1e6)
    }

    /// Median time of one more peer in milliseconds.
    pub(crate) fn change(&self, peers: usize) -> Option<f64> {
        self.each(peers, |agent| &agent.changes)
    }

    /// Median time of the kernel changes alone in milliseconds.
    pub(crate) fn bare(&self, peers: usize) -> Option<f64> {
        self.each(peers, |agent| &agent.bare)
    }

    fn each(&self, peers: usize, what: impl Fn(&Agent) -> &Vec<f64>) -> Option<f64> {
        let crowd = self.crowds.iter().find(|crowd| crowd.peers == peers)?;
        let all: Vec<f64> = crowd.agents.iter().flat_map(|agent| what(agent).clone()).collect();
        Some(summary(&all)?.median / 1e3)
    }

    /// Throughput in Gbit/s: minimum, median and maximum of all connections.
    pub(crate) fn tcp(&self, backend: &str, who: Who) -> Option<[f64; 3]> {
        let matches = |tcp: &&Tcp| tcp.backend == backend && tcp.through.who == who;
        self.tcp.iter().find(matches)?.through.gigabits()
    }
}
