// SPDX-License-Identifier: Apache-2.0
//! The CNI configuration, there while this node is ready: a runtime that finds none says that the
//! network is not ready, where with one its pods would fail. A file of others is never touched.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::api::socket_path;
use crate::file_watcher::LOOK_AGAIN;
use crate::managed_file;
use crate::managed_file::ManagedFile;
use crate::settings::Settings;
use crate::status::StatusHub;

/// As flannel's own configuration calls it, so that addresses given under it stay known.
const NETWORK: &str = "cbr0";

/// Where the plugin looks unless it is told otherwise.
const SUBNET_FILE: &str = "/run/flannel/subnet.env";
const RUN_DIR: &str = "/run/podwire";

/// By this key we know our own file again. Runtimes pass over keys that they do not know.
const MARK_KEY: &str = "managedBy";
const MARK: &str = "podwire agent";

/// A node that is unfit for a shorter time keeps its file: a runtime without one fails all pods.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why the file is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} was not written by podwire: move it away, or choose another --cni-conf-name")]
    Foreign(PathBuf),
    #[error("write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
}

/// The file that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniConf {
    pub path: PathBuf,
    pub text: String,
}

impl CniConf {
    /// What the settings ask for.
    pub fn of(settings: &Settings) -> Option<CniConf> {
        let path = settings.files.cni_conf.clone()?;
        Some(CniConf { path, text: text(&settings.files.subnet_env, &settings.api.run_dir) })
    }

    /// Puts it there, unless it is. False where it was.
    pub fn install(&self) -> Result<bool, Error> {
        refuse_foreign(&self.path)?;
        self.write()
    }

    /// Puts it back where it was. What is no configuration is what is left of ours, and nobody's.
    fn put_back(&self) -> Result<bool, Error> {
        let found = managed_file::read(&self.path).map_err(|source| failed(&self.path, source))?;
        match found.as_deref().is_some_and(is_configuration) {
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

    /// Takes it away.
    pub fn withdraw(&self) -> Result<bool, Error> {
        let was_there = withdraw(&self.path)?;
        if was_there {
            tracing::info!(file = %self.path.display(), "CNI configuration withdrawn");
        }
        Ok(was_there)
    }

    /// Has it there while the hub says that this node is ready, and not for long when it is not.
    /// The file stays when this is dropped: pods of a node whose agent is started again go on.
    pub async fn keep(self, hub: StatusHub) {
        let mut changes = hub.changes();
        let mut kept = ManagedFile::new(&self.path, &hub);
        let mut unfit_since = None;
        loop {
            let readiness = hub.readiness();
            let wait = if readiness.keeps_cni_conf {
                unfit_since = None;
                let put = if kept.is_there() { self.put_back() } else { self.install() };
                kept.put(&put);
                readiness.holds_for.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN))
            } else {
                let since = *unfit_since.get_or_insert_with(Instant::now);
                let left = PATIENCE.saturating_sub(since.elapsed());
                if left.is_zero() {
                    kept.taken(&self.withdraw());
                }
                if left.is_zero() { LOOK_AGAIN } else { left }
            };
            // Whichever it is, there is something to look at.
            tokio::select! {
                () = changes.next() => {}
                () = kept.next() => {}
                () = sleep(wait) => {}
            }
        }
    }
}

/// Removes a file that an agent has put there; false where there is none.
pub fn withdraw(path: &Path) -> Result<bool, Error> {
    match refuse_foreign(path) {
        // It is theirs, and was never ours.
        Err(Error::Foreign(_)) => Ok(false),
        other => {
            other.and_then(|()| managed_file::remove(path).map_err(|cause| failed(path, cause)))
        }
    }
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::Write { path: path.to_owned(), source }
}

/// Fails where the file is another's.
pub fn refuse_foreign(path: &Path) -> Result<(), Error> {
    let found = managed_file::read(path).map_err(|source| failed(path, source))?;
    match found.is_none_or(|text| is_ours(&text)) {
        true => Ok(()),
        false => Err(Error::Foreign(path.to_owned())),
    }
}

/// Where container runtimes look for configurations.
pub const USUAL_DIR: &str = "/etc/cni/net.d";

/// Whether the file is there and was written by an agent with the same subnet file and socket.
pub fn belongs_to(path: &Path, settings: &Settings) -> bool {
    let plugins = |text: &str| {
        let list = serde_json::from_str::<Value>(text).unwrap_or_default();
        list.get("plugins").and_then(|plugins| plugins.get(0)).cloned()
    };
    let own = text(&settings.files.subnet_env, &settings.api.run_dir);
    let found = managed_file::read(path).ok().flatten();
    found.is_some_and(|found| is_ours(&found) && plugins(&found) == plugins(&own))
}

/// Whether a runtime could make something of it.
fn is_configuration(text: &str) -> bool {
    let list = serde_json::from_str::<Value>(text).unwrap_or_default();
    list.get("name").is_some()
}

fn is_ours(text: &str) -> bool {
    let list = serde_json::from_str::<Value>(text).unwrap_or_default();
    list.get(MARK_KEY).is_some_and(|mark| mark == MARK)
}

/// The list: flannel's own, and what pods may ask for.
pub fn text(subnet_file: &Path, run_dir: &Path) -> String {
    let mut flannel = json!({
        "type": "flannel",
        "delegate": {"hairpinMode": true, "isDefaultGateway": true},
    });
    let mut set = |key: &str, path: &Path| flannel[key] = path.to_string_lossy().into();
    if subnet_file != Path::new(SUBNET_FILE) {
        set("subnetFile", subnet_file);
    }
    // The plugin asks at the usual place only if the file is the usual one, too.
    if run_dir != Path::new(RUN_DIR) || subnet_file != Path::new(SUBNET_FILE) {
        set("agentSocket", &socket_path(run_dir));
    }
    let list = json!({
        "cniVersion": "1.1.0",
        "name": NETWORK,
        MARK_KEY: MARK,
        "plugins": [
            flannel,
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "bandwidth", "capabilities": {"bandwidth": true}},
        ],
    });
    format!("{list:#}\n")
}

#[cfg(test)]
mod tests;
