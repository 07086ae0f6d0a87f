// SPDX-License-Identifier: Apache-2.0
//! A node in its own network namespace, and pods that the real plugins attach. The plugins are called
//! as functions from inside the node's namespace.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cni::runtime::{Container, NetworkList, Runtime};
use cni::{CniResult, Host};
use kernel::Netns;

use super::run::Run;
use crate::{network_lookup, output, runtime};

/// Plugin path without plugins: the demo uses only those in this program.
const NO_PLUGINS: &str = "/dev/null";

/// A node with its network and its pods.
#[derive(Debug)]
pub(crate) struct Lab {
    host: Host,
    list: NetworkList,
    cache: PathBuf,
    pub(crate) node: PathBuf,
    pub(crate) netns: Netns,
    pub(crate) pods: Vec<Pod>,
}

#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) netns: Netns,
    pub(crate) result: CniResult,
    /// Duration of ADD.
    pub(crate) took: Duration,
}

impl Pod {
    /// Addresses in the order of the result.
    pub(crate) fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.result.ips.iter().map(|ip| ip.address.addr())
    }

    /// Name of the interface on the node.
    pub(crate) fn host_interface(&self) -> &str {
        // The result lists the bridge first.
        let mut interfaces = self.result.interfaces.iter().filter(|one| one.sandbox.is_empty());
        interfaces.next_back().map(|one| one.name.as_str()).unwrap_or_default()
    }

    /// One line about the ADD.
    pub(crate) fn describe_add(&self) -> String {
        let ips: Vec<String> = self.ips().map(|ip| ip.to_string()).collect();
        format!("{} attached in {}", ips.join(" and "), output::duration(self.took))
    }
}

impl Lab {
    /// A node without pods. Results are cached in the directory `cache`.
    pub(crate) fn new(list: NetworkList, cache: PathBuf, node: PathBuf, netns: Netns) -> Lab {
        // No other program attaches pods of the demo, and lock files would stay on the host.
        let host = Host { locks: None, ..runtime::this_program() };
        Lab { host, list, cache, node, netns, pods: Vec::new() }
    }

    /// Creates a pod and attaches it to loopback and to the network.
    pub(crate) fn add_pod(&self, run: &Run, name: &str) -> Result<Pod> {
        let (path, netns) = run.namespace(name).with_context(|| format!("create {name}"))?;
        let container = container(name, &path)?;
        let attach = || -> Result<(CniResult, Duration)> {
            let lo = Container { ifname: "lo".to_owned(), ..container.clone() };
            self.runtime().add(&network_lookup::loopback()?, &lo).context("set up loopback")?;
            let started = Instant::now();
            let result = self.runtime().add(&self.list, &container)?;
            Ok((result, started.elapsed()))
        };
        let (result, took) = self.netns.enter(attach)?.with_context(|| format!("attach {name}"))?;
        Ok(Pod { name: name.to_owned(), path, netns, result, took })
    }

    /// Detaches all pods and returns the duration of each DEL.
    pub(crate) fn detach_pods(&self) -> Result<Vec<Duration>> {
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

    fn runtime(&self) -> Runtime<'_> {
        let mut runtime = Runtime::new(&self.host, NO_PLUGINS);
        runtime.cache_dir.clone_from(&self.cache);
        runtime
    }
}

fn container(name: &str, path: &Path) -> Result<Container> {
    Ok(Container {
        // Names of routed interfaces have its first eleven characters.
        id: format!("{name}-podwire-demo"),
        netns: runtime::as_text(path)?.to_owned(),
        ifname: "eth0".to_owned(),
        ..Container::default()
    })
}
