// SPDX-License-Identifier: Apache-2.0
//! `podwire cleanup`: removes everything an agent has created on this node.

use std::process::ExitCode;

use agent::settings::Command;
use anyhow::Result;

use super::agent::runtime;
use super::agent_options::AgentOptions;
use crate::output::{self, Format};

pub(crate) const ABOUT: &str = "\
Remove everything an agent has created on this node: devices, routes, rules, files, and its lease.

The agent saves its options in its state directory, and cleanup reads them there. Options on the command line, in the \
environment and in the option file take precedence. Objects with the owner tag of another agent stay.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  podwire cleanup --dry-run                           print what would be removed
  podwire cleanup                                     remove an agent that runs with default options
  podwire cleanup --owner blue                        remove the agent with the owner tag blue
  podwire cleanup --keep-network                      hand the network over to flanneld
  podwire cleanup --config /etc/podwire/agent.toml    read the agent's option file";

pub(crate) fn run(options: &AgentOptions, format: Format) -> Result<ExitCode> {
    let settings = options.settings(Command::Cleanup)?;
    let cleaned = runtime()?.block_on(agent::cleanup::cleanup(&settings))?;
    if format == Format::Json {
        output::print_json(&serde_json::to_value(&cleaned)?)?;
        return Ok(u8::from(!cleaned.failed.is_empty()).into());
    }
    let left = cleaned.left.iter().map(|line| format!("# left: {line}"));
    let mut lines: Vec<String> = cleaned.done.iter().cloned().chain(left).collect();
    if lines.is_empty() {
        lines.push("nothing to remove".to_owned());
    }
    output::print_lines(&lines)?;
    anyhow::ensure!(cleaned.failed.is_empty(), "{}", cleaned.failed.join("; "));
    Ok(ExitCode::SUCCESS)
}
