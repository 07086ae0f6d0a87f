// SPDX-License-Identifier: Apache-2.0
//! etcd on a node, if it is installed.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use super::node::Node;
use super::process::{Process, program};
use super::{Outcome, wait};

/// A server.
#[derive(Debug)]
pub struct Etcd {
    _process: Process,
    endpoint: String,
}

impl Etcd {
    /// Started, and answering.
    pub fn start(node: &Node, dir: &Path) -> Outcome<Etcd> {
        fs::create_dir_all(dir)?;
        let at = format!("{}:2379", node.underlay());
        let endpoint = format!("http://{at}");
        let mut command = program("etcd");
        command.arg("--data-dir").arg(dir.join("data"));
        command.args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint]);
        command.args(["--listen-peer-urls", "http://127.0.0.1:2380", "--log-level", "error"]);
        let mut process = Process::start(node, &mut command, &dir.join("log"))?;
        // Its port is there when it has been elected.
        wait::until("etcd", Duration::from_millis(20), || {
            process.check()?;
            Ok(node.netns.enter(|| TcpStream::connect(&at))?.ok())
        })?;
        Ok(Etcd { _process: process, endpoint })
    }

    /// Flags for an agent.
    pub fn flags(&self) -> Vec<String> {
        ["--store", "etcd", "--etcd-endpoints", &self.endpoint].map(str::to_owned).to_vec()
    }
}
