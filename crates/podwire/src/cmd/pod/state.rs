// SPDX-License-Identifier: Apache-2.0
//! State of a pod in one small file. `up` writes it before its first change, so that `down` finds
//! everything even after a crash.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::name::PodName;
use crate::lock::{self, Lock};

/// A pod that is up or being connected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodState {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// CNI_CONTAINERID.
    pub(crate) sandbox_id: String,
    pub(crate) netns: PathBuf,
    /// Whether podwire created the namespace and must remove it.
    pub(crate) owns_netns: bool,
    pub(crate) ifname: String,
    /// Name of the network.
    pub(crate) network: String,
    pub(crate) network_file: Option<PathBuf>,
    /// The network as it was when the pod was connected; its file may change or disappear.
    pub(crate) config: Value,
    pub(crate) args: Vec<(String, String)>,
    pub(crate) capability_args: Map<String, Value>,
    /// False until all steps are done: a stale state after a crash.
    pub(crate) is_up: bool,
}

/// State file and lock file of one pod.
#[derive(Debug)]
pub(crate) struct StateFile {
    file: PathBuf,
    lock: PathBuf,
}

impl StateFile {
    pub(crate) fn new(dir: &Path, pod: &PodName) -> StateFile {
        let name = pod.file_stem();
        StateFile { file: dir.join(format!("{name}.json")), lock: dir.join(format!("{name}.lock")) }
    }

    /// Waits until no other process works on this pod.
    pub(crate) fn lock(&self) -> Result<Lock> {
        let lock = lock::wait(&self.lock, lock::file)
            .with_context(|| format!("lock {}", self.lock.display()))?;
        Ok(lock.with_removal(&self.lock))
    }

    /// Reads the state; `None` if the pod has none.
    pub(crate) fn read(&self) -> Result<Option<PodState>> {
        let doing = || format!("read {}", self.file.display());
        let text = match fsutil::read(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(doing),
        };
        serde_json::from_slice(&text).map(Some).with_context(doing)
    }

    /// All readable states of a directory.
    pub(crate) fn all(dir: &Path) -> Vec<PodState> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path());
        let states = files.filter(|file| file.extension().is_some_and(|end| end == "json"));
        states.filter_map(|file| serde_json::from_slice(&fsutil::read(&file).ok()?).ok()).collect()
    }

    /// Replaces the file atomically.
    pub(crate) fn write(&self, state: &PodState) -> Result<()> {
        let fresh = self.file.with_extension("new");
        let write = || -> io::Result<()> {
            fsutil::replace(&self.file, &fresh, &serde_json::to_vec_pretty(state)?, 0o644)
        };
        write().with_context(|| format!("write {}", self.file.display()))
    }

    /// Removes the file; succeeds if it is gone.
    pub(crate) fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove {}", self.file.display()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_written_read_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let pod: PodName = "default/web".parse().unwrap();
        let file = StateFile::new(&dir.path().join("pods"), &pod);
        let state = PodState {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            sandbox_id: "abc".into(),
            netns: "/run/netns/x".into(),
            owns_netns: true,
            ifname: "eth0".into(),
            network: "mynet".into(),
            network_file: None,
            config: Value::Null,
            args: vec![("IgnoreUnknown".into(), "1".into())],
            capability_args: Map::new(),
            is_up: false,
        };
        let lock = file.lock().unwrap();
        assert_eq!(file.read().unwrap(), None);
        file.write(&state).unwrap();
        assert_eq!(file.read().unwrap(), Some(state));
        file.remove().unwrap();
        file.remove().unwrap();
        drop(lock);
        assert_eq!(fs::read_dir(dir.path().join("pods")).unwrap().count(), 0);
    }
}
