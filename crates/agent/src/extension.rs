// SPDX-License-Identifier: Apache-2.0
//! The extension controller: runs the commands of the backend `extension`, one after the other, so that a
//! slow command delays no other controller.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use overlay::backend::extension::{self, CommandLine, ExtensionPeer};
use overlay::backend::{Backend, Extension};
use overlay::diff::Change;
use overlay::netconf::NetConf;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;

use crate::membership::Joined;
use crate::settings::Settings;
use crate::status::{ConditionKind, StatusHub};
use crate::supervisor::{Failure, Heartbeat};

/// A command that takes longer is killed.
const DEADLINE: Duration = Duration::from_secs(60);

/// Sends the jobs that changes of the routes dataplane ask for.
pub(crate) fn send_jobs(jobs: &UnboundedSender<Job>, changes: &[Change]) {
    for change in changes {
        let job = match change {
            Change::CallAdded(peer) => Job::PeerAdded(peer.clone()),
            Change::CallRemoved(peer) => Job::PeerRemoved(peer.clone()),
            _ => continue,
        };
        // The receiver is gone only while the agent shuts down.
        let _ = jobs.send(job);
    }
}

/// A reason to run a command.
#[derive(Debug, Clone)]
pub(crate) enum Job {
    /// The node has joined a network. The command may create what leads to the peers.
    Joined(Arc<Joined>),
    PeerAdded(ExtensionPeer),
    PeerRemoved(ExtensionPeer),
}

/// Subnets of peers whose command has failed, with its output.
pub(crate) type Failures = BTreeMap<IpNet, String>;

/// Results of the commands so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// The last network whose command after the start has ended.
    pub started: Option<Arc<Joined>>,
    pub failures: Failures,
}

impl Progress {
    /// Returns whether pods can use this network: its command after the start has ended, or there is none.
    pub(crate) fn has_started(&self, joined: &Arc<Joined>) -> bool {
        let has_command = commands(&joined.conf).is_some_and(|all| !all.post_startup.is_empty());
        !has_command || self.started.as_ref().is_some_and(|one| Arc::ptr_eq(one, joined))
    }
}

/// The controller. After a restart it repeats the command that was running.
#[derive(Debug)]
pub(crate) struct ExtensionController {
    hub: StatusHub,
    jobs: UnboundedReceiver<Job>,
    /// The job that is running, and those that wait.
    pending: VecDeque<Job>,
    /// The network that the node has joined.
    joined: Option<Arc<Joined>>,
    progress: watch::Sender<Progress>,
}

impl ExtensionController {
    pub(crate) fn new(
        hub: &StatusHub,
        jobs: UnboundedReceiver<Job>,
        progress: watch::Sender<Progress>,
    ) -> Self {
        Self { hub: hub.clone(), jobs, pending: VecDeque::new(), joined: None, progress }
    }

    pub(crate) async fn run(&mut self, heartbeat: &Heartbeat) -> Result<(), Failure> {
        loop {
            heartbeat.beat();
            if let Some(job) = self.pending.front().cloned() {
                heartbeat.during(self.perform(&job)).await;
                self.pending.pop_front();
                continue;
            }
            tokio::select! {
                job = self.jobs.recv() => match job {
                    Some(job) => self.pending.push_back(job),
                    None => return Ok(()),
                },
                () = heartbeat.tick() => {}
            }
        }
    }

    async fn perform(&mut self, job: &Job) {
        if let Job::Joined(joined) = job {
            self.joined = Some(Arc::clone(joined));
        }
        let Some(joined) = self.joined.clone() else { return };
        let Some(commands) = commands(&joined.conf) else {
            self.change_failures(|failures| !std::mem::take(failures).is_empty());
            return self.hub.clear_problem(ConditionKind::Extension);
        };
        match job {
            Job::Joined(joined) => {
                let call = extension::after_start(
                    &commands.post_startup,
                    &joined.conf.networks,
                    &joined.lease.subnets,
                    &joined.lease.attributes.public,
                    &variable,
                );
                let result = run(&commands.post_startup, call).await.map(drop);
                self.hub.report_result(ConditionKind::Extension, result);
                self.progress.send_modify(|progress| progress.started = Some(Arc::clone(joined)));
            }
            Job::PeerAdded(peer) => {
                let call = extension::for_peer(&commands.subnet_add, peer, &variable);
                let result = run(&commands.subnet_add, call).await;
                self.set_failure(peer.subnet, result.err());
            }
            Job::PeerRemoved(peer) => {
                self.set_failure(peer.subnet, None);
                // A failure is in the log, and the peer is gone.
                let call = extension::for_peer(&commands.subnet_remove, peer, &variable);
                let _ = run(&commands.subnet_remove, call).await;
            }
        }
    }

    fn set_failure(&self, subnet: IpNet, failure: Option<String>) {
        self.change_failures(|failures| match failure {
            Some(reason) => failures.insert(subnet, reason.clone()) != Some(reason),
            None => failures.remove(&subnet).is_some(),
        });
    }

    /// Changes the failures. The function returns whether they are different.
    fn change_failures(&self, change: impl FnOnce(&mut Failures) -> bool) {
        self.progress.send_if_modified(|progress| change(&mut progress.failures));
    }
}

/// Runs the command before the start, and returns its output for the node's lease.
pub(crate) async fn before_start(conf: &NetConf) -> Result<Option<String>, String> {
    let Some(commands) = commands(conf) else { return Ok(None) };
    let call = extension::before_start(&commands.pre_startup, &variable);
    let output = run(&commands.pre_startup, call).await?;
    Ok(output.map(|text| text.trim_end_matches('\n').to_owned()))
}

/// Refuses commands unless this node allows them: whoever writes the network's configuration chooses them.
pub(crate) fn check_allowed(settings: &Settings, conf: &NetConf) -> Result<(), String> {
    if settings.network.allows_extension || commands(conf).is_none() {
        return Ok(());
    }
    Err("the backend \"extension\" runs commands from the network's configuration as root, \
         and this node does not allow that: start its agent with --allow-extension-commands to allow it"
        .to_owned())
}

/// The command before the start in one line, if there is one.
pub(crate) fn line_before_start(conf: &NetConf) -> Option<String> {
    commands(conf).map(|commands| commands.pre_startup.join(" ")).filter(|line| !line.is_empty())
}

fn commands(conf: &NetConf) -> Option<&Extension> {
    match &conf.backend {
        Backend::Extension(commands) => Some(commands),
        _ => None,
    }
}

/// Looks up a variable of the agent's own environment, which commands inherit.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Runs a command and returns its output; `None` if no command is configured. A failure is logged.
async fn run(command: &[String], call: Option<CommandLine>) -> Result<Option<String>, String> {
    let Some(CommandLine { argv, env, stdin }) = call else { return Ok(None) };
    // As configured: a variable of the agent's environment may be a secret.
    let given: Vec<String> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    tracing::info!(command = %command.join(" "), env = %given.join(" "), "running extension command");
    let name = argv.first().cloned().unwrap_or_default();
    let ran = tokio::task::spawn_blocking(move || {
        cni::exec::run_command(&argv, &env, stdin.as_bytes(), DEADLINE)
    });
    let printed = match ran.await {
        Ok(Ok(printed)) => Ok(Some(String::from_utf8_lossy(&printed).into_owned())),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("{name} could not be run")),
    };
    printed.inspect_err(|why| tracing::error!(%why, "extension command failed"))
}
