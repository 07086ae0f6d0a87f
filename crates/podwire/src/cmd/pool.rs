// SPDX-License-Identifier: Apache-2.0
//! `podwire pool`: the address pools of the network, through the node agent.

use agent_client::pools::{CHANGE, Change, NewPool, PoolView, VIEW, View};
use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use text::escape;

use super::status::{AgentArgs, CHANGE_TIMEOUT, parse};
use crate::output::{self, Format, table};

const EXAMPLES: &str = "\
Examples:
  podwire pool list
  podwire pool create 10.245.0.0/16 --name second --encapsulation vxlan-cross-subnet
  podwire pool disable second";

/// List and change the address pools of routed pods
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum PoolCommand {
    /// List the pools
    #[command(after_help = "Example:\n  podwire pool list -o json | jq -r '.pools[].cidr'")]
    List {
        #[command(flatten)]
        agent: AgentArgs,
    },
    /// Create a pool
    #[command(after_help = "Example:\n  podwire pool create 10.245.0.0/16 --nat-outgoing")]
    Create(Create),
    /// Assign no more addresses of a pool; pods keep theirs
    #[command(after_help = "Example:\n  podwire pool disable second")]
    Disable(Named),
    /// Assign addresses of a disabled pool again
    #[command(after_help = "Example:\n  podwire pool enable second")]
    Enable(Named),
    /// Delete a pool whose addresses are not used
    #[command(after_help = "Example:\n  podwire pool delete second")]
    Delete(Named),
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// The addresses, such as 10.245.0.0/16
    cidr: String,
    /// Name of the pool [default: derived from the addresses]
    #[arg(long, value_name = "POOL")]
    name: Option<String>,
    /// Prefix length of the blocks that nodes take [default: 26, IPv6 122]
    #[arg(long, value_name = "LENGTH", value_parser = clap::value_parser!(u8).range(1..=128))]
    block_size: Option<u8>,
    /// How packets between nodes are encapsulated
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    encapsulation: Encapsulation,
    /// Masquerade packets that leave all pools
    #[arg(long)]
    nat_outgoing: bool,
    /// Labels of the nodes that use the pool, such as "zone == 'a'" [default: all]
    #[arg(long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    node_selector: String,
    /// Labels of the namespaces whose pods use the pool, such as "team == 'a'" [default: all]
    #[arg(long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    namespace_selector: String,
    /// Assign addresses only to pods that name the pool
    #[arg(long)]
    manual: bool,
    #[command(flatten)]
    agent: AgentArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// Name of the pool
    name: String,
    #[command(flatten)]
    agent: AgentArgs,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Encapsulation {
    /// Plain routes, for nodes on one link
    None,
    #[default]
    Vxlan,
    /// VXLAN, but plain routes to nodes on one link
    VxlanCrossSubnet,
    /// IPv4 in IPv4
    Ipip,
    /// IPv4 in IPv4, but plain routes to nodes on one link
    IpipCrossSubnet,
}

impl Encapsulation {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Vxlan => "vxlan",
            Self::VxlanCrossSubnet => "vxlan-cross-subnet",
            Self::Ipip => "ipip",
            Self::IpipCrossSubnet => "ipip-cross-subnet",
        }
    }
}

pub(crate) fn run(command: &PoolCommand, format: Format) -> Result<()> {
    match command {
        PoolCommand::List { agent } => list(agent, format),
        PoolCommand::Create(create) => {
            let name = create.name.clone().unwrap_or_else(|| default_name(&create.cidr));
            let new = NewPool {
                name: name.clone(),
                cidr: create.cidr.clone(),
                block_size: create.block_size.unwrap_or_default(),
                encapsulation: create.encapsulation.name().to_owned(),
                nat_outgoing: create.nat_outgoing,
                node_selector: create.node_selector.clone(),
                namespace_selector: create.namespace_selector.clone(),
                manual: create.manual,
            };
            change(&create.agent, &Change::Create(new), &format!("pool {name} created"), format)
        }
        PoolCommand::Disable(Named { name, agent }) => {
            let wanted = Change::Disable { name: name.clone(), disabled: true };
            change(agent, &wanted, &format!("pool {name} disabled"), format)
        }
        PoolCommand::Enable(Named { name, agent }) => {
            let wanted = Change::Disable { name: name.clone(), disabled: false };
            change(agent, &wanted, &format!("pool {name} enabled"), format)
        }
        PoolCommand::Delete(Named { name, agent }) => {
            let wanted = Change::Delete { name: name.clone() };
            change(agent, &wanted, &format!("pool {name} deleted"), format)
        }
    }
}

