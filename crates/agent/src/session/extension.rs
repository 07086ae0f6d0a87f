// SPDX-License-Identifier: Apache-2.0
//! The backend that consists of an administrator's commands.

use std::time::Duration;

use ipnet::IpNet;
use overlay::backend::extension::{self, CommandLine};
use overlay::backend::{Backend, Extension};
use overlay::diff::Change;
use overlay::netconf::NetConf;

use super::{End, Session};
use crate::run::Worker;
use crate::settings::Settings;
use crate::status::{ConditionKind, Refused};

/// A command that takes longer is ended.
const DEADLINE: Duration = Duration::from_secs(60);

impl Worker {
    /// Runs the command before the start, once: what it prints is told to the others.
    pub(super) async fn before_start(&mut self, conf: &NetConf) -> Result<(), End> {
        let Some(commands) = commands(conf) else { return Ok(()) };
        if self.extension_output.is_some() || self.settings.mode.dry_run {
            return Ok(());
        }
        let call = extension::before_start(&commands.pre_startup, &variable);
        let printed = run(&commands.pre_startup, call)
            .await
            .map_err(|why| End::wait(ConditionKind::Config, why, None))?;
        self.extension_output = printed.map(|text| text.trim_end_matches('\n').to_owned());
        Ok(())
    }

    /// Tells the command after the start what the node has, before it is told of peers: it may make what
    /// leads to them.
    pub(super) async fn after_start(&self, session: &Session) -> Result<(), String> {
        let Some(commands) = commands(&session.conf) else { return Ok(()) };
        let lease = &session.held.lease;
        let call = extension::after_start(
            &commands.post_startup,
            &session.conf.networks,
            &lease.subnets,
            &lease.attributes.public,
            &variable,
        );
        run(&commands.post_startup, call).await.map(drop)
    }

    /// Tells the commands of peers that came or went.
    pub(super) async fn tell_commands(&mut self, session: &Session, changes: &[Change]) {
        let Some(commands) = commands(&session.conf) else { return self.not_added.clear() };
        for change in changes {
            match change {
                Change::CallAdded(peer) => {
                    let call = extension::for_peer(&commands.subnet_add, peer, &variable);
                    match run(&commands.subnet_add, call).await {
                        Ok(_) => self.not_added.remove(&peer.subnet),
                        Err(why) => self.not_added.insert(peer.subnet, why),
                    };
                }
                Change::CallRemoved(peer) => {
                    self.not_added.remove(&peer.subnet);
                    // What it says is in the log, and the peer is gone.
                    let call = extension::for_peer(&commands.subnet_remove, peer, &variable);
                    let _ = run(&commands.subnet_remove, call).await;
                }
                _ => {}
            }
        }
    }

    /// Peers whose command has failed.
    pub(super) fn refused_by_commands(&self) -> Vec<Refused> {
        if self.not_added.is_empty() {
            return Vec::new();
        }
        let peers = self.hub.peers();
        let name = |subnet: &IpNet| peers.iter().find(|peer| peer.subnets.contains(subnet));
        let refused = |(subnet, why): (&IpNet, &String)| Refused {
            peer: name(subnet).map(|peer| peer.name.clone()).unwrap_or_default(),
            subnet: Some(*subnet),
            reason: why.clone(),
        };
        self.not_added.iter().map(refused).collect()
    }
}

/// Refuses commands unless this node allows them: whoever writes the network's configuration chooses them.
pub(super) fn check_allowed(settings: &Settings, conf: &NetConf) -> Result<(), String> {
    if settings.network.allows_extension || commands(conf).is_none() {
        return Ok(());
    }
    Err("the backend \"extension\" runs commands from the network's configuration as root, \
         and this node does not allow that: start its agent with --allow-extension-commands to allow it"
        .to_owned())
}

/// The command before the start in one line, if there is one.
pub(super) fn line_before_start(conf: &NetConf) -> Option<String> {
    commands(conf).map(|commands| commands.pre_startup.join(" ")).filter(|line| !line.is_empty())
}

fn commands(conf: &NetConf) -> Option<&Extension> {
    match &conf.backend {
        Backend::Extension(commands) => Some(commands),
        _ => None,
    }
}

/// Commands see the agent's own environment, so what they name in it is looked up there.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What a command printed; nothing where there is none. What it says when it fails is logged as well.
async fn run(command: &[String], call: Option<CommandLine>) -> Result<Option<String>, String> {
    let Some(CommandLine { argv, env, stdin }) = call else { return Ok(None) };
    // As configured: a variable of the agent's environment may be a secret.
    let given: Vec<String> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    tracing::info!(command = %command.join(" "), env = %given.join(" "), "running a command of the backend");
    let name = argv.first().cloned().unwrap_or_default();
    let ran = tokio::task::spawn_blocking(move || {
        cni::exec::run_command(&argv, &env, stdin.as_bytes(), DEADLINE)
    });
    let printed = match ran.await {
        Ok(Ok(printed)) => Ok(Some(String::from_utf8_lossy(&printed).into_owned())),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("{name} could not be run")),
    };
    printed.inspect_err(|why| tracing::error!(%why, "a command of the backend's failed"))
}
