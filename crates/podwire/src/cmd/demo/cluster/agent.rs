// SPDX-License-Identifier: Apache-2.0
//! A node's agent: on a thread of this process that lives in the node's namespace, told what to do by
//! the same words that people use.

use std::path::Path;
use std::thread::{self, JoinHandle};

use agent::cleanup::Cleaned;
use agent::options::{self, Asked, Command, Settings};
use agent::status::StatusHub;
use anyhow::{Context, Result, anyhow, bail, ensure};
use kernel::Netns;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::place;

/// Runs until it is stopped or dropped; what it made in the kernel stays.
#[derive(Debug)]
pub struct Agent {
    pub hub: StatusHub,
    settings: Settings,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// Places of one node's agent.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// Of this node alone.
    pub dir: &'a Path,
    /// Of all nodes.
    pub store: &'a Path,
}

/// The directory of CNI configurations in a node's own.
pub const CONF_DIR: &str = "net.d";
/// The agent's file there.
pub const CONF_NAME: &str = "10-podwire.conflist";

impl Agent {
    /// Starts `podwire agent` with these arguments in a namespace.
    pub fn start(netns: &Netns, args: &[String]) -> Result<Agent> {
        let settings = settings(args)?;
        let name = settings.node_name.clone().unwrap_or_default();
        let hub = StatusHub::new(name, settings.store.name());
        let (stop, stopped) = oneshot::channel();
        let (told, posted) = (settings.clone(), hub.clone());
        let serve = move || serve(told, posted, stopped);
        // A thread is born in the namespace of the one that starts it.
        let start = || thread::Builder::new().name("agent".to_owned()).spawn(serve);
        let thread = netns.enter(start)?.context("start an agent's thread")?;
        Ok(Agent { hub, settings, stop: Some(stop), thread: Some(thread) })
    }

    /// An error where it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        match self.thread.take_if(|thread| thread.is_finished()) {
            None => Ok(()),
            Some(ended) => {
                ended.join().map_err(|_| anyhow!("it panicked"))??;
                bail!("it has ended")
            }
        }
    }

    /// Waits for its end.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Whether it could not begin was asked before; a panic has said so itself.
            let _ = thread.join();
        }
    }

    /// Does what `podwire cleanup` does on the node of an agent that is stopped; how many things it removed.
    pub fn clean_up(&self, netns: &Netns) -> Result<usize> {
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

/// What the agent of a node is told.
pub fn arguments(node: &str, net_config: &str, places: Places<'_>) -> Result<Vec<String>> {
    let path = |path: &Path| place::as_text(path).map(str::to_owned);
    let dir = path(places.dir)?;
    let pairs = [
        ("--node-name", node.to_owned()),
        ("--iface", super::underlay::INTERFACE.to_owned()),
        ("--net-config", net_config.to_owned()),
        ("--store-file", path(places.store)?),
        ("--subnet-file", format!("{dir}/subnet.env")),
        ("--cni-conf-dir", format!("{dir}/{CONF_DIR}")),
        ("--cni-conf-name", CONF_NAME.to_owned()),
        ("--state-dir", format!("{dir}/state")),
        ("--run-dir", dir),
    ];
    let said = pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    Ok(said.chain(["--ip-masq".to_owned()]).collect())
}

/// Neither this process' environment nor any file has a say.
fn settings(args: &[String]) -> Result<Settings> {
    let no_file = |path: &str| Err(std::io::Error::other(format!("{path} is not read here")));
    match options::understand(Command::Agent, args, |_| None, no_file)? {
        Asked::Run(settings) => Ok(*settings),
        Asked::Help | Asked::Version => bail!("an agent is to run"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_at_a_usual_place() {
        let places = Places { dir: Path::new("/d/node1"), store: Path::new("/d/store.db") };
        let net_config = super::super::backend::Backend::Vxlan.net_config();
        let told = settings(&arguments("node1", &net_config, places).unwrap()).unwrap();
        for path in [
            Some(told.subnet_file.as_path()),
            told.cni_conf.as_deref(),
            Some(&told.state_dir),
            Some(&told.run_dir),
        ] {
            assert!(path.unwrap().starts_with("/d/node1"), "{path:?}");
        }
        assert!(format!("{:?}", told.store).contains("/d/store.db"));
    }
}
