// SPDX-License-Identifier: Apache-2.0
//! The CNI runtime side: arguments that say where configurations and plugins are, the runtime built
//! from them, and paths of network namespaces.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use cni::runtime::Runtime;
use cni::{Code, Host};
use kernel::Netns;

use crate::errors::Hint;

const CONF_DIR: &str = "/etc/cni/net.d";
const PLUGIN_PATH: &str = "/opt/cni/bin";

/// Directory in which `ip netns` keeps named namespaces.
const NETNS_DIR: &str = "/run/netns";

/// Deadline for one operation: kubelet waits two minutes for the runtime, and 100 seconds longer.
const TIMEOUT: Duration = Duration::from_secs(220);

/// Directories of configurations, plugins and results.
#[derive(Clone, Debug, Args)]
pub(crate) struct RuntimeArgs {
    /// Directory of network configurations
    #[arg(long, env = "NETCONFPATH", default_value = CONF_DIR, value_name = "DIR",
          value_parser = conf_dir, hide_env_values = true, help_heading = "Directories")]
    pub(crate) conf_dir: PathBuf,
    /// Directories of plugins, separated by ':'; podwire runs its own plugin if a file is missing
    #[arg(long, env = "CNI_PATH", default_value = PLUGIN_PATH, value_name = "DIRS",
          value_parser = plugin_path, hide_env_values = true, help_heading = "Directories")]
    path: String,
    /// Directory of cached results
    #[arg(long, default_value = cni::runtime::DEFAULT_CACHE_DIR, value_name = "DIR",
          help_heading = "Directories")]
    cache_dir: PathBuf,
    /// Allow the network namespace of podwire itself as a container
    #[arg(long, env = "CNI_NETNS_OVERRIDE", hide = true, default_value = "")]
    netns_override: String,
    /// Start plugins as processes, even if the plugin file is podwire itself
    #[arg(long, env = plugins::multicall::ALWAYS_EXEC, hide = true)]
    always_exec: Option<OsString>,
}

impl RuntimeArgs {
    /// This program as plugin host, with the options of the command line.
    pub(crate) fn host(&self) -> Host {
        Host { always_exec: self.always_exec.is_some(), ..this_program() }
    }

    /// A runtime that uses these directories and kubelet's deadline.
    pub(crate) fn runtime<'h>(&self, host: &'h Host) -> Runtime<'h> {
        let mut runtime = Runtime::new(host, self.path.as_str());
        runtime.cache_dir.clone_from(&self.cache_dir);
        runtime.timeout = Some(TIMEOUT);
        runtime.allow_own_netns =
            self.netns_override == "1" || self.netns_override.eq_ignore_ascii_case("true");
        runtime
    }
}

/// An empty variable counts as unset, as in cnitool.
fn conf_dir(text: &str) -> Result<PathBuf, Infallible> {
    Ok(PathBuf::from(if text.is_empty() { CONF_DIR } else { text }))
}

fn plugin_path(text: &str) -> Result<String, Infallible> {
    Ok(if text.is_empty() { PLUGIN_PATH } else { text }.to_owned())
}

/// This program as host of all plugins; they need not be installed.
pub(crate) fn this_program() -> Host {
    Host { builtin_fallback: true, ..plugins::multicall::host() }
}

/// Path of a namespace. A word without '/' is a name of `ip netns`.
pub(crate) fn netns_path(text: &str) -> Result<PathBuf> {
    if text.is_empty() {
        bail!("the path of the network namespace is empty");
    }
    if !text.contains('/') && text != "." && text != ".." {
        return Ok(named_netns(text));
    }
    let path = std::path::absolute(text).with_context(|| format!("resolve {text:?}"))?;
    Ok(cleaned(&path))
}

/// Path of a namespace that `ip netns` knows by this name.
pub(crate) fn named_netns(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}

/// Removes `.` and `..` like Go's `filepath.Abs`: cnitool derives container IDs from such paths.
fn cleaned(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

/// Opens the network namespace at this path; the error says how to create it.
pub(crate) fn require_netns(path: &Path) -> Result<Netns> {
    let advice = || match path.strip_prefix(NETNS_DIR) {
        Ok(name) => format!("create it with: ip netns add {}", name.display()),
        Err(_) => "create a namespace with: ip netns add NAME".to_owned(),
    };
    match Netns::open(path) {
        Err(error) if error.is_not_found() => {
            Err(cni::Error::new(Code::UNKNOWN_CONTAINER, error.to_string())).hint(advice)
        }
        other => other.hint(advice),
    }
}

/// Whether this process runs in the namespace, whatever path it was opened by.
pub(crate) fn is_own(netns: &Netns) -> Result<bool> {
    Ok(netns.is_same(&Netns::current()?)?)
}

/// The path as text, as plugins receive it.
pub(crate) fn as_text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("the path {} is not valid UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: RuntimeArgs,
    }

    #[test]
    fn runtime_has_a_deadline_and_can_start_processes() {
        let parse = |args: &[&str]| Line::parse_from([&["test"], args].concat()).args;
        let plain = parse(&[]);
        assert_eq!(plain.runtime(&plain.host()).timeout, Some(TIMEOUT));
        assert!(plain.host().builtin_fallback);
        // Any value counts, even an empty one.
        assert!(parse(&["--always-exec="]).host().always_exec);
    }

    #[test]
    fn netns_is_found_by_name_and_by_path() {
        let check = |text: &str, path: &str| {
            assert_eq!(netns_path(text).unwrap(), Path::new(path), "{text}");
        };
        check("blue", "/run/netns/blue");
        check("/var/run/netns/blue", "/var/run/netns/blue");
        check("/proc/self/./ns/../ns//net", "/proc/self/ns/net");
        check("/../a/", "/a");
        assert!(netns_path("").is_err());
        let here = std::env::current_dir().unwrap();
        assert_eq!(netns_path("./blue").unwrap(), here.join("blue"));
    }
}
