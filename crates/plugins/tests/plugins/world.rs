// SPDX-License-Identifier: Apache-2.0
//! A machine for the plugins: a namespace that is its host, pods, a folder for host-local, and
//! one set of plugins. Names and paths are the same in each, so that two can be compared.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testkit::{Ns, go_plugins, plugin_program, run};

use crate::call::Call;
use crate::snapshot::Snapshot;

/// Where host-local keeps its files in these tests; on the private tmpfs of `in_netns`.
pub const DATA: &str = "/run/data";

/// Where it keeps them by itself; `in_netns` mounts an empty file system above it.
const USUAL_DATA: &str = "/var/lib/cni/networks";

/// A file that a kernel whose bridges filter VLANs has, once there is a bridge.
pub fn vlan_switch() -> &'static str {
    run("ip", &["link", "add", "probe0", "type", "bridge"]);
    "/sys/class/net/probe0/bridge/vlan_filtering"
}

/// A directory of plugins.
#[derive(Clone, Debug)]
pub struct Plugins(pub PathBuf);

impl Plugins {
    /// The Go plugins.
    pub fn go() -> Plugins {
        Plugins(go_plugins())
    }

    /// Ours, put in place the way a user does it.
    pub fn ours() -> Plugins {
        Plugins::ours_in("/run/podwire-bin")
    }

    /// The same, where a runtime looks for them.
    pub fn ours_in(directory: &str) -> Plugins {
        let program = plugin_program(env!("CARGO_BIN_EXE_podwire-cni"));
        run(program.to_str().expect("the program's path is text"), &["--install", directory]);
        Plugins(directory.into())
    }

    pub fn directory(&self) -> &Path {
        &self.0
    }
}

/// A host and its pods. Everything is removed with it.
#[derive(Debug)]
pub struct World {
    pub host: Ns,
    pods: Vec<Ns>,
    plugins: Plugins,
}

impl World {
    /// A host with `pods` pods, `pod1` and so on.
    pub fn new(plugins: &Plugins, pods: usize) -> World {
        let host = Ns::new("host");
        host.ip(&["link", "set", "lo", "up"]);
        let pods = (1..=pods).map(|n| Ns::new(&format!("pod{n}"))).collect();
        World { host, pods, plugins: plugins.clone() }
    }

    /// A pod by its number, from 1.
    pub fn pod(&self, number: usize) -> &Ns {
        &self.pods[number - 1]
    }

    /// `ip` on the host, its arguments in one line.
    #[track_caller]
    pub fn on_host(&self, line: &str) -> String {
        self.host.ip(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// `ip` in a pod, its arguments in one line.
    #[track_caller]
    pub fn in_pod(&self, number: usize, line: &str) -> String {
        self.pod(number).ip(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// `ip -d -j link show` of one interface of the host.
    #[track_caller]
    pub fn host_link(&self, name: &str) -> Value {
        self.host.ip_json(&["link", "show", name])[0].clone()
    }

    /// A call of a plugin for a pod: container `c1` is in `pod1`.
    pub fn call(&self, config: &Value, pod: usize) -> Call {
        self.call_of(&self.plugins, config, pod)
    }

    /// The same with another set of plugins.
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

    /// All that the disk holds.
    pub fn disk(&self) -> Snapshot {
        let mut found = Snapshot::default();
        found.read_directory(Path::new(DATA), "disk");
        found.read_directory(Path::new(USUAL_DATA), "usual disk");
        found
    }

    /// All that the kernel and the disk hold.
    pub fn snapshot(&self) -> Snapshot {
        let mut found = self.disk();
        found.look_into("host", &self.host);
        for pod in &self.pods {
            found.look_into(pod.name(), pod);
        }
        found
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for directory in [DATA, USUAL_DATA] {
            // Missing where no plugin wrote to it.
            let _ = fs::remove_dir_all(directory);
        }
    }
}
