// SPDX-License-Identifier: Apache-2.0
//! What the demo builds: a node in a namespace of its own, a network on it, and pods that are
//! attached by the real plugins, called as functions from inside the node's namespace.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cni::runtime::{Container, NetworkList, Runtime};
use cni::{CniResult, Host};
use kernel::Netns;

use super::run::Run;
use crate::{config, output, place};

const NO_PLUGINS: &str = "/dev/null";

/// The node and its network.
#[derive(Debug)]
pub struct Lab {
    host: Host,
    list: NetworkList,
    cache: PathBuf,
    pub node: PathBuf,
    pub netns: Netns,
    pub pods: Vec<Pod>,
}

/// One container.
#[derive(Debug)]
pub struct Pod {
    pub name: String,
    pub path: PathBuf,
    pub netns: Netns,
    pub result: CniResult,
    /// The time its ADD took.
    pub took: Duration,
}

impl Pod {
    /// Its addresses in the order given.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.result.ips.iter().map(|ip| ip.address.addr())
    }

    /// The node's end of its wire.
    pub fn wire(&self) -> &str {
        // The bridge comes first.
        let mut ends = self.result.interfaces.iter().filter(|end| end.sandbox.is_empty());
        ends.next_back().map(|end| end.name.as_str()).unwrap_or_default()
    }

    /// What became of its ADD.
    pub fn attached(&self) -> String {
        let ips: Vec<String> = self.ips().map(|ip| ip.to_string()).collect();
        format!("{} attached in {}", ips.join(" and "), output::duration(self.took))
    }
}

impl Lab {
    /// A node without pods, whose results are kept in a directory.
    pub fn new(list: NetworkList, cache: PathBuf, node: PathBuf, netns: Netns) -> Lab {
        // Only the demo attaches its pods, and the files of locks would stay on the host.
        let host = Host { locks: None, ..place::this_program() };
        Lab { host, list, cache, node, netns, pods: Vec::new() }
    }

    /// Makes a container and attaches it to loopback and the network.
    pub fn add_pod(&self, run: &Run, name: &str) -> Result<Pod> {
        let (path, netns) = run.namespace(name).with_context(|| format!("make {name}"))?;
        let container = container(name, &path)?;
        let attach = || -> Result<(CniResult, Duration)> {
            let lo = Container { ifname: "lo".to_owned(), ..container.clone() };
            self.runtime().add(&config::loopback()?, &lo).context("set up loopback")?;
            let started = Instant::now();
            let result = self.runtime().add(&self.list, &container)?;
            Ok((result, started.elapsed()))
        };
        let (result, took) = self.netns.enter(attach)?.with_context(|| format!("attach {name}"))?;
        Ok(Pod { name: name.to_owned(), path, netns, result, took })
    }

    /// Detaches all pods; the time of each.
    pub fn detach_pods(&self) -> Result<Vec<Duration>> {
        let detach = |pod: &Pod| -> Result<Duration> {
            let container = container(&pod.name, &pod.path)?;
            let started = Instant::now();
            self.netns
                .enter(|| self.runtime().del(&self.list, &container))?
                .with_context(|| format!("detach {}", pod.name))?;
            Ok(started.elapsed())
        };
        self.pods.iter().map(detach).collect()
    }

    /// Plugins are taken from this program only: where they are looked for first, there is none.
    fn runtime(&self) -> Runtime<'_> {
        let mut runtime = Runtime::new(&self.host, NO_PLUGINS);
        runtime.cache_dir.clone_from(&self.cache);
        runtime
    }
}

fn container(name: &str, path: &Path) -> Result<Container> {
    Ok(Container {
        id: format!("podwire-demo-{name}"),
        netns: place::as_text(path)?.to_owned(),
        ifname: "eth0".to_owned(),
        ..Container::default()
    })
}
