// SPDX-License-Identifier: Apache-2.0
//! The two networks of every pod: loopback and the default.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cni::runtime::conf_dir::{self, Chosen};
use cni::runtime::{Container, NetworkList, Runtime};
use serde_json::{Value, json};

use super::state::PodState;
use crate::report::Hint;
use crate::{config, place};

/// kubelet's words for a node without a network.
pub const UNINITIALIZED: &str = "cni config uninitialized";

/// The first valid network of the directory as it is now.
pub fn default(dir: &Path, runtime: &Runtime) -> Result<Chosen> {
    let chosen = conf_dir::first_valid(dir, runtime);
    if chosen.is_ok() || !config::scan(dir).context(UNINITIALIZED)?.is_empty() {
        // The error of a directory with files says what is wrong with each.
        return chosen.context(UNINITIALIZED);
    }
    chosen.hint(|| config::how_to_begin(dir)).context(UNINITIALIZED)
}

/// What is wrong with the files that came before the chosen one.
pub fn passed_over(chosen: &Chosen) -> Vec<String> {
    let told = |(file, error): &(PathBuf, cni::Error)| {
        let (file, error) = (file.display().to_string(), error.to_string());
        if error.contains(&file) { error } else { format!("{file}: {error}") }
    };
    chosen.passed_over.iter().map(told).collect()
}

/// A network as it is to be remembered: whole, whatever becomes of its file and folder.
pub fn to_record(list: &NetworkList) -> Value {
    json!({
        "cniVersion": list.version.as_str(),
        "name": list.name,
        "disableCheck": list.disable_check,
        "disableGC": list.disable_gc,
        "loadOnlyInlinedPlugins": true,
        "plugins": list.plugins.iter().map(|plugin| &plugin.config).collect::<Vec<_>>(),
    })
}

/// The default network as it was when the pod came up.
pub fn recorded(state: &PodState) -> Result<NetworkList> {
    NetworkList::parse(state.config.to_string().as_bytes(), None)
        .with_context(|| format!("network {:?} as recorded", state.network))
}

/// The pod as plugins of the default network see it.
pub fn container(state: &PodState) -> Result<Container> {
    Ok(Container {
        id: state.sandbox_id.clone(),
        netns: place::as_text(&state.netns)?.to_owned(),
        ifname: state.ifname.clone(),
        args: state.args.clone(),
        capability_args: state.capability_args.clone(),
    })
}

/// The same on the loopback network.
pub fn on_loopback(container: &Container) -> Container {
    Container { ifname: "lo".to_owned(), ..container.clone() }
}
