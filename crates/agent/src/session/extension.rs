// SPDX-License-Identifier: Apache-2.0
//! The backend that consists of an administrator's commands.

use std::time::Duration;

use overlay::difference::Change;
use overlay::netconf::{Backend, Extension, NetConf};
use overlay::plan::extension::{self, Call};

use super::{End, Session};
use crate::board::Part;
use crate::run::Worker;

/// A command that takes longer is ended.
const DEADLINE: Duration = Duration::from_secs(60);

impl Worker {
    /// Runs the command before the start, once: what it prints is told to the others.
    pub(super) async fn before_start(&mut self, conf: &NetConf) -> Result<(), End> {
        let Some(commands) = commands(conf) else { return Ok(()) };
        if self.extension_output.is_some() {
            return Ok(());
        }
        let Some(call) = extension::before_start(&commands.pre_startup, &variable) else {
            return Ok(());
        };
        let printed = run(call).await.map_err(|why| End::wait(Part::Config, why, None))?;
        self.extension_output = Some(printed.trim_end_matches('\n').to_owned());
        Ok(())
    }

    /// Tells the command after the start what the node has.
    pub(super) async fn after_start(&self, session: &Session) {
        let Some(commands) = commands(&session.conf) else { return };
        let lease = &session.held.lease;
        let call = extension::after_start(
            &commands.post_startup,
            &session.conf.networks,
            &lease.subnets,
            &lease.attributes.public,
            &variable,
        );
        self.call(call).await;
    }

    /// Tells the commands of peers that came or went.
    pub(super) async fn tell_commands(&self, session: &Session, changes: &[Change]) {
        let Some(commands) = commands(&session.conf) else { return };
        for change in changes {
            let call = match change {
                Change::CallAdded(peer) => {
                    extension::of_peer(&commands.subnet_add, peer, &variable)
                }
                Change::CallRemoved(peer) => {
                    extension::of_peer(&commands.subnet_remove, peer, &variable)
                }
                _ => continue,
            };
            self.call(call).await;
        }
    }

    async fn call(&self, call: Option<Call>) {
        let Some(call) = call else { return };
        match run(call).await {
            Ok(_) => self.board.solved(Part::Config),
            Err(why) => self.board.problem(Part::Config, why),
        }
    }
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

async fn run(call: Call) -> Result<String, String> {
    let name = call.argv.first().cloned().unwrap_or_default();
    let ran = tokio::task::spawn_blocking(move || {
        let Call { argv, env, stdin } = call;
        cni::exec::run_command(&argv, &env, stdin.as_bytes(), DEADLINE)
    });
    match ran.await {
        Ok(Ok(printed)) => Ok(String::from_utf8_lossy(&printed).into_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("{name} could not be run")),
    }
}
