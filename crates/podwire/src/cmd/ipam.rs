// SPDX-License-Identifier: Apache-2.0
//! `podwire ipam`: the addresses of routed pods, through the node agent.

mod check;

use std::net::IpAddr;
use std::process::ExitCode;

use agent_client::ipam::ReleaseResponse;
use agent_client::pools::{RELEASE_ADDRESS, ReleaseAddress, VIEW, View};
use anyhow::Result;
use clap::{Args, Subcommand};
use text::escape;

use super::pool::{bar, pools};
use super::status::{AgentArgs, CHANGE_TIMEOUT, parse};
use crate::output::{self, Format, table};

const EXAMPLES: &str = "\
Examples:
  podwire ipam show
  podwire ipam show --blocks
  podwire ipam check --fix
  podwire ipam release 10.244.3.7";

/// Show, check and release addresses of pools
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
    Check(check::Check),
    /// Release an address of this node, or of a node that does not exist any more
    #[command(after_help = "\
Examples:
  podwire ipam release 10.244.3.7
  podwire ipam release 10.244.3.7 --force    although its pod exists")]
    Release(Release),
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

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// The address
    address: IpAddr,
    /// Release it although its pod exists; other pods may get the address
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    agent: AgentArgs,
}

pub(crate) fn run(command: &IpamCommand, format: Format) -> Result<ExitCode> {
    match command {
        IpamCommand::Show(show) => {
            let response = show.agent.get(VIEW)?;
            match format {
                Format::Json => output::print_json(&response)?,
                Format::Text => output::print(&tables(show, &parse(response)?))?,
            }
        }
        IpamCommand::Check(args) => return check::run(args, format),
        IpamCommand::Release(args) => release(args, format)?,
    }
    Ok(ExitCode::SUCCESS)
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
        parts.push(table(["BORROWED", "BLOCK", "NODE"], rows));
    }
    if show.addresses {
        parts.push(addresses(view));
    }
    parts.join("\n")
}

/// The table of the blocks.
pub(crate) fn blocks(view: &View) -> String {
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
            block.borrowed.to_string(),
            block.free.to_string(),
            bar(block.used, block.size),
        ]
    });
    let headers = ["BLOCK", "NODE", "USED", "SET ASIDE", "COOL-DOWN", "BORROWED", "FREE", "FULL"];
    table(headers, rows)
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

fn release(args: &Release, format: Format) -> Result<()> {
    let Release { address, force, agent } = args;
    let request = ReleaseAddress { address: *address, force: *force };
    let response = agent.post(RELEASE_ADDRESS, &request, CHANGE_TIMEOUT)?;
    if format == Format::Json {
        return output::print_json(&response);
    }
    let ReleaseResponse { released } = parse(response)?;
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
                borrowed: 2,
                free: 17,
            }],
            ..View::default()
        };
        let text = blocks(&view);
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row[..7], ["10.6.0.0/26", "n1", "16", "30", "1", "2", "17"], "{text}");
        assert!(text.contains("25 %"), "{text}");
    }
}
