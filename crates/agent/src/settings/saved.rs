// SPDX-License-Identifier: Apache-2.0
//! What an agent was told of where its things are, written down for its cleanup in the form of a file of options.
//! Passwords are not. The file is for root alone all the same: it tells where the store and its keys are.

use std::io;
use std::path::{Path, PathBuf};

use super::{Told, Values, file};

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

/// Those of all these that are paths. They are written down as absolute paths: cleanup may be started elsewhere.
const PATHS: [&str; 8] = [
    "store-file",
    "etcd-keyfile",
    "etcd-certfile",
    "etcd-cafile",
    "kubeconfig-file",
    "subnet-file",
    "cni-conf-dir",
    "run-dir",
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
            let words: Vec<String> = words.iter().map(|word| absolute(name, word)).collect();
            text.push_str(&line(name, &words));
        }
    }
    text
}

fn absolute(name: &str, word: &str) -> String {
    let is_path = PATHS.contains(&name) && !word.is_empty();
    let path = is_path.then(|| std::path::absolute(word).ok()).flatten();
    path.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| word.to_owned())
}

/// One option. TOML has these lists as JSON has them.
pub(super) fn line(name: &str, words: &[impl AsRef<str>]) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    format!("{name} = {}\n", serde_json::json!(words))
}

/// Whether these options say which store the agent had.
pub(super) fn names_store(values: &Values) -> bool {
    STORE.iter().any(|name| values.contains_key(name))
}

/// The options that were told and those of the record at this path, or why the record is of no use. Without a
/// record no agent has run here, or one from before these files.
pub(super) fn merge(
    values: &Values,
    path: &str,
    read: impl Fn(&str) -> io::Result<String>,
) -> Result<Values, String> {
    let mut merged = values.clone();
    let text = match read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(merged),
        read => read.map_err(|error| error.to_string())?,
    };
    let written = file::parse(path, &text).map_err(|error| error.to_string())?;
    if !written.contains_key("store") {
        return Err("it does not name the store".to_owned());
    }
    add(&mut merged, written);
    Ok(merged)
}

/// Adds what was written down to what was told, which comes first.
fn add(values: &mut Values, written: Values) {
    let names_store = names_store(values);
    for (name, told) in written {
        if !(names_store && STORE.contains(&name)) {
            values.entry(name).or_insert(told);
        }
    }
}
