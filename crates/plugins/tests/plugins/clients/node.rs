// SPDX-License-Identifier: Apache-2.0
//! The node of a container runtime: installed plugins, an outside machine, and a check for
//! leftovers of containers.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use testkit::{Daemon, Ns, require, wait_some};

use crate::rules::elements;
use crate::world::Plugins;

/// Plugin directories. Debian's containerd tools use the second one.
const PLUGIN_DIRS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];

/// Directory of network configurations.
pub const NETWORKS: &str = "/etc/cni/net.d";

/// The node's address on the outside network.
pub const ADDRESS: &str = "192.0.2.1";

/// URL and content of a page on the outside machine. The outside machine has no route to
/// containers, so it can answer only the node's address.
pub const PAGE_OUTSIDE: (&str, &str) = ("http://192.0.2.2/", "hello from outside\n");

/// Starting a runtime and its containers takes long on a machine that runs many tests.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A node with only the plugins installed.
#[derive(Debug)]
pub struct Node {
    outside: Ns,
    _server: Daemon,
}

impl Node {
    pub fn new() -> Node {
        require!(Program("busybox"), Program("timeout"));
        for directory in PLUGIN_DIRS {
            fs::create_dir_all(directory).expect("create a directory on the node");
            Plugins::ours_in(directory);
        }
        let (page, directory) = (PAGE_OUTSIDE.1, "/run/outside");
        for directory in [NETWORKS, directory] {
            fs::create_dir_all(directory).expect("create a directory on the node");
        }
        fs::write("/run/outside/index.html", page).expect("write a file in /run");
        let (here, outside) = (Ns::here(), Ns::new("outside"));
        here.connect("up0", &outside, "eth0");
        here.ip(&["addr", "add", "192.0.2.1/24", "dev", "up0"]);
        outside.ip(&["addr", "add", "192.0.2.2/24", "dev", "eth0"]);
        let server = outside.start("busybox", &["httpd", "-f", "-p", "80", "-h", directory]);
        Node { outside, _server: server }
    }

    /// Replaces podwire with the Go plugins until [`Node::install_ours`].
    pub fn install_go_plugins(&self) {
        let ours = fs::read_dir(PLUGIN_DIRS[0]).expect("plugins are installed").flatten();
        for file in ours {
            fs::remove_file(file.path()).expect("remove a plugin");
        }
        for file in
            fs::read_dir(Plugins::go().directory()).expect("Go plugins are installed").flatten()
        {
            let place = Path::new(PLUGIN_DIRS[0]).join(file.file_name());
            fs::copy(file.path(), place).expect("copy a plugin");
        }
    }

    pub fn install_ours(&self) {
        Plugins::ours_in(PLUGIN_DIRS[0]);
    }

    /// Panics unless the outside machine can fetch the page.
    #[track_caller]
    pub fn assert_outside_gets(&self, url: &str, page: &str) {
        assert_gets(url, page, |url| wget(&self.outside, url));
    }

    /// Returns true if one request from the outside machine succeeds.
    pub fn is_served_outside(&self, url: &str) -> bool {
        wget(&self.outside, url).is_ok()
    }

    /// Waits until nothing of the containers is left except these bridges.
    #[track_caller]
    pub fn assert_clean_except(&self, bridges: &[&str]) {
        let mut left = Vec::new();
        let clean = wait_some(TIMEOUT, || {
            left = leftovers(bridges);
            left.is_empty().then_some(())
        });
        assert!(clean.is_some(), "left over: {left:#?}");
        for bridge in bridges {
            Ns::here().ip(&["link", "show", bridge]);
        }
    }
}

/// Panics unless `fetch` returns the page in time. Retries, because a server needs time to start.
#[track_caller]
pub fn assert_gets(url: &str, page: &str, fetch: impl Fn(&str) -> Result<String, String>) {
    let mut last = Ok(String::new());
    let got = wait_some(TIMEOUT, || {
        last = fetch(url);
        last.as_ref().is_ok_and(|got| got == page).then_some(())
    });
    let state = || ["addr", "route"].map(|what| Ns::here().ip(&[what])).concat();
    assert!(got.is_some(), "{url}: {last:?}\nnode state:\n{}", state());
}

/// Fetches a page from the node.
pub fn wget_here(url: &str) -> Result<String, String> {
    wget(&Ns::here(), url)
}

fn wget(from: &Ns, url: &str) -> Result<String, String> {
    from.try_exec("timeout", &["5", "busybox", "wget", "-q", "-O", "-", url])
}

/// Lists interfaces, named namespaces, files of plugins and nf_tables elements, without those that
/// are expected to stay.
fn leftovers(bridges: &[&str]) -> Vec<String> {
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
    left.retain(|name| !is_expected_to_stay(name));
    left.extend(elements(&here));
    left
}

/// Returns true for files that stay: host-local's locks and last addresses, podwire's runtime
/// locks, and the namespace of the outside machine.
fn is_expected_to_stay(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or_default();
    name == "lock"
        || name.starts_with("last_reserved_ip.")
        || file.starts_with("/var/lib/cni/locks/")
        || file == "/run/netns/outside"
}

/// Lists all files in a directory tree.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let below = |path: PathBuf| match path.is_dir() && !path.is_symlink() {
        true => files(&path),
        false => vec![path],
    };
    entries.flat_map(|entry| below(entry.path())).collect()
}
