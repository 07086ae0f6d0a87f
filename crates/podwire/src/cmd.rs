// SPDX-License-Identifier: Apache-2.0
//! The command line: every word that it takes, with its help. The environment is read here and
//! nowhere else.

mod net;
mod node;
mod pod;

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;

use agent::options::{self, Kind};
use clap::{Arg, ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub use self::net::{Attach, Collect, Convert, NetCommand, NetStatus};
pub use self::node::{AskAgent, NodePeers, NodeStatus};
pub use self::pod::{PodCommand, PodDown, PodReady, PodStatus, PodUp};
use crate::demo::Backend;
use crate::output::Format;

const CONF_DIR: &str = "/etc/cni/net.d";
const PLUGIN_PATH: &str = "/opt/cni/bin";

const EXAMPLES: &str = "\
Examples:
  podwire demo                             see three nodes and their pods talk, on this machine
  podwire net list                         the networks in /etc/cni/net.d
  podwire net add mynet /run/netns/blue    attach a namespace to a network
  podwire pod up default/web               what kubelet does for a pod
  podwire status                           what the node agent knows
  podwire completions bash > /etc/bash_completion.d/podwire

podwire holds every plugin: it answers as one when it is called by its name.";

pub const AGENT_EXAMPLES: &str = "\
Examples:
  podwire agent --net-config '{\"Network\": \"10.244.0.0/16\", \"Backend\": {\"Type\": \"vxlan\"}}'
  podwire agent --etcd-endpoints https://10.0.0.1:2379     with flannel's keys in etcd
  podwire agent --config /etc/podwire/agent.toml           with options from a file
  podwire agent --config /etc/podwire/agent.toml --dry-run    only tell what it would do";

pub const CLEANUP_EXAMPLES: &str = "\
Examples:
  podwire cleanup --dry-run                             only tell what would be removed
  podwire cleanup                                       an agent without a mark of its own
  podwire cleanup --mark blue                           one with the mark blue
  podwire cleanup --keep-network                        on a node that flanneld runs again
  podwire cleanup --config /etc/podwire/agent.toml      one that kept its state elsewhere";

/// Container networking: CNI networks, pods and a demonstration.
#[derive(Debug, Parser)]
#[command(name = "podwire", version, after_help = EXAMPLES)]
pub struct Cli {
    /// Print tables for people (text) or JSON for programs.
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads the command line. Where the agent's options follow a command, `-o` may be among them.
    pub fn read() -> Result<Cli, options::Error> {
        let mut cli = Cli::parse();
        if let Command::Cleanup { args } = &mut cli.command {
            cli.output = take_output(args)?.unwrap_or(cli.output);
        }
        Ok(cli)
    }
}

/// `-o json`, `--output json`, `--output=json`; the last one counts.
fn take_output(args: &mut Vec<String>) -> Result<Option<Format>, options::Error> {
    let mut output = None;
    let mut words = std::mem::take(args).into_iter();
    while let Some(word) = words.next() {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        if !["-o", "--output"].contains(&flag) {
            args.push(word);
            continue;
        }
        let text = value.or_else(|| words.next()).unwrap_or_default();
        let format = Format::from_str(&text, false).map_err(|_| options::Error {
            place: format!("flag {flag}"),
            problem: format!("is {text:?}, allowed are text and json"),
        })?;
        output = Some(format);
    }
    Ok(output)
}

/// The whole command line with the agent's options, which a table of its own has and clap does not read.
pub fn with_options_of_agent() -> clap::Command {
    let options = options::OPTIONS.iter().map(|spec| {
        let takes = match spec.kind {
            Kind::Switch => ArgAction::SetTrue,
            _ => ArgAction::Append,
        };
        Arg::new(spec.name).long(spec.name).help(spec.about).action(takes)
    });
    ["agent", "cleanup"].into_iter().fold(Cli::command(), |whole, name| {
        whole.mut_subcommand(name, |command| {
            let about = command.get_about().cloned().unwrap_or_default();
            clap::Command::new(name).about(about).args(options.clone())
        })
    })
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Connect this node's pods to those of other nodes, as flanneld does
    #[command(
        disable_help_flag = true,
        after_help = AGENT_EXAMPLES
    )]
    Agent {
        /// Options of the agent, which are flanneld's and more.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        args: Vec<String>,
    },
    /// Remove every trace of an agent from this node
    #[command(
        disable_help_flag = true,
        after_help = CLEANUP_EXAMPLES
    )]
    Cleanup {
        /// Options that the agent had.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        args: Vec<String>,
    },
    /// Attach namespaces to networks, as cnitool does
    #[command(subcommand)]
    Net(NetCommand),
    /// Connect pods, as kubelet's network manager does
    #[command(subcommand)]
    Pod(PodCommand),
    /// Show what the node agent knows: network, lease, store, peers, repairs
    Status(NodeStatus),
    /// Show the other nodes, and the way to them
    Peers(NodePeers),
    /// Build nodes and pods in private namespaces, try the network out, break it, remove it
    Demo(Demo),
    /// Copy this program into a directory, as the DaemonSet does on each node
    #[command(after_help = "\
Examples:
  podwire install /usr/local/bin
  podwire install /host/opt/podwire/bin    from a container, into a directory of its node

