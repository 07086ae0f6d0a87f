// SPDX-License-Identifier: Apache-2.0
//! The node that a runtime is on: plugins in their places, a machine outside, and what is left
//! when containers are gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use testkit::{Daemon, Ns, require, wait_some};

use crate::rules::elements;
use crate::world::Plugins;

/// Where runtimes look for plugins. Debian's containerd tools look in the second.
const PLUGINS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];

/// Where they look for networks.
pub const NETWORKS: &str = "/etc/cni/net.d";

/// The node's address for those outside.
pub const ADDRESS: &str = "192.0.2.1";

/// A page of the machine outside, which knows no way to containers: it answers the node only.
pub const PAGE_OUTSIDE: (&str, &str) = ("http://192.0.2.2/", "hello from outside\n");

/// A machine with many tests at once takes its time to start a runtime and its containers.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A node, with nothing on it but plugins.
#[derive(Debug)]
pub struct Node {
    outside: Ns,
    _server: Daemon,
}

impl Node {
    pub fn new() -> Node {
        require!(Program("busybox"), Program("timeout"));
        for directory in PLUGINS {
            fs::create_dir_all(directory).expect("a directory of the node's own");
            Plugins::ours_in(directory);
        }
        let (page, directory) = (PAGE_OUTSIDE.1, "/run/outside");
        for directory in [NETWORKS, directory] {
            fs::create_dir_all(directory).expect("a directory of the node's own");
        }
        fs::write("/run/outside/index.html", page).expect("a file below /run");
        let (here, outside) = (Ns::here(), Ns::new("outside"));
        here.connect("up0", &outside, "eth0");
        here.ip(&["addr", "add", "192.0.2.1/24", "dev", "up0"]);
        outside.ip(&["addr", "add", "192.0.2.2/24", "dev", "eth0"]);
        let server = outside.start("busybox", &["httpd", "-f", "-p", "80", "-h", directory]);
        Node { outside, _server: server }
    }

    /// Puts the Go plugins in the place of ours, until ours are installed again.
    pub fn install_go_plugins(&self) {
        let ours = fs::read_dir(PLUGINS[0]).expect("plugins are installed").flatten();
        for file in ours {
            fs::remove_file(file.path()).expect("a file of the node's own");
        }
        for file in fs::read_dir(Plugins::go().directory()).expect("they are there").flatten() {
            let place = Path::new(PLUGINS[0]).join(file.file_name());
            fs::copy(file.path(), place).expect("a file of the node's own");
        }
    }

    pub fn install_ours(&self) {
        Plugins::ours_in(PLUGINS[0]);
    }

    /// Panics unless the machine outside gets the page.
    #[track_caller]
    pub fn gets_outside(&self, url: &str, page: &str) {
        gets(url, page, |url| wget(&self.outside, url));
    }

    /// Whether the machine outside gets anything there, at the first try.
    pub fn is_served_outside(&self, url: &str) -> bool {
        wget(&self.outside, url).is_ok()
    }

    /// Waits until nothing is left of containers, but these bridges.
    #[track_caller]
    pub fn is_clean_but(&self, bridges: &[&str]) {
        let mut left = Vec::new();
        let clean = wait_some(PATIENCE, || {
            left = things_left(bridges);
            left.is_empty().then_some(())
        });
        assert!(clean.is_some(), "left over: {left:#?}");
        for bridge in bridges {
            Ns::here().ip(&["link", "show", bridge]);
        }
    }
}

/// Panics unless `fetch` gets the page before long: a server needs a moment to start.
#[track_caller]
pub fn gets(url: &str, page: &str, fetch: impl Fn(&str) -> Result<String, String>) {
    let mut last = Ok(String::new());
    let got = wait_some(PATIENCE, || {
        last = fetch(url);
        last.as_ref().is_ok_and(|got| got == page).then_some(())
    });
    let state = || ["addr", "route"].map(|what| Ns::here().ip(&[what])).concat();
    assert!(got.is_some(), "{url}: {last:?}\nthe node has\n{}", state());
}

/// Fetches a page from the node itself.
pub fn wget_here(url: &str) -> Result<String, String> {
    wget(&Ns::here(), url)
}

fn wget(from: &Ns, url: &str) -> Result<String, String> {
    from.try_exec("timeout", &["5", "busybox", "wget", "-q", "-O", "-", url])
}

/// Interfaces, named namespaces, files of plugins and elements of nf_tables, without what stays.
fn things_left(bridges: &[&str]) -> Vec<String> {
    let here = Ns::here();
    let links = here.ip_json(&["link"]);
    let names = links.as_array().expect("ip prints a list").iter();
    let names = names.map(|link| link["ifname"].as_str().unwrap_or_default().to_owned());
    let mut left: Vec<String> = names
        .filter(|name| !["lo", "up0"].iter().chain(bridges).any(|known| known == name))
        .collect();
    for directory in ["/var/lib/cni", "/run/cni", "/run/netns"] {
        left.extend(files(Path::new(directory)).iter().map(|file| file.display().to_string()));
    }
    left.retain(|name| !is_lasting(name));
    left.extend(elements(&here));
    left
}

/// Files that host-local keeps for the next container, locks of podwire as a runtime, and the
/// namespace of the machine outside.
fn is_lasting(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or_default();
    name == "lock"
        || name.starts_with("last_reserved_ip.")
        || file.starts_with("/var/lib/cni/locks/")
        || file == "/run/netns/outside"
}

/// All below a directory that is no directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let below = |path: PathBuf| match path.is_dir() && !path.is_symlink() {
        true => files(&path),
        false => vec![path],
    };
    entries.flat_map(|entry| below(entry.path())).collect()
}
