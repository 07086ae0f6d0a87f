// SPDX-License-Identifier: Apache-2.0
//! `podwire status` and `podwire peers`: what the node agent knows, asked over its socket.

mod show;

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use agent::serve::socket_path;
use agent::status::{Peer, Status};
use agent_client::ClientError;
use anyhow::{Context, Result, anyhow};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::{AskAgent, NodePeers, NodeStatus};
use crate::output::{self, Format};
use crate::report::Hint;

/// An agent with thousands of peers answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Shows everything; fails where the node is not ready.
pub fn status(asked: &NodeStatus, format: Format) -> Result<ExitCode> {
    let answer = ask(&asked.agent, "/status")?;
    let is_ready = answer["ready"] == true;
    match format {
        Format::Json => output::print_json(&answer)?,
        Format::Text => {
            let status: Status = understood(answer)?;
            output::print(&show::status(&status, SystemTime::now()))?;
        }
    }
    Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows the other nodes.
pub fn peers(asked: &NodePeers, format: Format) -> Result<()> {
    let mut answer = ask(&asked.agent, "/peers")?;
    if let (true, Value::Array(peers)) = (asked.problems, &mut answer) {
        peers.retain(|peer| !peer["problem"].is_null());
    }
    if format == Format::Json {
        return output::print_json(&answer);
    }
    let peers: Vec<Peer> = understood(answer)?;
    output::print(&show::peers(&peers, SystemTime::now()))
}

fn ask(agent: &AskAgent, page: &str) -> Result<Value> {
    let socket = socket_path(&agent.run_dir);
    let asking = || format!("ask the node agent at {}", socket.display());
    let answer = match agent_client::get(&socket, page, PATIENCE) {
        Ok(answer) => answer,
        Err(error) => return Err(unanswered(&error, &socket)),
    };
    if answer.status != 200 {
        return Err(anyhow!("it says {}: {}", answer.status, answer.body.trim()))
            .with_context(asking)
            .hint(|| "agent and command should be of one version".to_owned());
    }
    serde_json::from_str(&answer.body).context("what it says is no JSON").with_context(asking)
}

/// A socket that nobody listens on was left by an agent that was killed.
fn unanswered(error: &ClientError, socket: &Path) -> anyhow::Error {
    let nobody = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];
    match error {
        ClientError::Connect(cause) if nobody.contains(&cause.kind()) => {
            let error = anyhow!("no node agent runs here: nobody listens on {}", socket.display());
            let start = || "start one: podwire agent; or name its directory with --run-dir".into();
            hinted(error, start)
        }
        ClientError::Connect(cause) => {
            anyhow!("{cause}").context(format!("ask {}", socket.display()))
        }
        ClientError::NoAnswer(why) => {
            let error = anyhow!("the node agent at {}: {why}", socket.display());
            hinted(error, || "it hangs: look at its log, and start it again".to_owned())
        }
    }
}

fn hinted(error: anyhow::Error, hint: impl FnOnce() -> String) -> anyhow::Error {
    let result: Result<()> = Err(error).hint(hint);
    result.expect_err("it was made of an error")
}

fn understood<T: DeserializeOwned>(answer: Value) -> Result<T> {
    serde_json::from_value(answer)
        .context("understand what the node agent says")
        .hint(|| "agent and command should be of one version".to_owned())
}
