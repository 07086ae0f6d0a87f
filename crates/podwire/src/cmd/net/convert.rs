// SPDX-License-Identifier: Apache-2.0
//! `podwire net convert`: replaces a list of standard plugins by the plugin `podwire`.

mod layout;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use cni::runtime::NetworkList;
use plugins::main::podwire::convert::convert;
use plugins::registry::PLUGINS;
use serde_json::Value;
use text::escape;

use crate::output;

/// Replace a list of plugins by the plugin `podwire`, which does their work in one process
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  podwire net convert /etc/cni/net.d/10-mynet.conflist           print the new list
  podwire net convert --write /etc/cni/net.d/10-mynet.conflist   replace the file

Running containers are not affected: each list can check and remove attachments made by the other.
Plugins that podwire does not contain keep their place in the list.")]
pub(crate) struct Convert {
    /// Configuration file of the network
    file: PathBuf,
    /// Replace the file and keep the old one with the suffix `.orig`
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(args: &Convert) -> Result<()> {
    let bytes = fsutil::read_following(&args.file);
    let bytes = bytes.with_context(|| format!("read {}", args.file.display()))?;
    let converted = converted(&args.file, &bytes)?;
    let text = layout::network(&converted, &String::from_utf8_lossy(&bytes));
    if !args.write {
        return output::print(&escape::json(&text));
    }
    let (file, saved) = (&args.file, with_suffix(&args.file, ".orig"));
    // Runtimes read lists only from files with this extension.
    let list = file.with_extension("conflist");
    for taken in [Some(&saved), (list != *file).then_some(&list)].into_iter().flatten() {
        if taken.exists() {
            bail!("{} already exists: move it away first", taken.display());
        }
    }
    // A rename replaces the file atomically: a runtime that watches the directory reads the old
    // network or the new one.
    let fresh = with_suffix(file, ".new");
    std::fs::write(&fresh, text).with_context(|| format!("write {}", fresh.display()))?;
    std::fs::hard_link(file, &saved).with_context(|| format!("keep {}", saved.display()))?;
    std::fs::rename(&fresh, &list).with_context(|| format!("write {}", list.display()))?;
    if list != *file {
        std::fs::remove_file(file).with_context(|| format!("remove {}", file.display()))?;
    }
    let (list, saved) = (list.display(), saved.display());
    output::print(&format!("converted {list}; original saved as {saved}\n"))
}

/// Converts the list in the file, or a list with the single plugin in the file.
fn converted(file: &Path, bytes: &[u8]) -> Result<Value> {
    // A file that a runtime would reject is not converted either.
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
    let builtin: Vec<&str> = PLUGINS.iter().map(|plugin| plugin.name).collect();
    let (list, count) = convert(list, &builtin)?;
    if count == 0 && is_converted(&list) {
        bail!("{} is already converted: it uses the plugin `podwire`", file.display());
    }
    if count == 0 {
        bail!("{} has no plugin that `podwire` contains", file.display());
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
