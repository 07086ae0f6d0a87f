// SPDX-License-Identifier: Apache-2.0
//! The options that tell where an agent keeps its state. The agent saves them for cleanup, as a TOML file of options.
//! Passwords are left out. The file is readable by root only, because it names the store and its keys.

use std::path::{Path, PathBuf};

use super::sources;
use super::values::RawValues;
use crate::managed_file;

/// Options that select the store. They are used together: if one of them is given, none is taken from the record.
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

/// Saved options that are paths. They are saved as absolute paths: cleanup may run in another directory.
const PATHS: [&str; 9] = [
    "store-file",
    "etcd-keyfile",
    "etcd-certfile",
    "etcd-cafile",
    "kubeconfig-file",
    "subnet-file",
    "cni-conf-dir",
    "run-dir",
    "calico-dir",
];

const FILES: [&str; 5] = ["subnet-file", "cni-conf-dir", "cni-conf-name", "run-dir", "calico-dir"];

const EXTENSION: &str = "toml";

/// Path of the record of the agent with this owner tag.
pub fn path(state_dir: &Path, owner: &str) -> PathBuf {
    state_dir.join(format!("{owner}.{EXTENSION}"))
}

/// Returns the owner tags of all agents with a record in this directory, sorted.
pub fn owners(state_dir: &Path) -> Vec<String> {
    let Ok(entries) = state_dir.read_dir() else { return Vec::new() };
    let owner = |path: &Path| {
        let is_record = path.extension().is_some_and(|one| one == EXTENSION);
        path.file_stem().filter(|_| is_record)?.to_str().map(str::to_owned)
    };
    let mut owners: Vec<String> =
        entries.flatten().filter_map(|entry| owner(&entry.path())).collect();
    owners.sort_unstable();
    owners
}

/// Formats the record.
pub(super) fn print(values: &RawValues, store: &str) -> String {
    let mut text = String::from("# Options of podwire agent, saved for podwire cleanup.\n");
    text.push_str(&format!("store = {store:?}\n"));
    for name in STORE.iter().chain(&FILES).filter(|name| **name != "store") {
        if let Some(value) = values.get(name) {
            let texts: Vec<String> = value.texts.iter().map(|text| absolute(name, text)).collect();
            text.push_str(&line(name, &texts));
        }
    }
    text
}

fn absolute(name: &str, text: &str) -> String {
    let is_path = PATHS.contains(&name) && !text.is_empty();
    let path = is_path.then(|| std::path::absolute(text).ok()).flatten();
    path.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| text.to_owned())
}

/// Formats one option. Lists of strings look the same in TOML and JSON.
pub(super) fn line(name: &str, texts: &[impl AsRef<str>]) -> String {
    let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
    format!("{name} = {}\n", serde_json::json!(texts))
}

/// Whether these options select a store.
pub(super) fn names_store(values: &RawValues) -> bool {
    STORE.iter().any(|name| values.is_given(name))
}

/// Adds the options of the record at `path`, which have lower precedence. Fails if the record is unusable. A missing
/// record is fine: no agent has run here, or one of a version without records.
pub(super) fn merge(values: &RawValues, path: &Path) -> Result<RawValues, String> {
    let mut merged = values.clone();
    let read = managed_file::read(path).map_err(|error| error.to_string())?;
    let Some(text) = read else { return Ok(merged) };
    let saved = sources::parse_file(&path.display().to_string(), &text)
        .map_err(|error| error.to_string())?;
    if !saved.is_given("store") {
        return Err("the store is missing".to_owned());
    }
    let names_store = names_store(values);
    for (name, value) in saved.iter() {
        if !(names_store && STORE.contains(&name)) {
            merged.set_default(name, value.clone());
        }
    }
    Ok(merged)
}
