// SPDX-License-Identifier: Apache-2.0
//! The CNI configuration. It exists while the node is ready: without it a runtime reports that the network is not ready,
//! instead of failing each pod. The agent never touches a file that another program has written.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::api::socket_path;
use crate::file_watcher::CHECK_INTERVAL;
use crate::managed_file;
use crate::managed_file::ManagedFile;
use crate::settings::{Pods, Settings};
use crate::status::{Readiness, StatusHub};
use crate::supervisor::{Failure, Heartbeat};

/// Network name of flannel's own configuration, so that allocated addresses stay valid.
const NETWORK: &str = "cbr0";

/// Defaults of the plugin.
const SUBNET_FILE: &str = "/run/flannel/subnet.env";
const RUN_DIR: &str = "/run/podwire";
const STATE_DIR: &str = "/var/lib/podwire";
const CALICO_DIR: &str = "/var/lib/calico";

/// Network name of Calico's own configuration: handles of addresses contain it.
const ROUTED_NETWORK: &str = "k8s-pod-network";

/// Marks files that the agent has written. Runtimes ignore unknown keys.
const MANAGED_BY_KEY: &str = "managedBy";
const MANAGED_BY: &str = "podwire agent";

/// How long the file stays after the node stopped being ready. A short failure is not worth withdrawing it.
const WITHDRAW_DELAY: Duration = Duration::from_secs(5);

/// Why the file cannot be written or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} was not written by podwire: move it, or choose another --cni-conf-name")]
    Foreign(PathBuf),
    #[error("write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
}

/// The desired file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniConf {
    pub path: PathBuf,
    pub text: String,
}

impl CniConf {
    /// Returns the file, if the settings ask for one.
    pub fn of(settings: &Settings) -> Option<CniConf> {
        let path = settings.files.cni_conf.clone()?;
        let text = match settings.network.pods {
            Pods::Bridged => text(&settings.files.subnet_env, &settings.api.run_dir),
            Pods::Routed { .. } => routed_text(settings),
        };
        Some(CniConf { path, text })
    }

    /// Writes the file. Returns `false` if it exists with the same content.
    pub fn install(&self) -> Result<bool, Error> {
        refuse_foreign(&self.path)?;
        self.write()
    }

    /// Restores the file. Content that is no configuration counts as a damaged file of the agent.
    fn restore(&self) -> Result<bool, Error> {
        let content =
            managed_file::read(&self.path).map_err(|source| failed(&self.path, source))?;
        match content.as_deref().is_some_and(is_configuration) {
            true => self.install(),
            false => self.write(),
        }
    }

    fn write(&self) -> Result<bool, Error> {
        let is_new = managed_file::replace(&self.path, &self.text);
        let is_new = is_new.map_err(|source| failed(&self.path, source))?;
        if is_new {
            tracing::info!(file = %self.path.display(), "CNI configuration written");
        }
        Ok(is_new)
    }

    /// Removes the file. Returns `false` if it does not exist.
    pub fn withdraw(&self) -> Result<bool, Error> {
        let existed = withdraw(&self.path)?;
        if existed {
            tracing::info!(file = %self.path.display(), "CNI configuration withdrawn");
        }
        Ok(existed)
    }

    /// Writes the file while the node is ready, and removes it after a while when it is not. The file stays when this is
    /// dropped, so that a restart of the agent does not disturb the node.
    pub(crate) async fn run(&self, hub: &StatusHub, heartbeat: &Heartbeat) -> Result<(), Failure> {
        let mut changes = hub.changes();
        let mut file = ManagedFile::new(&self.path, hub);
        let mut state = State::Written;
        loop {
            heartbeat.beat();
            let action;
            (state, action) = state.step(&hub.readiness(), Instant::now());
            let conf = self.clone();
            let wait = match action {
                Action::Write { check_after } => {
                    let is_in_place = file.is_in_place();
                    let write = move || if is_in_place { conf.restore() } else { conf.install() };
                    file.written(&in_background(write).await);
                    check_after
                }
                Action::Wait(left) => left,
                Action::Withdraw { check_after } => {
                    file.removed(&in_background(move || conf.withdraw()).await);
                    check_after
                }
            };
            tokio::select! {
                () = changes.next() => {}
                () = file.next() => {}
                () = heartbeat.during(sleep(wait)) => {}
            }
        }
    }
}

/// State of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The node is ready, so the file is written and restored. Also the state at the start.
    Written,
    /// The node has not been ready since this time, and the file stays for a while.
    Grace { since: Instant },
    /// The file is withdrawn.
    Withdrawn,
}

/// Action of the controller before it waits for the next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// Write the file, and check it again after this time at the latest.
    Write {
        check_after: Duration,
    },
    Wait(Duration),
    /// Remove the file, and check again after this time at the latest.
    Withdraw {
        check_after: Duration,
    },
}

impl State {
    /// Returns the next state and what has to be done. Pure.
    fn step(self, readiness: &Readiness, now: Instant) -> (State, Action) {
        if readiness.keeps_cni_conf {
            // The node stops being ready without an event when its lease expires.
            let check_after =
                readiness.holds_for.map_or(CHECK_INTERVAL, |left| left.min(CHECK_INTERVAL));
            return (State::Written, Action::Write { check_after });
        }
        let since = match self {
            State::Written => now,
            State::Grace { since } => since,
            State::Withdrawn => {
                return (self, Action::Withdraw { check_after: CHECK_INTERVAL });
            }
        };
        match (since + WITHDRAW_DELAY).checked_duration_since(now).filter(|left| !left.is_zero()) {
            Some(left) => (State::Grace { since }, Action::Wait(left)),
            None => (State::Withdrawn, Action::Withdraw { check_after: CHECK_INTERVAL }),
        }
    }
}

