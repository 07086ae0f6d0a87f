// SPDX-License-Identifier: Apache-2.0
//! What a node agent is told: by flags, by the environment, by a file, in this order. Flags and
//! variables of flanneld mean here what they mean there.

mod file;
mod flags;
pub mod record;
mod settings;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use text::ErrorChain;

pub use self::settings::{DamagedRecord, Etcd, Kubernetes, Masquerade, Settings, StoreChoice, Tls};
pub use self::table::{Kind, OPTIONS, Spec};
use crate::net_config;

/// What is wrong with what was told: by whom, about which option, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct Error {
    /// Such as `flag --iptables-resync` or `key "store" of /etc/podwire/agent.toml`.
    pub place: String,
    /// What is wrong there, with the value and what is allowed.
    pub problem: String,
}

impl Error {
    fn new(place: impl Into<String>, problem: impl Into<String>) -> Error {
        Error { place: place.into(), problem: problem.into() }
    }
}

/// A value as it was written, and where, for errors.
#[derive(Clone, PartialEq, Eq)]
struct Told {
    place: String,
    words: Vec<String>,
}

/// Without the words, which may be a password.
impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Told {
    fn unreadable(&self, path: &str, cause: &std::io::Error) -> Error {
        Error::new(&self.place, format!("cannot read {path:?}: {cause}"))
    }
}

/// Values by option.
type Values = BTreeMap<&'static str, Told>;

/// What the command line asks for.
#[derive(Debug, Clone)]
pub enum Asked {
    /// To run with these settings.
    Run(Box<Settings>),
    /// To print the options and end.
    Help,
    /// To print the version and end.
    Version,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Agent,
    /// Also goes by what the agent has written down.
    Cleanup,
}

/// Reads all three. `var` looks up a variable of the environment, `read` reads a file.
pub fn understand(
    command: Command,
    args: &[String],
    var: impl Fn(&str) -> Option<String>,
    read: impl Fn(&str) -> std::io::Result<String>,
) -> Result<Asked, Error> {
    let mut values = match flags::parse(args)? {
        flags::Parsed::Help => return Ok(Asked::Help),
        flags::Parsed::Version => return Ok(Asked::Version),
        flags::Parsed::Values(values) => values,
    };
    for spec in OPTIONS {
        let name = spec.variable();
        if let Some(text) = var(&name).filter(|_| !values.contains_key(spec.name)) {
            values.insert(spec.name, Told { place: format!("variable {name}"), words: vec![text] });
        }
    }
    if let Some(config) = values.get("config") {
        let path = config.words.last().cloned().unwrap_or_default();
        let text = read(&path).map_err(|cause| config.unreadable(&path, &cause))?;
        for (name, told) in file::parse(&path, &text)? {
            values.entry(name).or_insert(told);
        }
    }
    let mut damaged_record = None;
    if command == Command::Cleanup {
        let Settings { state_dir, mark, .. } = Settings::understand(&values)?;
        let path = record::path(&state_dir, &mark).display().to_string();
        let merged = record::merge(&values, &path, &read).and_then(|merged| {
            // Words that the record has wrong must not keep cleanup from the rest of its work.
            Settings::understand(&merged).map(|_| merged).map_err(|error| error.to_string())
        });
        match merged {
            Ok(merged) => values = merged,
            Err(problem) => {
                let names_store = record::names_store(&values);
                damaged_record = Some(DamagedRecord { problem, names_store });
            }
        }
    }
    let mut settings = Settings::understand(&values)?;
    settings.damaged_record = damaged_record;
    if let Some(text) = settings.net_config.as_ref().filter(|_| command == Command::Agent) {
        let place = values.get("net-config").map(|told| told.place.clone()).unwrap_or_default();
        net_config::check(text.expose())
            .map_err(|cause| Error::new(place, ErrorChain(&cause).to_string()))?;
    }
    if command == Command::Agent && matches!(settings.store, StoreChoice::Etcd(_)) {
        check_files(&values, &["etcd-cafile", "etcd-certfile", "etcd-keyfile"], &read)?;
    }
    let var = |name: &str| var(name).filter(|text| !text.is_empty());
    settings.node_name = settings.node_name.or_else(|| var("NODE_NAME"));
    if let Some(name) = settings.node_name.as_deref().filter(|_| !values.contains_key("node-name"))
    {
        settings.record.push_str(&record::line("node-name", &[name]));
    }
    if let StoreChoice::Kubernetes(kubernetes) = &mut settings.store {
        kubernetes.pod = var("POD_NAMESPACE").zip(var("POD_NAME"));
        kubernetes.pod = kubernetes.pod.take().filter(|_| settings.node_name.is_none());
        kubernetes.service = service(var);
    }
    Ok(Asked::Run(Box::new(settings)))
}

/// Files that are read later, and more than once.
fn check_files(
    values: &Values,
    names: &[&str],
    read: impl Fn(&str) -> std::io::Result<String>,
) -> Result<(), Error> {
    for told in names.iter().filter_map(|name| values.get(name)) {
        let path = told.words.last().map(String::as_str).unwrap_or_default();
        if !path.is_empty() {
            read(path).map_err(|cause| told.unreadable(path, &cause))?;
        }
    }
    Ok(())
}

/// Kubernetes tells every pod where its API is.
fn service(var: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (host, port) = (var("KUBERNETES_SERVICE_HOST")?, var("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Some(format!("https://{host}:{port}"))
}

/// All options as `--help` shows them.
pub fn help() -> String {
    let width = OPTIONS.iter().map(|spec| spec.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for spec in OPTIONS {
        let default = match (spec.kind, spec.default) {
            (Kind::Switch, default) => format!(" [default: {default}]"),
            (_, "") => String::new(),
            (_, default) => format!(" [default: {default}]"),
        };
        text.push_str(&format!("  --{:width$}  {}{default}\n", spec.name, spec.about));
    }
    text
}
