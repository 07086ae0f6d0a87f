// SPDX-License-Identifier: Apache-2.0
//! What we remember of a pod: one small file, written before the first change is made for it, so
//! that `down` finds everything even after a crash.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::name::PodName;
use crate::lock::{self, Lock};

/// A pod that is up, or on its way up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodState {
    pub namespace: String,
    pub name: String,
    /// CNI_CONTAINERID.
    pub sandbox_id: String,
    pub netns: PathBuf,
    /// Whether we made the namespace, and have to remove it.
    pub owns_netns: bool,
    pub ifname: String,
    /// The network's name.
    pub network: String,
    pub network_file: Option<PathBuf>,
    /// The network as it was when the pod came up; its file may change or go.
    pub config: Value,
    pub args: Vec<(String, String)>,
    pub capability_args: Map<String, Value>,
    /// Whether all was done. A pod that is not up is the leftover of a crash.
    pub is_up: bool,
}

/// The files of one pod.
#[derive(Debug)]
pub struct Store {
    file: PathBuf,
    lock: PathBuf,
}

impl Store {
    pub fn new(dir: &Path, pod: &PodName) -> Store {
        let name = pod.file();
        Store { file: dir.join(format!("{name}.json")), lock: dir.join(format!("{name}.lock")) }
    }

    /// Waits until no other works on this pod.
    pub fn lock(&self) -> Result<Lock> {
        let lock = lock::wait(&self.lock, lock::file)
            .with_context(|| format!("lock {}", self.lock.display()))?;
        Ok(lock.with_removal(&self.lock))
    }

    /// What is known of the pod; `None` where nothing is.
    pub fn read(&self) -> Result<Option<PodState>> {
        let doing = || format!("read {}", self.file.display());
        let text = match fsutil::read(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(doing),
        };
        serde_json::from_slice(&text).map(Some).with_context(doing)
    }

    /// All pods of a directory that can be read.
    pub fn all(dir: &Path) -> Vec<PodState> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path());
        let states = files.filter(|file| file.extension().is_some_and(|end| end == "json"));
        states.filter_map(|file| serde_json::from_slice(&fsutil::read(&file).ok()?).ok()).collect()
    }

    /// Replaces the file in one step.
    pub fn write(&self, state: &PodState) -> Result<()> {
        let fresh = self.file.with_extension("new");
        let write = || -> io::Result<()> {
            fsutil::replace(&self.file, &fresh, &serde_json::to_vec_pretty(state)?, 0o644)
        };
        write().with_context(|| format!("write {}", self.file.display()))
    }

    /// Forgets the pod.
    pub fn remove(&self) -> Result<()> {
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
    fn state_is_kept_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let pod: PodName = "default/web".parse().unwrap();
        let store = Store::new(&dir.path().join("pods"), &pod);
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
        let lock = store.lock().unwrap();
        assert_eq!(store.read().unwrap(), None);
        store.write(&state).unwrap();
        assert_eq!(store.read().unwrap(), Some(state));
        store.remove().unwrap();
        store.remove().unwrap();
        drop(lock);
        assert_eq!(fs::read_dir(dir.path().join("pods")).unwrap().count(), 0);
    }
}
