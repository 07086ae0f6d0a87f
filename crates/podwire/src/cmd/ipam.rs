// SPDX-License-Identifier: Apache-2.0
//! `podwire ipam`: the addresses of routed pods, through the node agent.

use std::net::IpAddr;

use agent_client::ipam::ReleaseResponse;
use agent_client::pools::{RELEASE_ADDRESS, ReleaseAddress, VIEW, View};
use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use text::escape;

use super::pool::{bar, pools};
use super::status::{AgentArgs, parse};
use crate::errors::Hint;
use crate::output::{self, Format, table};

const EXAMPLES: &str = "\
Examples:
  podwire ipam show
  podwire ipam show --blocks
  podwire ipam release 10.244.3.7";

/// Show and release addresses of pools
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum IpamCommand {
    /// Show how full the pools are
    #[command(after_help = "\
Examples:
  podwire ipam show --blocks       the blocks of all nodes
  podwire ipam show --borrowed     addresses that nodes have from blocks of others
  podwire ipam show --addresses    addresses that this node has assigned
  podwire ipam show -o json")]
    Show(Show),
    /// Release an address that this node has assigned, although its pod may exist
    #[command(after_help = "Example:\n  podwire ipam release 10.244.3.7")]
    Release {
        /// The address
        address: IpAddr,
        #[command(flatten)]
        agent: AgentArgs,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Show the blocks of all nodes
    #[arg(long)]
    blocks: bool,
    /// Show addresses that nodes have from blocks of other nodes
    #[arg(long)]
    borrowed: bool,
    /// Show the addresses that this node has assigned
    #[arg(long)]
    addresses: bool,
    #[command(flatten)]
    agent: AgentArgs,
}

pub(crate) fn run(command: &IpamCommand, format: Format) -> Result<()> {
    match command {
        IpamCommand::Show(show) => {
            let response = show.agent.get(VIEW)?;
            if format == Format::Json {
                return output::print_json(&response);
            }
            output::print(&tables(show, &parse(response)?))
        }
        IpamCommand::Release { address, agent } => release(*address, agent),
    }
}

fn tables(show: &Show, view: &View) -> String {
    let mut parts = vec![pools(view)];
    if show.blocks {
        parts.push(blocks(view));
    }
    if show.borrowed {
        let rows = view.borrowed.iter().map(|one| {
            [one.address.clone(), one.block.clone(), escape::line(&one.node).into_owned()]
        });
        parts.push(table(["BORROWED", "BLOCK", "BY NODE"], rows));
    }
    if show.addresses {
        parts.push(addresses(view));
    }
    parts.join("\n")
}

fn blocks(view: &View) -> String {
    let rows = view.blocks.iter().map(|block| {
        let node = match block.node.as_str() {
            "" => "–".to_owned(),
            node => escape::line(node).into_owned(),
        };
        [
            block.cidr.clone(),
            node,
            block.used.to_string(),
            block.reserved.to_string(),
            block.cooling.to_string(),
            bar(block.used, block.size),
        ]
    });
    table(["BLOCK", "NODE", "USED", "SET ASIDE", "COOL-DOWN", "FULL"], rows)
}

fn addresses(view: &View) -> String {
    let rows = view.assigned.iter().map(|one| {
        let shown = |text: &str| match text {
            "" => "–".to_owned(),
            text => escape::line(text).into_owned(),
        };
        [one.address.clone(), shown(&one.pod), shown(&one.interface), shown(&one.handle)]
    });
    table(["ADDRESS", "POD", "INTERFACE", "HANDLE"], rows)
}

fn release(address: IpAddr, agent: &AgentArgs) -> Result<()> {
    let response = agent.post(RELEASE_ADDRESS, &ReleaseAddress { address })?;
    let ReleaseResponse { released } = parse(response)?;
    if released.is_empty() {
        return Err(anyhow!("this node has not assigned {address}")).hint(|| {
            "run `podwire ipam show --blocks` to find its node, and this command there".to_owned()
        });
    }
    let lines: Vec<String> = released.iter().map(|one| format!("{one} released")).collect();
    output::print_lines(&lines)
}

#[cfg(test)]
mod tests {
    use agent_client::pools::BlockView;

    use super::*;

    #[test]
    fn blocks_show_what_their_addresses_are_for() {
        let view = View {
            blocks: vec![BlockView {
                cidr: "10.6.0.0/26".into(),
                node: "n1".into(),
                size: 64,
                used: 16,
                reserved: 30,
                cooling: 1,
            }],
            ..View::default()
        };
        let text = blocks(&view);
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row[..5], ["10.6.0.0/26", "n1", "16", "30", "1"], "{text}");
        assert!(text.contains("25 %"), "{text}");
    }
}
