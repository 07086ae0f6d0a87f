// SPDX-License-Identifier: Apache-2.0
//! What the demo builds: a node in a namespace of its own, a network on it, and pods that are
//! attached by the real plugins, called as functions from inside the node's namespace.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cni::runtime::{Container, NetworkList, Runtime, conf_dir};
use cni::{CniResult, Host};
use kernel::Netns;
use serde_json::{Value, json};

use super::run::Run;
use crate::{config, place};

const NETWORK: &str = "podwire-demo";
const NO_PLUGINS: &str = "/dev/null";
/// The bridge in the node's namespace.
pub const BRIDGE: &str = "podwire0";

/// The node and its network.
#[derive(Debug)]
pub struct Lab {
    host: Host,
    list: NetworkList,
    cache: PathBuf,
    pub node: PathBuf,
    node_netns: Netns,
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
        let ends = self.result.interfaces.iter().filter(|end| end.sandbox.is_empty());
        ends.map(|end| end.name.as_str()).find(|name| *name != BRIDGE).unwrap_or_default()
    }
}

impl Lab {
    /// Writes the network's configuration and makes the node.
    pub fn new(run: &Run) -> Result<Lab> {
        let list = write_network(run.dir())?;
        let (node, node_netns) = run.namespace("node").context("make the node")?;
        let (host, cache) = (place::this_program(), run.dir().join("cache"));
        Ok(Lab { host, list, cache, node, node_netns, pods: Vec::new() })
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
        let (result, took) =
            self.node_netns.enter(attach)?.with_context(|| format!("attach {name}"))?;
        Ok(Pod { name: name.to_owned(), path, netns, result, took })
    }

    /// Detaches all pods; the time of each.
    pub fn detach_pods(&self) -> Result<Vec<Duration>> {
        let detach = |pod: &Pod| -> Result<Duration> {
            let container = container(&pod.name, &pod.path)?;
            let started = Instant::now();
            self.node_netns
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
        id: format!("{NETWORK}-{name}"),
        netns: place::as_text(path)?.to_owned(),
        ifname: "eth0".to_owned(),
        ..Container::default()
    })
}

fn write_network(dir: &Path) -> Result<NetworkList> {
    let folder = dir.join("net.d");
    let text = cni::json::to_pretty(&network(&dir.join("addresses")));
    fs::create_dir(&folder)
        .and_then(|()| fs::write(folder.join("10-demo.conflist"), text))
        .context("write the network's configuration")?;
    Ok(conf_dir::load(&folder, NETWORK)?)
}

fn network(addresses: &Path) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": NETWORK,
        "plugins": [{
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "dataDir": addresses,
                "ranges": [[{ "subnet": "10.77.0.0/24" }], [{ "subnet": "fd77::/64" }]],
                "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
            },
        }],
    })
}
