// SPDX-License-Identifier: Apache-2.0
//! From words of the command line to the things that they mean: the runtime with the plugins of
//! this program, and the path of a namespace.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cni::runtime::Runtime;
use cni::{Code, Host};
use kernel::Netns;

use crate::cli::Places;
use crate::report::Hint;

/// Where `ip netns` keeps its names.
const NAMED: &str = "/run/netns";

/// kubelet waits two minutes for an operation of the runtime and a hundred seconds more.
const TIMEOUT: Duration = Duration::from_secs(220);

/// This program as the command line wants it used.
pub fn host(places: &Places) -> Host {
    Host { always_exec: places.always_exec(), ..this_program() }
}

/// This program as the holder of all plugins; they need not be installed.
pub fn this_program() -> Host {
    Host { uninstalled: true, ..plugins::multicall::host() }
}

/// The runtime that looks in these places and has kubelet's patience.
pub fn runtime<'h>(host: &'h Host, places: &Places) -> Runtime<'h> {
    let mut runtime = Runtime::new(host, places.path.as_str());
    runtime.cache_dir.clone_from(&places.cache_dir);
    runtime.timeout = Some(TIMEOUT);
    runtime.allow_own_netns = places.allows_own_netns();
    runtime
}

/// The path of a namespace: a bare word is a name that `ip netns` would take.
pub fn netns_path(text: &str) -> Result<PathBuf> {
    if text.is_empty() {
        bail!("the namespace's path is empty");
    }
    if !text.contains('/') && text != "." && text != ".." {
        return Ok(named_netns(text));
    }
    let path = std::path::absolute(text).with_context(|| format!("find {text:?}"))?;
    Ok(cleaned(&path))
}

/// The path of a namespace that `ip netns` knows by this name.
pub fn named_netns(name: &str) -> PathBuf {
    Path::new(NAMED).join(name)
}

/// Without `.` and `..`, as Go's `filepath.Abs`: cnitool's ids are made of such paths.
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

/// The network namespace at this path, or an error with advice.
pub fn require_netns(path: &Path) -> Result<Netns> {
    let advice = || match path.strip_prefix(NAMED) {
        Ok(name) => format!("make it with: ip netns add {}", name.display()),
        Err(_) => "make a namespace with: ip netns add NAME".to_owned(),
    };
    match Netns::open(path) {
        Err(error) if error.is_not_found() => {
            Err(cni::Error::new(Code::UNKNOWN_CONTAINER, error.to_string())).hint(advice)
        }
        other => other.hint(advice),
    }
}

/// Whether this process runs in the namespace, by whatever path it was opened.
pub fn is_own(netns: &Netns) -> Result<bool> {
    Ok(netns.is_same(&Netns::current()?)?)
}

/// As plugins get it.
pub fn as_text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("the path {} is no UTF-8 text", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        places: Places,
    }

    #[test]
    fn plugins_have_a_deadline_and_can_be_processes() {
        let places = |args: &[&str]| Line::parse_from([&["test"], args].concat()).places;
        let plain = places(&[]);
        assert_eq!(runtime(&host(&plain), &plain).timeout, Some(TIMEOUT));
        assert!(host(&plain).uninstalled);
        // Set to anything, also to nothing.
        assert!(host(&places(&["--always-exec="])).always_exec);
    }

    #[test]
    fn namespaces_are_found_by_name_and_path() {
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