The program appears by rename. The directory is created if it is missing, its parents are not.")]
    Install {
        /// Directory of programs.
        directory: PathBuf,
    },
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  podwire completions bash > /etc/bash_completion.d/podwire
  podwire completions zsh  > \"${fpath[1]}/_podwire\"
  podwire completions fish > ~/.config/fish/completions/podwire.fish")]
    Completions {
        /// Which shell.
        shell: Shell,
    },
}

/// `podwire demo`.
#[derive(Clone, Copy, Debug, Args)]
#[command(after_help = "\
Examples:
  podwire demo                          three nodes with two pods each, over vxlan
  podwire demo --nodes 5 --pods 4       more of both
  podwire demo --backend host-gw        by plain routes; udp carries packets in the agent
  podwire demo --nodes 1                a bridge network on one node, with both families
  podwire demo --keep                   leave it up and look inside
  podwire demo --clean                  remove what --keep, or kill -9, has left

All pairs of pods are pinged and a page is fetched. Then an interface is deleted and comes back, a
node leaves and another one joins. Nothing of this machine's network is touched: nodes, and what
joins them, are namespaces as well.")]
pub struct Demo {
    /// How many nodes, each with an agent; a single one has none.
    #[arg(long, default_value_t = 3, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=8))]
    pub nodes: u16,
    /// How many pods on each node [default: 2, on a single node 3].
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u16).range(1..=30))]
    pub pods: Option<u16>,
    /// How packets go from node to node [default: vxlan].
    #[arg(long, value_enum, value_name = "BACKEND")]
    pub backend: Option<Backend>,
    /// Leave everything up, and say how to look inside.
    #[arg(long)]
    pub keep: bool,
    /// Remove what earlier demos have left, and do nothing else.
    #[arg(long, conflicts_with_all = ["keep", "nodes", "pods", "backend"])]
    pub clean: bool,
}

/// Where configurations, plugins and results are.
#[derive(Clone, Debug, Args)]
pub struct Places {
    /// Directory of network configurations.
    #[arg(long, env = "NETCONFPATH", default_value = CONF_DIR, value_name = "DIR",
          value_parser = conf_dir, hide_env_values = true)]
    pub conf_dir: PathBuf,
    /// Directories of plugins with ':' between them; those not found there are taken from podwire.
    #[arg(long, env = "CNI_PATH", default_value = PLUGIN_PATH, value_name = "DIRS",
          value_parser = plugin_path, hide_env_values = true)]
    pub path: String,
    /// Directory for the results of earlier calls.
    #[arg(long, default_value = cni::runtime::DEFAULT_CACHE_DIR, value_name = "DIR")]
    pub cache_dir: PathBuf,
    /// Allow the namespace that podwire itself runs in.
    #[arg(long, env = "CNI_NETNS_OVERRIDE", hide = true, default_value = "")]
    netns_override: String,
    /// Start plugins as processes even where their file is podwire itself.
    #[arg(long, env = plugins::multicall::ALWAYS_EXEC, hide = true)]
    always_exec: Option<OsString>,
}

impl Places {
    /// Whether a container may share the namespace of this process.
    pub fn allows_own_netns(&self) -> bool {
        self.netns_override == "1" || self.netns_override.eq_ignore_ascii_case("true")
    }

    /// Whether plugins whose file is this program are processes all the same.
    pub fn always_exec(&self) -> bool {
        self.always_exec.is_some()
    }
}

/// A variable that is set to nothing counts as not set, as in cnitool.
fn conf_dir(text: &str) -> Result<PathBuf, Infallible> {
    Ok(PathBuf::from(if text.is_empty() { CONF_DIR } else { text }))
}

fn plugin_path(text: &str) -> Result<String, Infallible> {
    Ok(if text.is_empty() { PLUGIN_PATH } else { text }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_sound() {
        Cli::command().debug_assert();
        with_options_of_agent().debug_assert();
    }

    #[test]
    fn plugins_as_processes_can_be_asked_for_by_the_plugins_variable() {
        for path in [["net", "add"], ["net", "gc"], ["pod", "up"], ["pod", "down"]] {
            let mut command = &Cli::command();
            for name in path {
                command = command.find_subcommand(name).unwrap();
            }
            let names: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_env).collect();
            assert!(names.contains(&"PODWIRE_ALWAYS_EXEC".as_ref()), "{path:?}");
        }
    }

    #[test]
    fn the_form_of_the_output_is_taken_from_among_the_agents_options() {
        let take = |words: &str| {
            let mut args: Vec<String> = words.split(' ').map(str::to_owned).collect();
            let output = take_output(&mut args);
            (output, args.join(" "))
        };
        assert_eq!(take("--mark blue"), (Ok(None), "--mark blue".to_owned()));
        let json = (Ok(Some(Format::Json)), "--mark blue".to_owned());
        assert_eq!(take("--mark -o json blue"), json);
        assert_eq!(take("--output=json --mark blue"), json);
        let wrong = take("-o yaml").0.unwrap_err().to_string();
        assert_eq!(wrong, "flag -o: is \"yaml\", allowed are text and json");
    }

    #[test]
    fn every_command_has_examples() {
        fn check(command: &clap::Command) {
            for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
                check(sub);
            }
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "podwire {} has no examples", command.get_name());
        }
        check(&Cli::command());
    }
}
