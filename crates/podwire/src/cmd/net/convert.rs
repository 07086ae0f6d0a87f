// SPDX-License-Identifier: Apache-2.0
//! `podwire net convert`: a network of standard plugins becomes one of the plugin `podwire`.

mod layout;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cni::runtime::NetworkList;
use plugins::main::podwire::convert::convert;
use plugins::registry::PLUGINS;
use serde_json::Value;
use text::escape;

use crate::cli::Convert;
use crate::output;

pub fn run(asked: &Convert) -> Result<()> {
    let bytes = std::fs::read(&asked.file);
    let bytes = bytes.with_context(|| format!("read {}", asked.file.display()))?;
    let converted = converted(&asked.file, &bytes)?;
    let text = layout::network(&converted, &String::from_utf8_lossy(&bytes));
    if !asked.write {
        return output::print(&escape::json(&text));
    }
    let (file, saved) = (&asked.file, with_suffix(&asked.file, ".orig"));
    // A list is read from files of this name alone.
    let list = file.with_extension("conflist");
    for taken in [Some(&saved), (list != *file).then_some(&list)].into_iter().flatten() {
        if taken.exists() {
            bail!("{} is there already: move it away first", taken.display());
        }
    }
    // The new file appears by rename in one step: a runtime that watches the directory finds the old
    // network or the new one.
    let fresh = with_suffix(file, ".new");
    std::fs::write(&fresh, text).with_context(|| format!("write {}", fresh.display()))?;
    std::fs::hard_link(file, &saved).with_context(|| format!("keep {}", saved.display()))?;
    std::fs::rename(&fresh, &list).with_context(|| format!("write {}", list.display()))?;
    if list != *file {
        std::fs::remove_file(file).with_context(|| format!("remove {}", file.display()))?;
    }
    let (list, saved) = (list.display(), saved.display());
    output::print(&format!("converted {list}; the original was kept as {saved}\n"))
}

/// The list in the file, or the list of the one plugin in it, converted.
fn converted(file: &Path, bytes: &[u8]) -> Result<Value> {
    // What a runtime would not read is not converted either.
    let is_list = serde_json::from_slice::<Value>(bytes).is_ok_and(|v| v.get("plugins").is_some());
    let list = if is_list {
        NetworkList::parse(bytes, None)?;
        serde_json::from_slice(bytes)?
    } else {
        let list = NetworkList::from_single(bytes, Some(file))?;
        let mut value: Value = serde_json::from_slice(&list.bytes)?;
        for key in ["name", "cniVersion"] {
            if let Some(plugin) = value["plugins"][0].as_object_mut() {
                plugin.remove(key);
            }
        }
        value
    };
    let held: Vec<&str> = PLUGINS.iter().map(|plugin| plugin.name).collect();
    let (list, count) = convert(list, &held)?;
    if count == 0 && is_converted(&list) {
        bail!("{} is converted already: its plugins are done by `podwire`", file.display());
    }
    if count == 0 {
        bail!("{} has no plugin that `podwire` could do", file.display());
    }
    Ok(list)
}

fn is_converted(list: &Value) -> bool {
    let plugins = list["plugins"].as_array();
    plugins.is_some_and(|plugins| plugins.iter().any(|plugin| plugin["type"] == "podwire"))
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
