// SPDX-License-Identifier: Apache-2.0
//! A node: a namespace on the underlay with an agent, and pods that are connected with the CNI
//! configuration written by the agent.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cni::runtime::NetworkList;
use ipnet::IpNet;
use kernel::Netns;
use serde_json::{Value, json};

use super::BuildContext;
use super::agent::{self, Agent, AgentFiles};
use super::dir_watch::DirWatch;
use super::network::Network;
use super::underlay::{self, Underlay};
use crate::cmd::demo::lab::Lab;
use crate::cmd::demo::run::Run;

/// Maximum wait for an agent. On an idle machine it is ready within a second.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// File of the store that all agents share.
const STORE: &str = "store.db";

/// Path of the agents' store in the directory of a run.
pub(crate) fn store_path(run: &Run) -> PathBuf {
    run.dir().join(STORE)
}

/// A node whose agent is ready.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// Address on the underlay.
    pub(crate) address: Ipv4Addr,
    /// Subnet of the node, or the block of its first pod.
    pub(crate) subnet: Option<IpNet>,
    pub(crate) lab: Lab,
    pub(crate) agent: Agent,
    /// Time since the start of the agent.
    pub(crate) ready_after: Duration,
}

/// A namespace on the underlay, without an agent.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    address: Ipv4Addr,
    path: PathBuf,
    pub(crate) netns: Netns,
    dir: PathBuf,
}

/// A node whose agent is not ready yet.
#[derive(Debug)]
pub(crate) struct Starting {
    machine: Machine,
    watch: DirWatch,
    agent: Agent,
    started: Instant,
}

impl Machine {
    pub(crate) fn new(run: &Run, underlay: &Underlay, number: u16) -> Result<Machine> {
        let name = format!("node{number}");
        let (path, netns) = run.namespace(&name).with_context(|| format!("create {name}"))?;
        let [a, b, c, _] = underlay::NETWORK.octets();
        let address = Ipv4Addr::new(a, b, c, u8::try_from(number)?);
        let connected = underlay.connect(&name, &netns, address);
        connected.with_context(|| format!("connect {name} to the underlay"))?;
        let dir = run.dir().join(&name);
        fs::create_dir_all(dir.join(agent::CONF_DIR))
            .with_context(|| format!("create {}", dir.display()))?;
        Ok(Machine { name, address, path, netns, dir })
    }

    /// Starts the agent.
    pub(crate) fn start(self, network: Network, store: &Path) -> Result<Starting> {
        // Before the agent can write a file.
        let watch = DirWatch::new(&self.dir.join(agent::CONF_DIR));
        let started = Instant::now();
        let args = agent::arguments(&self.name, network, AgentFiles { dir: &self.dir, store })?;
        let agent = Agent::start(&self.netns, &args)
            .with_context(|| format!("start the agent of {}", self.name))?;
        Ok(Starting { machine: self, watch, agent, started })
    }
}

impl Starting {
    /// Waits like a container runtime: for a configuration file in the directory.
    pub(crate) fn wait(mut self, context: BuildContext<'_>) -> Result<Node> {
        let Machine { name, address, path, netns, dir } = self.machine;
        let file = dir.join(agent::CONF_DIR).join(agent::CONF_NAME);
        while !file.is_file() {
            context.stop.check()?;
            self.agent.check().with_context(|| format!("run the agent of {name}"))?;
            if self.started.elapsed() > READY_TIMEOUT {
                let reasons = self.agent.hub.readiness().reasons.join("; ");
                bail!("{name} is not ready after {} s: {reasons}", READY_TIMEOUT.as_secs());
            }
            self.watch.wait()?;
        }
        let ready_after = self.started.elapsed();
        let (subnet, list) = match context.network {
            Network::Bridged(_) => {
                let network = self.agent.hub.network();
                let subnet = network.and_then(|network| network.lease.subnets.first().copied());
                let subnet = subnet.with_context(|| format!("{name} is ready without a subnet"))?;
                (Some(subnet), with_private_dirs(&file, &dir)?)
            }
            Network::Routed(_) => (None, with_mtu(&file, &self.agent)?),
        };
        let lab = Lab::new(list, dir.join("cache"), path, netns);
        Ok(Node { name, address, subnet, lab, agent: self.agent, ready_after })
    }
}

impl Node {
    /// Finds the block of the first pod.
    pub(crate) fn find_block(&mut self) -> Result<()> {
        let address = self.lab.pods.first().and_then(|pod| pod.ips().next());
        let address = address.with_context(|| format!("{} has no pod", self.name))?;
        let view = self.agent.pools()?;
        let mut blocks = view.blocks.iter().filter_map(|block| block.cidr.parse().ok());
        self.subnet = blocks.find(|block: &IpNet| block.contains(&address));
        Ok(())
    }

    /// The subnet, or the block of the first pod.
    pub(crate) fn subnet(&self) -> Result<IpNet> {
        self.subnet.with_context(|| format!("{} has no block", self.name))
    }

    /// The subnet or block as text.
    pub(crate) fn shown_subnet(&self) -> String {
        self.subnet.map(|subnet| subnet.to_string()).unwrap_or_default()
    }
}

fn read_list(file: &Path) -> Result<Value> {
    let read = || -> Result<Value> { Ok(serde_json::from_slice(&fs::read(file)?)?) };
    read().with_context(|| format!("read {}", file.display()))
}

/// The agent's CNI configuration with the MTU: the plugin reads a file that belongs to the pods of this machine.
fn with_mtu(file: &Path, agent: &Agent) -> Result<NetworkList> {
    let mut list = read_list(file)?;
    list["plugins"][0]["mtu"] = json!(agent.pod_mtu());
    Ok(NetworkList::parse(&serde_json::to_vec(&list)?, None)?)
}

/// The agent's CNI configuration with private directories for the plugins: the default ones belong to
/// the pods of this machine.
fn with_private_dirs(file: &Path, dir: &Path) -> Result<NetworkList> {
    let mut list = read_list(file)?;
    let flannel = &mut list["plugins"][0];
    flannel["dataDir"] = json!(dir.join("flannel"));
    flannel["ipam"]["dataDir"] = json!(dir.join("addresses"));
    Ok(NetworkList::parse(&serde_json::to_vec(&list)?, None)?)
}
