// SPDX-License-Identifier: Apache-2.0
//! `podwire agent` on a node, with all its files in private directories.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::Ipv4Net;
use serde_json::Value;

use super::node::Node;
use super::process::{Process, program};
use super::{Outcome, wait};

/// Maximum wait for the status of an agent.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// An agent process; killed when dropped.
#[derive(Debug)]
pub(crate) struct Agent {
    process: Process,
    run: PathBuf,
}

/// Options for a store and a network configuration.
pub(crate) fn flags_of(store: &[String], conf: &str) -> Vec<String> {
    [store, &["--net-config".to_owned(), conf.to_owned()]].concat()
}

/// Options for the embedded store in this file.
pub(crate) fn embedded(file: &Path) -> Vec<String> {
    vec!["--store-file".to_owned(), file.display().to_string()]
}

impl Agent {
    /// Starts an agent. Persistent state is in `dir`, everything else in memory, as on a node.
    pub(crate) fn start(file: &Path, node: &Node, dir: &Path, flags: &[String]) -> Outcome<Agent> {
        let run = PathBuf::from(format!("/run/node-path-{}-{}", std::process::id(), node.number));
        fs::create_dir_all(&run)?;
        let mut command = program(file);
        command.args(["agent", "--iface", "eth0", "--node-name"]);
        command.arg(format!("node-{}", node.number)).args(flags);
        command.arg("--state-dir").arg(dir.join(format!("state-{}", node.number)));
        command.arg("--run-dir").arg(&run).arg("--subnet-file").arg(run.join("subnet.env"));
        command.arg("--calico-dir").arg(run.join("calico"));
        let process = Process::start(node, &mut command, &run.join("log"))?;
        Ok(Agent { process, run })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn check(&mut self) -> Outcome {
        self.process.check()
    }

    /// Subnet of the node with the gateway as its address; `None` before the agent has a lease.
    pub(crate) fn subnet(&self) -> Outcome<Option<Ipv4Net>> {
        let Ok(text) = fs::read_to_string(self.run.join("subnet.env")) else { return Ok(None) };
        let subnet = text.lines().find_map(|line| line.strip_prefix("FLANNEL_SUBNET="));
        Ok(Some(subnet.ok_or("subnet.env has no subnet")?.parse()?))
    }

    /// Waits for the subnet.
    pub(crate) fn wait_subnet(&mut self) -> Outcome<Ipv4Net> {
        wait::until("a subnet", Duration::from_millis(2), || {
            self.check()?;
            self.subnet()
        })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.run.join("agent.sock")
    }

    /// The status of the agent.
    pub(crate) fn status(&self) -> Outcome<Value> {
        let response = agent_client::get(&self.socket(), "/status", STATUS_TIMEOUT)?;
        Ok(serde_json::from_str(&response.body)?)
    }
}

/// Address of the node's tunnel device.
pub(crate) fn tunnel(subnet: Ipv4Net) -> Ipv4Addr {
    subnet.network()
}
