// SPDX-License-Identifier: Apache-2.0
//! The agent of a node: a thread of this process in the namespace of the node, configured with the
//! options of the command line.

use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use agent::api::socket_path;
use agent::cleanup::Cleaned;
use agent::settings::{self, Command, Invocation, Settings};
use agent::status::StatusHub;
use agent_client::pools::{VIEW, View};
use anyhow::{Context, Result, anyhow, bail, ensure};
use kernel::Netns;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::network::Network;
use crate::runtime::as_text;

/// Runs until it is stopped or dropped. Its kernel state stays.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) hub: StatusHub,
    settings: Settings,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// Files of the agent of one node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AgentFiles<'a> {
    /// Directory of this node.
    pub(crate) dir: &'a Path,
    /// Store shared by all nodes.
    pub(crate) store: &'a Path,
}

/// Directory of CNI configurations in the directory of a node.
pub(crate) const CONF_DIR: &str = "net.d";
/// The file that the agent writes there.
pub(crate) const CONF_NAME: &str = "10-podwire.conflist";
/// Directory of Calico's files in the directory of a node.
const CALICO_DIR: &str = "calico";
/// Maximum wait for the agent's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

impl Agent {
    /// Starts `podwire agent` with these arguments in a namespace.
    pub(crate) fn start(netns: &Netns, args: &[String]) -> Result<Agent> {
        let settings = settings(args)?;
        let name = settings.node.name.clone().unwrap_or_default();
        let hub = StatusHub::new(name, settings.store.name());
        let (stop, stopped) = oneshot::channel();
        let (settings_copy, hub_copy) = (settings.clone(), hub.clone());
        let serve = move || serve(settings_copy, hub_copy, stopped);
        // A thread inherits the namespace of the thread that starts it.
        let start = || thread::Builder::new().name("agent".to_owned()).spawn(serve);
        let thread = netns.enter(start)?.context("start the thread of an agent")?;
        Ok(Agent { hub, settings, stop: Some(stop), thread: Some(thread) })
    }

    /// Fails if the agent has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.thread.take_if(|thread| thread.is_finished()) {
            None => Ok(()),
            Some(ended) => {
                ended.join().map_err(|_| anyhow!("the agent panicked"))??;
                bail!("the agent has ended")
            }
        }
    }

    /// Requests pools and blocks, as `podwire ipam show` does.
    pub(crate) fn pools(&self) -> Result<View> {
        let socket = socket_path(&self.settings.api.run_dir);
        let response = agent_client::get(&socket, VIEW, ANSWER_TIMEOUT)?;
        ensure!(response.status == 200, "request {VIEW} from the agent: {}", response.body);
        Ok(serde_json::from_str(&response.body)?)
    }

    /// MTU of the pods, which the agent writes for the plugin.
    pub(crate) fn pod_mtu(&self) -> Option<u32> {
        self.hub.network().map(|network| network.pod_mtu)
    }

    /// Stops the agent and waits for its end.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // `check` has reported errors, and a panic has printed its message.
            let _ = thread.join();
        }
    }

    /// Runs `podwire cleanup` on the node of the stopped agent. Returns the number of removed objects.
    pub(crate) fn clean_up(&self, netns: &Netns) -> Result<usize> {
        let cleaned = netns.enter(|| -> Result<Cleaned> {
            Ok(runtime()?.block_on(agent::cleanup::cleanup(&self.settings))?)
        })??;
        ensure!(cleaned.failed.is_empty(), "{}", cleaned.failed.join("; "));
        Ok(cleaned.done.len())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
    }
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn serve(settings: Settings, hub: StatusHub, stopped: oneshot::Receiver<()>) -> Result<()> {
    runtime()?.block_on(async {
        tokio::select! {
            ended = agent::run::run(settings, hub) => match ended? {},
            _ = stopped => Ok(()),
        }
    })
}

/// Command-line options of the agent of a node.
pub(crate) fn arguments(
    node: &str,
    network: Network,
    files: AgentFiles<'_>,
) -> Result<Vec<String>> {
    let path = |path: &Path| as_text(path).map(str::to_owned);
    let dir = path(files.dir)?;
    let pairs = [
        ("--node-name", node.to_owned()),
        ("--iface", super::underlay::INTERFACE.to_owned()),
        ("--store-file", path(files.store)?),
        ("--subnet-file", format!("{dir}/subnet.env")),
        ("--cni-conf-dir", format!("{dir}/{CONF_DIR}")),
        ("--cni-conf-name", CONF_NAME.to_owned()),
        ("--state-dir", format!("{dir}/state")),
        ("--calico-dir", format!("{dir}/{CALICO_DIR}")),
        ("--run-dir", dir),
    ];
    let options = pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    Ok(options.chain(network.options()).collect())
}

/// Parses options without reading the environment or any file.
fn settings(args: &[String]) -> Result<Settings> {
    let no_file = |path: &str| Err(std::io::Error::other(format!("the demo reads no file {path}")));
    match settings::parse(Command::Agent, args, |_| None, no_file)? {
        Invocation::Run(settings) => Ok(*settings),
        Invocation::Help | Invocation::Version => bail!("--help and --version are not supported"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::network::Encapsulation;
    use super::*;

    #[test]
    fn agent_uses_no_default_path() {
        let files = AgentFiles { dir: Path::new("/d/node1"), store: Path::new("/d/store.db") };
        let network = Network::Routed(Encapsulation::Vxlan);
        let settings = settings(&arguments("node1", network, files).unwrap()).unwrap();
        for path in [
            Some(settings.files.calico.as_path()),
            Some(settings.files.subnet_env.as_path()),
            settings.files.cni_conf.as_deref(),
            Some(&settings.node.state_dir),
            Some(&settings.api.run_dir),
        ] {
            assert!(path.unwrap().starts_with("/d/node1"), "{path:?}");
        }
        assert!(format!("{:?}", settings.store).contains("/d/store.db"));
    }
}
