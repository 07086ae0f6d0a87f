// SPDX-License-Identifier: Apache-2.0
//! Command-line arguments of `agent` and `cleanup`, built from the agent's option table. clap checks
//! names, prints the help and completes them; `agent::settings` merges the values with the environment
//! and the option file, and validates them.

use std::ffi::OsString;

use agent::settings::{self, Command, Invocation, Kind, OPTIONS, Settings, Spec, group};
use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};

/// Options given on the command line, each as `--name=value`.
#[derive(Debug, Clone)]
pub(crate) struct AgentOptions(Vec<String>);

impl AgentOptions {
    /// Merges the command line with the environment and the option file. The node's name is the host
    /// name if nothing else sets it.
    pub(crate) fn settings(&self, command: Command) -> Result<Settings> {
        let var = |name: &str| std::env::var(name).ok();
        match settings::parse(command, &self.0, var, |path| std::fs::read_to_string(path))? {
            Invocation::Run(mut settings) => {
                if !settings.store.provides_node_name() {
                    settings.node.name.get_or_insert_with(host_name);
                }
                Ok(*settings)
            }
            Invocation::Help | Invocation::Version => bail!("clap handles --help and --version"),
        }
    }
}

impl clap::Args for AgentOptions {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(OPTIONS.iter().map(arg))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for AgentOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given =
            |spec: &&Spec| matches.value_source(spec.name) == Some(ValueSource::CommandLine);
        let given = OPTIONS.iter().filter(is_given).flat_map(|spec| {
            let values = matches.get_many::<String>(spec.name).unwrap_or_default();
            values.map(|value| format!("--{}={value}", spec.name))
        });
        Ok(AgentOptions(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn arg(spec: &'static Spec) -> Arg {
    let variable = spec.variables().next().unwrap_or_default();
    let arg = Arg::new(spec.name)
        .long(spec.name)
        .help(spec.about)
        .long_help(format!("{} [env: {variable}]", spec.about))
        .help_heading(spec.group)
        .value_name(spec.value_name)
        .aliases(spec.alias)
        .action(ArgAction::Append);
    let arg = match spec.kind {
        // As with Go's flags, a boolean takes its value after `=` only.
        Kind::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        _ => arg.allow_hyphen_values(true),
    };
    if spec.default.is_empty() { arg } else { arg.default_value(spec.default) }
}

/// `cleanup` accepts all options of the agent; its help leaves out those that make no difference.
pub(crate) fn hide_unused_by_cleanup(arg: Arg) -> Arg {
    let unused = [group::UNDERLAY, group::TRAFFIC, group::MONITORING, group::IGNORED];
    let is_unused = arg.get_help_heading().is_some_and(|heading| unused.contains(&heading));
    arg.hide(is_unused)
}

/// Turns flannel's `-name` into `--name` after `agent` or `cleanup`: clap takes a single dash for
/// short options.
pub(crate) fn normalize(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args = args.into_iter();
    let mut normalized: Vec<OsString> = args.next().into_iter().collect();
    let mut takes_options = false;
    while let Some(arg) = args.next() {
        let text = arg.to_str().unwrap_or_default();
        if !takes_options && !text.starts_with('-') {
            if !["agent", "cleanup"].contains(&text) {
                normalized.push(arg);
                break;
            }
            takes_options = true;
        }
        let name = text.trim_start_matches('-').split('=').next().unwrap_or_default();
        let spec = Spec::by_name(name);
        let is_one_dash = text.starts_with('-') && !text.starts_with("--");
        let is_short = name.len() < 2 || name.starts_with('o');
        let takes_next = match spec {
            Some(spec) => spec.kind != Kind::Switch && !text.contains('='),
            None => ["-o", "--output"].contains(&text),
        };
        normalized.push(match takes_options && is_one_dash && (spec.is_some() || !is_short) {
            true => format!("-{text}").into(),
            false => arg,
        });
        if takes_next {
            normalized.extend(args.next());
        }
    }
    normalized.extend(args);
    normalized
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: AgentOptions,
    }

    fn given(line: &str) -> Result<String, clap::Error> {
        let words = ["podwire", "agent"].into_iter().chain(line.split_whitespace());
        let words = normalize(words.map(OsString::from)).into_iter().skip(1);
        Line::try_parse_from(words).map(|line| line.options.0.join(" "))
    }

    #[test]
    fn former_name_of_an_option_is_accepted() {
        assert_eq!(given("--mark blue").unwrap(), "--owner=blue");
    }

    #[test]
    fn options_are_written_as_in_go() {
        let check = |line: &str, expected: &str| assert_eq!(given(line).unwrap(), expected);
        check("", "");
        check("-iface eth0 --iface=eth1", "--iface=eth0 --iface=eth1");
        check("-ip-masq -v 2", "--ip-masq=true --v=2");
        check("-v=2 -ip-masq=false", "--ip-masq=false --v=2");
        check("--public-ip=", "--public-ip=");
        // The word after an option is its value, even if it looks like an option.
        check("--iface-regex -v --v=1", "--iface-regex=-v --v=1");
    }

    #[test]
    fn unknown_option_is_refused_with_a_suggestion() {
        for line in ["--etcd-endpoint x", "-etcd-endpoint x"] {
            let error = given(line).unwrap_err().to_string();
            assert!(error.contains("unexpected argument '--etcd-endpoint' found"), "{error}");
            assert!(error.contains("a similar argument exists: '--etcd-endpoints'"), "{error}");
        }
        assert!(given("eth0").is_err());
        assert!(given("--ip-masq false").is_err());
        assert!(given("--iface").is_err());
    }

    #[test]
    fn other_commands_are_not_normalized() {
        let normalized = |line: &str| {
            let words = normalize(line.split(' ').map(OsString::from));
            words.join(" ".as_ref()).into_string().unwrap()
        };
        for line in ["podwire net add -ifname", "podwire -o json net -iface", "podwire -o agent"] {
            assert_eq!(normalized(line), line);
        }
        let line = "podwire -o json cleanup -mark blue -o text -ojson -help";
        let expected = "podwire -o json cleanup --mark blue -o text -ojson --help";
        assert_eq!(normalized(line), expected);
    }
}
