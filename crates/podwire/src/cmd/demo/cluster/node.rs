// SPDX-License-Identifier: Apache-2.0
//! A node: a namespace on the underlay, an agent in it, and pods that are connected by the
//! configuration that the agent writes.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cni::runtime::NetworkList;
use ipnet::IpNet;
use kernel::Netns;
use serde_json::{Value, json};

use super::agent::{self, Agent, Places};
use super::underlay::{self, Underlay};
use super::watch::Watch;
use crate::demo::lab::Lab;
use crate::demo::run::Run;
use crate::interrupt::Stop;

/// An agent needs less than a second of it, on a machine that is not busy.
const PATIENCE: Duration = Duration::from_secs(30);
/// Shared by all nodes.
const STORE: &str = "store.db";

/// The agents' store in the directory of a run.
pub fn store(run: &Run) -> PathBuf {
    run.dir().join(STORE)
}

/// A node that takes part.
#[derive(Debug)]
pub struct Node {
    pub name: String,
    /// On the underlay.
    pub address: Ipv4Addr,
    pub subnet: IpNet,
    pub lab: Lab,
    pub agent: Agent,
    /// From the agent's start.
    pub ready_after: Duration,
}

/// A namespace that is on the underlay, before an agent is in it.
#[derive(Debug)]
pub struct Machine {
    pub name: String,
    address: Ipv4Addr,
    path: PathBuf,
    pub netns: Netns,
    dir: PathBuf,
}

/// A node whose agent was started and has not yet said that pods can come.
#[derive(Debug)]
pub struct Starting {
    machine: Machine,
    watch: Watch,
    agent: Agent,
    started: Instant,
}

impl Machine {
    pub fn new(run: &Run, underlay: &Underlay, number: u16) -> Result<Machine> {
        let name = format!("node{number}");
        let (path, netns) = run.namespace(&name).with_context(|| format!("make {name}"))?;
        let [a, b, c, _] = underlay::NETWORK.octets();
        let address = Ipv4Addr::new(a, b, c, u8::try_from(number)?);
        let connected = underlay.connect(&name, &netns, address);
        connected.with_context(|| format!("connect {name} to the underlay"))?;
        let dir = run.dir().join(&name);
        fs::create_dir_all(dir.join(agent::CONF_DIR))
            .with_context(|| format!("make {}", dir.display()))?;
        Ok(Machine { name, address, path, netns, dir })
    }

    /// Starts its agent.
    pub fn start(self, net_config: &str, store: &Path) -> Result<Starting> {
        // Before the agent can write something.
        let watch = Watch::of(&self.dir.join(agent::CONF_DIR));
        let started = Instant::now();
        let args = agent::arguments(&self.name, net_config, Places { dir: &self.dir, store })?;
        let agent = Agent::start(&self.netns, &args)
            .with_context(|| format!("start {}'s agent", self.name))?;
        Ok(Starting { machine: self, watch, agent, started })
    }
}

impl Starting {
    /// Waits as container runtimes do: for a configuration in the directory.
    pub fn wait(mut self, stop: &Stop) -> Result<Node> {
        let Machine { name, address, path, netns, dir } = self.machine;
        let file = dir.join(agent::CONF_DIR).join(agent::CONF_NAME);
        while !file.is_file() {
            stop.check()?;
            self.agent.check().with_context(|| format!("run {name}'s agent"))?;
            if self.started.elapsed() > PATIENCE {
                let reasons = self.agent.hub.readiness().reasons.join("; ");
                bail!("{name} is not ready after {} s: {reasons}", PATIENCE.as_secs());
            }
            self.watch.wait()?;
        }
        let ready_after = self.started.elapsed();
        let session = self.agent.hub.session();
        let subnet = session.and_then(|session| session.lease.subnets.first().copied());
        let subnet = subnet.with_context(|| format!("{name} is ready without a subnet"))?;
        let list = with_private_files(&file, &dir)?;
        let lab = Lab::new(list, dir.join("cache"), path, netns);
        Ok(Node { name, address, subnet, lab, agent: self.agent, ready_after })
    }
}

/// The agent's configuration, with places for what plugins remember: those that they have by default are
/// this machine's, and its own pods'.
fn with_private_files(file: &Path, dir: &Path) -> Result<NetworkList> {
    let read = || -> Result<Value> { Ok(serde_json::from_slice(&fs::read(file)?)?) };
    let mut list = read().with_context(|| format!("read {}", file.display()))?;
    let flannel = &mut list["plugins"][0];
    flannel["dataDir"] = json!(dir.join("flannel"));
    flannel["ipam"]["dataDir"] = json!(dir.join("addresses"));
    Ok(NetworkList::parse(&serde_json::to_vec(&list)?, None)?)
}
