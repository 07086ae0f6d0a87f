// SPDX-License-Identifier: Apache-2.0
//! `podwire status`: the state of the node agent, read over its socket.

pub(crate) mod tables;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use agent::api::socket_path;
use agent::status;
use agent_client::ClientError;
use agent_client::ipam::Failure;
use agent_client::pools::VIEW;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::errors::{Hint, with_hint};
use crate::output::{self, Format};

/// Maximum wait for a response. An agent with thousands of peers answers within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum wait for a change, which the agent makes in the store.
pub(crate) const CHANGE_TIMEOUT: Duration = Duration::from_secs(15);

/// Show the state of the node agent: network, lease, store, peers, repairs
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  podwire status
  podwire status -o json | jq -r .ready
  podwire status --run-dir /run/podwire-blue    another agent on this machine

Exit status: 0 if this node is ready, 1 if it is not ready or no agent runs.")]
pub(crate) struct Status {
    #[command(flatten)]
    agent: AgentArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AgentArgs {
    /// Directory of the agent's socket, the agent's own --run-dir
    #[arg(
        long,
        env = "PODWIRE_RUN_DIR",
        default_value = "/run/podwire",
        value_name = "DIR",
        hide_env_values = true
    )]
    run_dir: PathBuf,
}

pub(crate) fn run(args: &Status, format: Format) -> Result<ExitCode> {
    let response = args.agent.get("/status")?;
    let is_ready = response["ready"] == true;
    match format {
        Format::Json => output::print_json(&response)?,
        Format::Text => {
            let status: status::Status = parse(response)?;
            output::print(&tables::status(&status, SystemTime::now()))?;
        }
    }
    Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl AgentArgs {
    /// Requests a page of the agent as JSON.
    pub(crate) fn get(&self, page: &str) -> Result<Value> {
        let socket = socket_path(&self.run_dir);
        let request = || format!("request {page} from the node agent at {}", socket.display());
        let response =
            agent_client::get(&socket, page, TIMEOUT).map_err(|error| explain(&error, &socket))?;
        if response.status == 404 && page == VIEW {
            return Err(no_pools());
        }
        if let (false, Ok(failure)) = (response.status == 200, failure(&response.body)) {
            return Err(with_hint(anyhow!(failure.msg), failure.details));
        }
        if response.status != 200 {
            return Err(anyhow!("status {}: {}", response.status, response.body.trim()))
                .with_context(request)
                .hint(same_version);
        }
        serde_json::from_str(&response.body)
            .context("the response is not JSON")
            .with_context(request)
    }
}

impl AgentArgs {
    /// Sends a request that changes something, and returns the response.
    pub(crate) fn post(
        &self,
        page: &str,
        body: &impl Serialize,
        timeout: Duration,
    ) -> Result<Value> {
        let socket = socket_path(&self.run_dir);
        match agent_client::ipam::post(&socket, page, body, timeout) {
            Ok(response) => Ok(response),
            Err(agent_client::ipam::Error::Client(error)) => Err(explain(&error, &socket)),
            Err(agent_client::ipam::Error::Refused(failure)) if !failure.details.is_empty() => {
                Err(with_hint(anyhow!(failure.msg), failure.details))
            }
            Err(agent_client::ipam::Error::Unknown) => Err(no_pools()),
            Err(error) => Err(anyhow!("{error}")),
        }
    }
}

/// Parses the body of a response about pools.
fn failure(body: &str) -> Result<Failure> {
    let failure: Failure = serde_json::from_str(body)?;
    anyhow::ensure!(!failure.msg.is_empty(), "no message");
    Ok(failure)
}

/// The agent has no page about pools.
fn no_pools() -> anyhow::Error {
    with_hint(
        anyhow!("the node agent has no address pools"),
        "start it with --pods routed".to_owned(),
    )
}

/// An agent that was killed leaves a socket on which nothing listens.
fn explain(error: &ClientError, socket: &Path) -> anyhow::Error {
    let not_running = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];
    match error {
        ClientError::Connect(cause) if not_running.contains(&cause.kind()) => with_hint(
            anyhow!("no node agent is running: nothing listens on {}", socket.display()),
            "start one with `podwire agent`, or pass its directory with --run-dir".to_owned(),
        ),
        ClientError::Connect(cause) => {
            anyhow!("{cause}").context(format!("connect to {}", socket.display()))
        }
        ClientError::NoAnswer(why) => with_hint(
            anyhow!("the node agent at {}: {why}", socket.display()),
            "the agent hangs: check its log and restart it".to_owned(),
        ),
    }
}

pub(crate) fn parse<T: DeserializeOwned>(response: Value) -> Result<T> {
    serde_json::from_value(response)
        .context("parse the response of the node agent")
        .hint(same_version)
}

fn same_version() -> String {
    "use the same version of podwire for the agent and for this command".to_owned()
}
