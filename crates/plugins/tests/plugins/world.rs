// SPDX-License-Identifier: Apache-2.0
//! A machine for the plugins: a namespace for the host, pods, a directory for host-local, and one
//! set of plugins. Names and paths are the same in every world, so that two worlds can be compared.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testkit::{Ns, go_plugins, plugin_program, run};

use crate::call::Call;
use crate::snapshot::Snapshot;

/// host-local's directory in these tests, on the private tmpfs of `in_netns`.
pub const DATA: &str = "/run/data";

/// host-local's default directory; `in_netns` mounts an empty file system over it.
const DEFAULT_DATA: &str = "/var/lib/cni/networks";

/// Creates a bridge and returns the path of a file that exists if the kernel supports VLAN
/// filtering.
pub fn vlan_filtering_file() -> &'static str {
    run("ip", &["link", "add", "probe0", "type", "bridge"]);
    "/sys/class/net/probe0/bridge/vlan_filtering"
}

/// A directory of plugins.
#[derive(Clone, Debug)]
pub struct Plugins(pub PathBuf);

impl Plugins {
    pub fn go() -> Plugins {
        Plugins(go_plugins())
    }

    /// Installs podwire like a user does.
    pub fn ours() -> Plugins {
        Plugins::ours_in("/run/podwire-bin")
    }

    /// Installs podwire in this directory.
    pub fn ours_in(directory: &str) -> Plugins {
        let program = plugin_program(env!("CARGO_BIN_EXE_podwire-cni"));
        run(program.to_str().expect("the program's path is UTF-8"), &["--install", directory]);
        Plugins(directory.into())
    }

    pub fn directory(&self) -> &Path {
        &self.0
    }
}

/// A host and its pods. Dropping it removes everything.
#[derive(Debug)]
pub struct World {
    pub host: Ns,
    pods: Vec<Ns>,
    plugins: Plugins,
}

impl World {
    /// Creates a host and the pods `pod1`, `pod2` and so on.
    pub fn new(plugins: &Plugins, pods: usize) -> World {
        let host = Ns::new("host");
        host.ip(&["link", "set", "lo", "up"]);
        let pods = (1..=pods).map(|n| Ns::new(&format!("pod{n}"))).collect();
        World { host, pods, plugins: plugins.clone() }
    }

    /// Returns a pod by its number, from 1.
    pub fn pod(&self, number: usize) -> &Ns {
        &self.pods[number - 1]
    }

    /// Runs `ip` on the host; `line` is split at spaces.
    #[track_caller]
    pub fn on_host(&self, line: &str) -> String {
        self.host.ip(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs `ip` in a pod; `line` is split at spaces.
    #[track_caller]
    pub fn in_pod(&self, number: usize, line: &str) -> String {
        self.pod(number).ip(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Output of `ip -d -j link show` for one interface of the host.
    #[track_caller]
    pub fn host_link(&self, name: &str) -> Value {
        self.host.ip_json(&["link", "show", name])[0].clone()
    }

    /// A call of a plugin for a pod. Container `c1` is in `pod1`.
    pub fn call(&self, config: &Value, pod: usize) -> Call {
        self.call_of(&self.plugins, config, pod)
    }

    /// A call of a plugin of another set.
    pub fn call_of(&self, plugins: &Plugins, config: &Value, pod: usize) -> Call {
        Call {
            plugin: plugins.0.join(config["type"].as_str().expect("every test names its plugin")),
            host: self.host.path(),
            container_id: format!("c{pod}"),
            netns: format!("/run/netns/pod{pod}"),
            ifname: "eth0".to_owned(),
            args: String::new(),
            path: plugins.0.display().to_string(),
            always_exec: false,
            search: None,
            env: Vec::new(),
            config: config.clone(),
        }
    }

    /// Files of the plugins.
    pub fn disk(&self) -> Snapshot {
        let mut found = Snapshot::default();
        found.read_directory(Path::new(DATA), "disk");
        found.read_directory(Path::new(DEFAULT_DATA), "usual disk");
        found
    }

    /// Kernel state of all namespaces, and files of the plugins.
    pub fn snapshot(&self) -> Snapshot {
        let mut found = self.disk();
        found.add_namespace("host", &self.host);
        for pod in &self.pods {
            found.add_namespace(pod.name(), pod);
        }
        found
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for directory in [DATA, DEFAULT_DATA] {
            // Fails if no plugin wrote to the directory.
            let _ = fs::remove_dir_all(directory);
        }
    }
}
