// SPDX-License-Identifier: Apache-2.0
//! Command-line arguments of `agent` and `cleanup`, built from the agent's option table. clap checks
//! names, prints the help and completes them; `agent::settings` merges the values with the environment
//! and the option file, and validates them.

use std::ffi::OsString;

use agent::settings::{self, Command, Invocation, Kind, OPTIONS, Settings, Spec};
use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};

/// Options in the order and the groups of the help, each with the name of its value.
const GROUPS: &[(&str, &[(&str, &str)])] = &[
    (
        "General options",
        &[("config", "FILE"), ("node-name", "NAME"), ("mark", "NAME"), ("dry-run", "BOOL")],
    ),
    (
        "Store and network configuration",
        &[
            ("store", "STORE"),
            ("store-file", "FILE"),
            ("net-config", "JSON"),
            ("replace-net-config", "BOOL"),
            ("subnet-lease-renew-margin", "MINUTES"),
            ("allow-extension-commands", "BOOL"),
        ],
    ),
    (
        "etcd",
        &[
            ("etcd-endpoints", "URLS"),
            ("etcd-prefix", "KEY"),
            ("etcd-cafile", "FILE"),
            ("etcd-certfile", "FILE"),
            ("etcd-keyfile", "FILE"),
            ("etcd-username", "NAME"),
            ("etcd-password", "PASSWORD"),
        ],
    ),
    (
        "Kubernetes",
        &[
            ("kube-subnet-mgr", "BOOL"),
            ("kube-api-url", "URL"),
            ("kubeconfig-file", "FILE"),
            ("kube-annotation-prefix", "PREFIX"),
            ("net-config-path", "FILE"),
            ("set-node-network-unavailable", "BOOL"),
        ],
    ),
    (
        UNDERLAY,
        &[
            ("iface", "NAMES"),
            ("iface-regex", "REGEXES"),
            ("iface-can-reach", "ADDRESS"),
            ("public-ip", "ADDRESS"),
            ("public-ipv6", "ADDRESS"),
        ],
    ),
    (
        TRAFFIC,
        &[
            ("ip-masq", "BOOL"),
            ("ip-masq-fully-random-disable", "BOOL"),
            ("non-masquerade-cidrs", "CIDRS"),
            ("iptables-forward-rules", "BOOL"),
            ("ip-blackhole-route", "BOOL"),
            ("multicast", "BOOL"),
            ("path-check", "BOOL"),
            ("compare-every", "SECONDS"),
        ],
    ),
    (
        "Files",
        &[
            ("subnet-file", "FILE"),
            ("cni-conf-dir", "DIR"),
            ("cni-conf-name", "NAME"),
            ("state-dir", "DIR"),
            ("run-dir", "DIR"),
            ("keep-network", "BOOL"),
        ],
    ),
    (
        MONITORING,
        &[
            ("healthz-ip", "ADDRESS"),
            ("healthz-port", "PORT"),
            ("log-format", "FORMAT"),
            ("v", "LEVEL"),
        ],
    ),
    (IGNORED, &[("iptables-resync", "SECONDS"), ("vmodule", "TEXT"), ("log_backtrace_at", "TEXT")]),
];
const UNDERLAY: &str = "Underlay interface";
const TRAFFIC: &str = "Traffic";
const MONITORING: &str = "Monitoring and logs";
const IGNORED: &str = "Accepted for compatibility with flanneld, without effect";

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
        let position = |spec: &Spec| {
            GROUPS.iter().flat_map(|(_, names)| *names).position(|(name, _)| *name == spec.name)
        };
        let mut specs: Vec<&Spec> = OPTIONS.iter().collect();
        specs.sort_by_key(|spec| position(spec).unwrap_or(usize::MAX));
        command.args(specs.into_iter().map(arg))
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
    let (heading, value_name) = group(spec.name);
    let arg = Arg::new(spec.name)
        .long(spec.name)
        .help(spec.about)
        .long_help(format!("{} [env: {}]", spec.about, spec.variables().next().unwrap_or_default()))
        .help_heading(heading)
        .value_name(value_name)
        .action(ArgAction::Append);
    let arg = match spec.kind {
        // As with Go's flags, a boolean takes its value after `=` only.
        Kind::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        _ => arg.allow_hyphen_values(true),
    };
    if spec.default.is_empty() { arg } else { arg.default_value(spec.default) }
}

/// Heading and value name of an option in the help.
fn group(option: &str) -> (&'static str, &'static str) {
    let in_group = |(heading, names): &(&'static str, &'static [(&str, &'static str)])| {
        let entry = names.iter().find(|(name, _)| *name == option)?;
        Some((*heading, entry.1))
    };
    GROUPS.iter().find_map(in_group).unwrap_or(("Other options", "VALUE"))
}

/// `cleanup` accepts all options of the agent; its help leaves out those that make no difference.
pub(crate) fn hide_unused_by_cleanup(arg: Arg) -> Arg {
    let unused = [UNDERLAY, TRAFFIC, MONITORING, IGNORED];
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
    fn every_option_is_in_one_group() {
        let mut names: Vec<&str> =
            GROUPS.iter().flat_map(|(_, names)| names.iter().map(|(name, _)| *name)).collect();
        let mut options: Vec<&str> = OPTIONS.iter().map(|spec| spec.name).collect();
        names.sort_unstable();
        options.sort_unstable();
        assert_eq!(names, options);
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