/// Asks for a change. The agent's answer is an empty object.
fn change(agent: &AgentArgs, change: &Change, done: &str, format: Format) -> Result<()> {
    let response = agent.post(CHANGE, change, CHANGE_TIMEOUT)?;
    if format == Format::Json {
        return output::print_json(&response);
    }
    output::print_lines(&[done.to_owned()])
}

/// A name that Kubernetes accepts too.
fn default_name(cidr: &str) -> String {
    let parts = cidr.split(['.', ':', '/']).filter(|part| !part.is_empty());
    format!("pool-{}", parts.collect::<Vec<_>>().join("-"))
}

fn list(agent: &AgentArgs, format: Format) -> Result<()> {
    let response = agent.get(VIEW)?;
    if format == Format::Json {
        return output::print_json(&response);
    }
    output::print(&pools(&parse(response)?))
}

/// The table of the pools, and what is not used.
pub(crate) fn pools(view: &View) -> String {
    let rows = view.pools.iter().map(|pool| {
        [
            escape::line(&pool.name).into_owned(),
            pool.cidr.clone(),
            format!("/{}", pool.block_size),
            pool.encapsulation.clone(),
            if pool.nat_outgoing { "yes" } else { "no" }.to_owned(),
            pool.blocks.to_string(),
            pool.used.to_string(),
            bar(pool.used, pool.size),
            state(pool),
        ]
    });
    let headers =
        ["POOL", "ADDRESSES", "BLOCK", "ENCAPSULATION", "NAT", "BLOCKS", "USED", "FULL", "STATE"];
    let mut text = match view.pools.is_empty() {
        true => "there is no pool: create one with `podwire pool create`\n".to_owned(),
        false => table(headers, rows),
    };
    for reason in &view.rejected {
        text += &format!("not used: {}\n", escape::line(reason));
    }
    text
}

/// Restrictions on the use of a pool.
fn state(pool: &PoolView) -> String {
    let PoolView { node_selector, namespace_selector, .. } = pool;
    let selected = |of: &str, selector: &str| match selector {
        "" | "all()" => None,
        selector => Some(format!("{of} {selector}")),
    };
    let parts = [
        pool.disabled.then(|| "disabled".to_owned()),
        pool.manual.then(|| "manual".to_owned()),
        selected("nodes", node_selector),
        selected("namespaces", namespace_selector),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Width of a bar.
const WIDTH: u64 = 20;

/// A picture of how full something is, with the percentage.
pub(crate) fn bar(used: u64, size: u64) -> String {
    let size = size.max(1);
    // At least one character if anything is used.
    let full = (used.saturating_mul(WIDTH) / size).max(u64::from(used > 0)).min(WIDTH);
    let [full, empty] = [full, WIDTH - full].map(|count| usize::try_from(count).unwrap_or(0));
    let percent = used.saturating_mul(100) / size;
    format!("{}{} {percent} %", "█".repeat(full), "░".repeat(empty))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_shows_any_use_and_never_overflows() {
        assert_eq!(bar(0, 64), format!("{} 0 %", "░".repeat(20)));
        assert_eq!(bar(1, 65_536), format!("█{} 0 %", "░".repeat(19)));
        assert_eq!(bar(32, 64), format!("{}{} 50 %", "█".repeat(10), "░".repeat(10)));
        assert_eq!(bar(64, 64), format!("{} 100 %", "█".repeat(20)));
        assert!(bar(u64::MAX, 1).starts_with(&"█".repeat(20)));
    }

    #[test]
    fn pools_and_rejected_objects_are_listed() {
        let view = View {
            pools: vec![PoolView {
                name: "default".into(),
                cidr: "10.6.0.0/16".into(),
                block_size: 26,
                encapsulation: "vxlan".into(),
                size: 65_536,
                used: 32_768,
                blocks: 600,
                disabled: true,
                node_selector: "zone == 'a'".into(),
                ..PoolView::default()
            }],
            rejected: vec!["IPPool bad: cidr \u{1b}[2J".into()],
            ..View::default()
        };
        let text = pools(&view);
        assert!(text.contains("default  10.6.0.0/16  /26"), "{text}");
        assert!(text.contains("50 %") && text.contains("disabled, nodes zone == 'a'"), "{text}");
        assert!(text.contains("not used: IPPool bad") && !text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn default_names_are_valid_in_kubernetes() {
        assert_eq!(default_name("10.245.0.0/16"), "pool-10-245-0-0-16");
        assert_eq!(default_name("fd00:6::/64"), "pool-fd00-6-64");
    }
}
