// SPDX-License-Identifier: Apache-2.0
//! `podwire status` and `podwire peers`.

use std::path::PathBuf;

use clap::Args;

/// Which agent is asked.
#[derive(Clone, Debug, Args)]
pub struct AskAgent {
    /// Directory of the agent's socket, as the agent was told.
    #[arg(
        long,
        env = "PODWIRE_RUN_DIR",
        default_value = "/run/podwire",
        value_name = "DIR",
        hide_env_values = true
    )]
    pub run_dir: PathBuf,
}

/// `status`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  podwire status
  podwire status -o json | jq -r .ready
  podwire status --run-dir /run/podwire-blue    another agent of this machine

Exit status: 0 where this node is ready, 1 where it is not or no agent runs.")]
pub struct NodeStatus {
    #[command(flatten)]
    pub agent: AskAgent,
}

/// `peers`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  podwire peers
  podwire peers --problems                      only those that something is wrong with
  podwire peers -o json | jq -r '.[] | select(.way == \"direct\").name'")]
pub struct NodePeers {
    /// Show only peers that something is wrong with.
    #[arg(long)]
    pub problems: bool,
    #[command(flatten)]
    pub agent: AskAgent,
}
