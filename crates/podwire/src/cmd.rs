// SPDX-License-Identifier: Apache-2.0
//! The command line. Each verb has one file with its arguments, its help and its code. The
//! environment is read only here, in `runtime` and in `agent`.

mod agent;
mod agent_options;
mod cleanup;
mod completions;
mod demo;
mod install;
mod ipam;
mod net;
mod peers;
mod pod;
mod pool;
mod status;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use self::agent_options::AgentOptions;
use crate::output::Format;

const EXAMPLES: &str = "\
Examples:
  podwire demo                             run three nodes with pods on this machine
  podwire net list                         list the networks in /etc/cni/net.d
  podwire net add mynet /run/netns/blue    attach a network namespace to a network
  podwire pod up default/web               connect a pod, as kubelet does
  podwire status                           show the state of the node agent
  podwire completions bash > /etc/bash_completion.d/podwire

podwire contains every CNI plugin: started under the name of a plugin, it runs that plugin.";

/// Container networking: CNI networks, pods, and the node agent
#[derive(Debug, Parser)]
#[command(name = "podwire", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Print tables (text) or JSON
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        help_heading = "Global options"
    )]
    pub(crate) output: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    #[command(subcommand)]
    Net(net::NetCommand),
    #[command(subcommand)]
    Pod(pod::PodCommand),
    /// Run the node agent: connect this node's pods to pods on other nodes, as flanneld does
    #[command(version, display_name = "podwire", after_help = agent::EXAMPLES)]
    Agent(AgentOptions),
    /// Remove everything an agent has created on this node
    #[command(
        long_about = cleanup::ABOUT,
        after_help = cleanup::EXAMPLES,
        mut_args = agent_options::hide_unused_by_cleanup
    )]
    Cleanup(AgentOptions),
    Status(status::Status),
    Peers(peers::Peers),
    #[command(subcommand)]
    Ipam(ipam::IpamCommand),
    #[command(subcommand)]
    Pool(pool::PoolCommand),
    Install(install::Install),
    Completions(completions::Completions),
}

impl Cli {
    /// Parses the command line; prints help or an error and exits if there is nothing to run.
    pub(crate) fn parse_args() -> Cli {
        Cli::parse_from(agent_options::normalize(std::env::args_os()))
    }
}

pub(crate) fn run(cli: &Cli) -> Result<ExitCode> {
    match &cli.command {
        Command::Agent(options) => agent::run(options)?,
        Command::Cleanup(options) => return cleanup::run(options, cli.output),
        Command::Net(command) => net::run(command, cli.output)?,
        Command::Pod(command) => return pod::run(command, cli.output),
        Command::Status(args) => return status::run(args, cli.output),
        Command::Peers(args) => peers::run(args, cli.output)?,
        Command::Ipam(command) => return ipam::run(command, cli.output),
        Command::Pool(command) => pool::run(command, cli.output)?,
        Command::Demo(args) => demo::run(*args, cli.output)?,
        Command::Install(args) => install::run(args)?,
        Command::Completions(args) => completions::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::{Arg, CommandFactory};

    use super::*;

    /// Calls `check` for each command with its path, such as `podwire net add`.
    fn for_each_command(check: &mut impl FnMut(&str, &clap::Command)) {
        fn visit(
            path: &str,
            command: &clap::Command,
            check: &mut impl FnMut(&str, &clap::Command),
        ) {
            check(path, command);
            for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
                visit(&format!("{path} {}", sub.get_name()), sub, check);
            }
        }
        visit("podwire", &Cli::command(), check);
    }

    #[test]
    fn definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_and_examples() {
        for_each_command(&mut |path, command| {
            assert!(command.get_about().is_some(), "{path} has no description");
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{path} has no examples");
        });
    }

    #[test]
    fn every_option_has_help_and_a_value_name() {
        for_each_command(&mut |path, command| {
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let id = arg.get_id();
                assert!(arg.get_help().is_some(), "{path}: {id} has no help");
                let is_default_name = |name: &str| name == id.as_str();
                let takes_value = arg.get_action().takes_values() && !arg.is_positional();
                let names = arg.get_value_names().unwrap_or_default();
                assert!(!takes_value || !names.is_empty(), "{path}: {id} has no value name");
                assert!(!names.iter().any(|name| is_default_name(name)), "{path}: {id}");
            }
        });
    }

    #[test]
    fn plugin_commands_read_the_always_exec_variable() {
        for path in [["net", "add"], ["net", "gc"], ["pod", "up"], ["pod", "down"]] {
            let mut command = &Cli::command();
            for name in path {
                command = command.find_subcommand(name).unwrap();
            }
            let names: Vec<_> = command.get_arguments().filter_map(Arg::get_env).collect();
            assert!(names.contains(&"PODWIRE_ALWAYS_EXEC".as_ref()), "{path:?}");
        }
    }
}
