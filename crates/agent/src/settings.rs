// SPDX-License-Identifier: Apache-2.0
//! The agent's settings. Options come from flags, environment variables and a TOML file, in this order of
//! precedence. Flags and variables of flanneld keep their meaning.

mod model;
mod pools;
pub mod saved;
mod sources;
mod table;
#[cfg(test)]
mod tests;
mod values;

use std::io;

pub use self::model::{
    ApiSettings, CheckSettings, DamagedRecord, Etcd, FileSettings, Kubernetes, LogSettings,
    Masquerade, Mode, NatSettings, NetworkSettings, NodeSettings, Pods, Settings, Sources,
    StoreChoice, Tls, UnderlaySettings,
};
use self::sources::CommandLine;
pub use self::table::{Kind, OPTIONS, Spec, group};
use self::values::RawValues;
use crate::net_config;
use text::ErrorChain;

/// An invalid option: its source, the value, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct Error {
    /// Source of the option, such as `flag --iptables-resync` or `key "store" of /etc/podwire/agent.toml`.
    pub place: String,
    /// The invalid value and the values that are allowed.
    pub problem: String,
}

impl Error {
    fn new(place: impl Into<String>, problem: impl Into<String>) -> Error {
        Error { place: place.into(), problem: problem.into() }
    }

    fn unreadable(place: &str, path: &str, cause: &io::Error) -> Error {
        Error::new(place, format!("cannot read {path:?}: {cause}"))
    }
}

/// A parsed command line.
#[derive(Debug, Clone)]
pub enum Invocation {
    /// Run with these settings.
    Run(Box<Settings>),
    /// Print the options and exit.
    Help,
    /// Print the version and exit.
    Version,
}

/// The command that takes the options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Agent,
    /// Also uses the options that the agent saved.
    Cleanup,
}

/// Parses the options of all sources. `var` looks up an environment variable, `read` reads a file.
pub fn parse(
    command: Command,
    args: &[String],
    var: impl Fn(&str) -> Option<String>,
    read: impl Fn(&str) -> io::Result<String>,
) -> Result<Invocation, Error> {
    let mut values = match sources::parse_flags(args)? {
        CommandLine::Help => return Ok(Invocation::Help),
        CommandLine::Version => return Ok(Invocation::Version),
        CommandLine::Values(values) => values,
    };
    sources::add_variables(&mut values, &var);
    if let Some(config) = values.get("config") {
        let path = config.texts.last().cloned().unwrap_or_default();
        let text = read(&path).map_err(|cause| Error::unreadable(&config.place, &path, &cause))?;
        values.add_defaults(sources::parse_file(&path, &text)?);
    }
    let mut damaged_record = None;
    if command == Command::Cleanup {
        (values, damaged_record) = with_saved(values)?;
    }
    let mut settings = Settings::parse(&values)?;
    settings.sources.damaged_record = damaged_record;
    if command == Command::Agent {
        check(&settings, &values, &read)?;
    }
    let var = |name: &str| var(name).filter(|text| !text.is_empty());
    settings.node.name = settings.node.name.or_else(|| var("NODE_NAME"));
    if let Some(name) = settings.node.name.as_deref().filter(|_| !values.is_given("node-name")) {
        settings.sources.saved.push_str(&saved::line("node-name", &[name]));
    }
    if let StoreChoice::Kubernetes(kubernetes) = &mut settings.store {
        let pod = var("POD_NAMESPACE").zip(var("POD_NAME"));
        kubernetes.pod = pod.filter(|_| settings.node.name.is_none());
        kubernetes.service = service(var);
    }
    Ok(Invocation::Run(Box::new(settings)))
}

/// Adds the options that the agent saved. An unusable record is reported instead: it must not keep cleanup from the
/// rest of its work.
fn with_saved(values: RawValues) -> Result<(RawValues, Option<DamagedRecord>), Error> {
    let NodeSettings { state_dir, owner, .. } = Settings::parse(&values)?.node;
    let merged = saved::merge(&values, &saved::path(&state_dir, &owner)).and_then(|merged| {
        Settings::parse(&merged).map(|_| merged).map_err(|error| error.to_string())
    });
    Ok(match merged {
        Ok(merged) => (merged, None),
        Err(problem) => {
            let names_store = saved::names_store(&values);
            (values, Some(DamagedRecord { problem, names_store }))
        }
    })
}

/// Checks what the agent would otherwise report only later: the network configuration and the files for etcd.
fn check(
    settings: &Settings,
    values: &RawValues,
    read: impl Fn(&str) -> io::Result<String>,
) -> Result<(), Error> {
    if let Some(text) = &settings.network.config {
        let failed = |cause| Error::new(values.place("net-config"), ErrorChain(&cause).to_string());
        net_config::check(text.expose()).map_err(failed)?;
    }
    if !matches!(settings.store, StoreChoice::Etcd(_)) {
        return Ok(());
    }
    for name in ["etcd-cafile", "etcd-certfile", "etcd-keyfile"] {
        if let Some(path) = values.text(name) {
            read(&path).map_err(|cause| Error::unreadable(&values.place(name), &path, &cause))?;
        }
    }
    Ok(())
}

/// URL of the API server, which Kubernetes puts into the environment of every pod.
fn service(var: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (host, port) = (var("KUBERNETES_SERVICE_HOST")?, var("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Some(format!("https://{host}:{port}"))
}
