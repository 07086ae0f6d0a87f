// SPDX-License-Identifier: Apache-2.0
//! What an agent was told of where its things are, written down for its cleanup in the form of a file of options.
//! Passwords are not. The file is for root alone all the same: it tells where the store and its keys are.

use std::path::{Path, PathBuf};

use super::{Told, Values};

/// Which store. They go together: whoever names one says all there is to say of it.
const STORE: [&str; 12] = [
    "store",
    "store-file",
    "etcd-endpoints",
    "etcd-prefix",
    "etcd-keyfile",
    "etcd-certfile",
    "etcd-cafile",
    "kube-subnet-mgr",
    "kube-api-url",
    "kubeconfig-file",
    "kube-annotation-prefix",
    "node-name",
];

const FILES: [&str; 4] = ["subnet-file", "cni-conf-dir", "cni-conf-name", "run-dir"];

/// How the names of such files end.
pub const EXTENSION: &str = "toml";

/// Where the agent with this mark writes it.
pub fn path(state_dir: &Path, mark: &str) -> PathBuf {
    state_dir.join(format!("{mark}.{EXTENSION}"))
}

/// The marks of all agents that keep their things there, in order.
pub fn marks(state_dir: &Path) -> Vec<String> {
    let Ok(entries) = state_dir.read_dir() else { return Vec::new() };
    let mark = |path: &Path| {
        let is_record = path.extension().is_some_and(|one| one == EXTENSION);
        path.file_stem().filter(|_| is_record)?.to_str().map(str::to_owned)
    };
    let mut marks: Vec<String> =
        entries.flatten().filter_map(|entry| mark(&entry.path())).collect();
    marks.sort_unstable();
    marks
}

/// The text of the file.
pub(super) fn print(values: &Values, store: &str) -> String {
    let mut text = String::from("# What podwire agent was told, for podwire cleanup.\n");
    text.push_str(&format!("store = {store:?}\n"));
    for name in STORE.iter().chain(&FILES).filter(|name| **name != "store") {
        if let Some(Told { words, .. }) = values.get(*name) {
            // TOML has these as JSON has them.
            text.push_str(&format!("{name} = {}\n", serde_json::json!(words)));
        }
    }
    text
}

/// Adds what was written down to what was told, which comes first.
pub(super) fn add(values: &mut Values, written: Values) {
    let names_store = STORE.iter().any(|name| values.contains_key(name));
    for (name, told) in written {
        if !(names_store && STORE.contains(&name)) {
            values.entry(name).or_insert(told);
        }
    }
}