/// Runs an operation on another thread, so that a slow disk delays no other controller.
async fn in_background(
    operation: impl FnOnce() -> Result<bool, Error> + Send + 'static,
) -> Result<bool, String> {
    let done = spawn_blocking(operation).await.map_err(|error| error.to_string())?;
    done.map_err(|error| error.to_string())
}

/// Removes a file that an agent has written. Returns `false` if it does not exist or is not from an agent.
pub fn withdraw(path: &Path) -> Result<bool, Error> {
    match refuse_foreign(path) {
        Err(Error::Foreign(_)) => Ok(false),
        other => {
            other.and_then(|()| managed_file::remove(path).map_err(|cause| failed(path, cause)))
        }
    }
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::Write { path: path.to_owned(), source }
}

/// Fails if another program has written the file.
pub fn refuse_foreign(path: &Path) -> Result<(), Error> {
    let content = managed_file::read(path).map_err(|source| failed(path, source))?;
    match content.is_none_or(|text| is_ours(&text)) {
        true => Ok(()),
        false => Err(Error::Foreign(path.to_owned())),
    }
}

/// The usual configuration directory of container runtimes.
pub const USUAL_DIR: &str = "/etc/cni/net.d";

/// Whether the file was written by an agent with the same subnet file and socket.
pub fn belongs_to(path: &Path, settings: &Settings) -> bool {
    let plugins = |text: &str| {
        let list = serde_json::from_str::<Value>(text).unwrap_or_default();
        list.get("plugins").and_then(|plugins| plugins.get(0)).cloned()
    };
    let own = text(&settings.files.subnet_env, &settings.api.run_dir);
    let content = managed_file::read(path).ok().flatten();
    content.is_some_and(|content| is_ours(&content) && plugins(&content) == plugins(&own))
}

/// Whether the text is a network configuration list.
fn is_configuration(text: &str) -> bool {
    let list = serde_json::from_str::<Value>(text).unwrap_or_default();
    list.get("name").is_some()
}

fn is_ours(text: &str) -> bool {
    let list = serde_json::from_str::<Value>(text).unwrap_or_default();
    list.get(MANAGED_BY_KEY).is_some_and(|value| value == MANAGED_BY)
}

/// Formats the configuration: flannel's plugin, then the plugins for capabilities of pods.
pub fn text(subnet_file: &Path, run_dir: &Path) -> String {
    let mut flannel = json!({
        "type": "flannel",
        "delegate": {"hairpinMode": true, "isDefaultGateway": true},
    });
    let mut set = |key: &str, path: &Path| flannel[key] = path.to_string_lossy().into();
    if subnet_file != Path::new(SUBNET_FILE) {
        set("subnetFile", subnet_file);
    }
    // The plugin uses the default socket only together with the default file.
    if run_dir != Path::new(RUN_DIR) || subnet_file != Path::new(SUBNET_FILE) {
        set("agentSocket", &socket_path(run_dir));
    }
    let list = json!({
        "cniVersion": "1.1.0",
        "name": NETWORK,
        MANAGED_BY_KEY: MANAGED_BY,
        "plugins": [
            flannel,
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "bandwidth", "capabilities": {"bandwidth": true}},
        ],
    });
    format!("{list:#}\n")
}

/// Returns the configuration for routed pods.
fn routed_text(settings: &Settings) -> String {
    let mut ipam = json!({"type": "calico-ipam"});
    let mut calico = json!({
        "type": "calico",
        "capabilities": {"io.kubernetes.cri.pod-annotations": true},
        "policy": {"type": "k8s"},
    });
    if let Pods::Routed { pools } = &settings.network.pods {
        let has = |ipv6: bool| pools.iter().any(|pool| matches!(pool.cidr, IpNet::V6(_)) == ipv6);
        if has(true) {
            ipam["assign_ipv6"] = "true".into();
            ipam["assign_ipv4"] = has(false).to_string().into();
        }
    }
    let run_dir = &settings.api.run_dir;
    if run_dir != Path::new(RUN_DIR) {
        calico["agent_socket"] = socket_path(run_dir).to_string_lossy().into();
    }
    let state_dir = &settings.node.state_dir;
    if state_dir != Path::new(STATE_DIR) {
        calico["agent_state_dir"] = state_dir.to_string_lossy().into();
    }
    let calico_dir = &settings.files.calico;
    if calico_dir != Path::new(CALICO_DIR) {
        calico["nodename_file"] = calico_dir.join("nodename").to_string_lossy().into();
    }
    calico["ipam"] = ipam;
    let list = json!({
        "cniVersion": "1.1.0",
        "name": ROUTED_NETWORK,
        MANAGED_BY_KEY: MANAGED_BY,
        "plugins": [
            calico,
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "bandwidth", "capabilities": {"bandwidth": true}},
        ],
    });
    format!("{list:#}\n")
}

#[cfg(test)]
mod tests;
