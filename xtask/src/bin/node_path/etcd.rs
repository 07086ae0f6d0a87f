// SPDX-License-Identifier: Apache-2.0
//! An etcd server on a node.

use std::fs;
use std::io::{self, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use super::node::Node;
use super::process::{Process, program};
use super::{Outcome, wait};

#[derive(Debug)]
pub(crate) struct Etcd {
    _process: Process,
    endpoint: String,
}

impl Etcd {
    /// Starts the server and waits until it is healthy.
    pub(crate) fn start(node: &Node, dir: &Path) -> Outcome<Etcd> {
        fs::create_dir_all(dir)?;
        let at = format!("{}:2379", node.underlay());
        let endpoint = format!("http://{at}");
        let mut command = program("etcd");
        command.arg("--data-dir").arg(dir.join("data"));
        command.args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint]);
        command.args(["--listen-peer-urls", "http://127.0.0.1:2380", "--log-level", "error"]);
        let mut process = Process::start(node, &mut command, &dir.join("log"))?;
        wait::until("etcd", Duration::from_millis(20), || {
            process.check()?;
            let health = node.netns.enter(|| health(&at))?;
            Ok(health.is_ok_and(|text| text.contains(r#""health":"true""#)).then_some(()))
        })?;
        Ok(Etcd { _process: process, endpoint })
    }

    /// Options for an agent.
    pub(crate) fn flags(&self) -> Vec<String> {
        ["--store", "etcd", "--etcd-endpoints", &self.endpoint].map(str::to_owned).to_vec()
    }
}

/// The port is open before the server has been elected leader.
fn health(at: &str) -> io::Result<String> {
    let mut socket = TcpStream::connect(at)?;
    socket.write_all(b"GET /health HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n")?;
    io::read_to_string(socket)
}
