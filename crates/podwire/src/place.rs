// SPDX-License-Identifier: Apache-2.0
//! From words of the command line to the things that they mean: the runtime with the plugins of
//! this program, and the path of a namespace.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use cni::Host;
use cni::runtime::Runtime;
use kernel::Netns;
use plugins::registry::PLUGINS;

use crate::cli::Places;
use crate::report::Hint;

/// Where `ip netns` keeps its names.
const NAMED: &str = "/run/netns";

/// This program as the holder of all plugins; they need not be installed.
pub fn this_program() -> Host {
    let mut host = Host::of_this_program(PLUGINS);
    host.uninstalled = true;
    host
}

/// The runtime that looks in these places.
pub fn runtime<'h>(host: &'h Host, places: &Places) -> Runtime<'h> {
    let mut runtime = Runtime::new(host, places.path.as_str());
    runtime.cache_dir.clone_from(&places.cache_dir);
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

/// An error with advice unless this is a network namespace.
pub fn require_netns(path: &Path) -> Result<()> {
    let advice = || match path.strip_prefix(NAMED) {
        Ok(name) => format!("make it with: ip netns add {}", name.display()),
        Err(_) => "make a namespace with: ip netns add NAME".to_owned(),
    };
    Netns::open(path).map(drop).hint(advice)
}

/// As plugins get it.
pub fn as_text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("the path {} is no UTF-8 text", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
