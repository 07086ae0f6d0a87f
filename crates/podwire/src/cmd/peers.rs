// SPDX-License-Identifier: Apache-2.0
//! `podwire peers`: the other nodes of the network, as the node agent sees them.

use std::time::SystemTime;

use agent::status::PeerStatus;
use anyhow::Result;
use clap::Args;
use serde_json::Value;

use super::status::{AgentArgs, parse, tables};
use crate::output::{self, Format};

/// Show the other nodes and how packets reach them
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  podwire peers
  podwire peers --problems                      only peers with a problem
  podwire peers -o json | jq -r '.[] | select(.way == \"direct\").name'")]
pub(crate) struct Peers {
    /// Show only peers with a problem
    #[arg(long)]
    problems: bool,
    #[command(flatten)]
    agent: AgentArgs,
}

pub(crate) fn run(args: &Peers, format: Format) -> Result<()> {
    let mut response = args.agent.get("/peers")?;
    if let (true, Value::Array(peers)) = (args.problems, &mut response) {
        peers.retain(|peer| !peer["problem"].is_null());
    }
    if format == Format::Json {
        return output::print_json(&response);
    }
    let peers: Vec<PeerStatus> = parse(response)?;
    output::print(&tables::peers(&peers, SystemTime::now()))
}
